"""Images that the attacker has and that are not private: the recipe's table `[auxiliary]`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.audit.recipe.plans import Count, RecipeTable
from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation import data


@dataclass(frozen=True, kw_only=True)
class Auxiliary(RecipeTable, table="auxiliary"):
    """Images that the attacker has, for attacks that learn what images look like. The report names them.

    They have the size and channels of the private ones. None of them is, byte for byte, an attacked image.

    Args:
        use: Data set or path, as in `[data]`; None: the public half of the private data's set, on which models are
            trained.
        count: Largest number of images, drawn at random; None: all.
    """

    use: str | None = None
    count: Count | None = None

    def __str__(self) -> str:
        return self.use or "the same data set"


def auxiliary_images(asked: Auxiliary, dataset: data.Dataset, attacked: Sequence[Tensor], seed: int) -> Tensor:
    """The attacker's `[m, *shape]` examples.

    Args:
        asked: What the recipe says.
        dataset: The private data.
        attacked: Private examples `[n, *shape]` that are attacked; none of them is returned.
        seed: Draws them, where there are more than asked for.

    Raises:
        SeepageError: Where nothing is left, and where the two kinds of data have different shapes.

    >>> digits = data.load("digits", size=8)
    >>> auxiliary_images(Auxiliary(count=5), digits, [], 0).shape
    torch.Size([5, 1, 8, 8])
    """
    source, places = dataset, dataset.train
    if asked.use is not None:
        shape = dataset.input_shape
        size, channels = (shape[-1], shape[0]) if len(shape) == 3 else (None, None)
        source = data.load(asked.use, seed=seed, size=size, channels=channels)
        places = torch.cat([source.train, source.private])
    if source.input_shape != dataset.input_shape:
        raise SeepageError(
            f"the auxiliary images have shape {source.input_shape} and the private ones {dataset.input_shape}; "
            "name other images in [auxiliary]"
        )
    order = torch.randperm(len(places), generator=generator(seed, "auxiliary"))
    inputs = source.batch(places[order]).inputs
    private = {_bytes(image) for batch in attacked for image in batch}
    kept = [i for i, image in enumerate(inputs) if _bytes(image) not in private][: asked.count]
    if not kept:
        raise SeepageError(
            f"no auxiliary image is left of {asked}; name other images in [auxiliary], or lower data.split"
        )
    return inputs[torch.tensor(kept)]


def _bytes(image: Tensor) -> bytes:
    return image.detach().cpu().contiguous().numpy().tobytes()
