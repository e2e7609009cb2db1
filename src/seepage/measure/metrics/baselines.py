"""Guesses that need no attack. A reconstruction means something only where it beats them."""

from collections.abc import Mapping

import torch
from torch import Tensor


def baselines(
    truth: Tensor, *, seed: int, value_range: tuple[float, float] = (0.0, 1.0), typical: Tensor | None = None
) -> dict[str, Tensor]:
    """Make the guesses that every score is printed beside.

    Args:
        truth: `[n, *shape]` the true examples, in the value range.
        seed: Seed of the `random` guess.
        value_range: Smallest and largest value an input can take.
        typical: `[*shape]` a guess that public data allow, such as the mean of other rows of a table.

    Returns:
        Guesses shaped like `truth`: `grey`, the middle of the value range. `mean_color`, each image's own
        mean color (for other shapes, the mean over all its features): an oracle, since no attacker knows
        it, and the floor that a recovery has to beat. `random`, uniform noise. `typical`, where one is given: the
        other floor, as of a table whose columns hardly vary.

    >>> guesses = baselines(torch.tensor([[0.0, 1.0, 0.2]]), seed=0)
    >>> guesses["grey"], guesses["mean_color"]
    (tensor([[0.5000, 0.5000, 0.5000]]), tensor([[0.4000, 0.4000, 0.4000]]))
    """
    low, high = value_range
    rest = (2, 3) if truth.ndim == 4 else tuple(range(1, truth.ndim))
    mean = truth.double().mean(rest, keepdim=True).to(truth.dtype)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(truth.shape, generator=generator, dtype=torch.float32).to(truth)
    known = {} if typical is None else {"typical": typical.to(truth).expand_as(truth).clone()}
    return {
        **known,
        "grey": torch.full_like(truth, (low + high) / 2),
        "mean_color": mean.expand_as(truth).clone(),
        "random": noise * (high - low) + low,
    }


def floor_of(psnr: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
    """`[n]` the PSNR that a recovery has to beat: of the own mean, and of a typical example if there is one.

    Args:
        psnr: Baseline to metric to `[n]`, with `psnr` of each.

    >>> floor_of({"mean_color": {"psnr": torch.tensor([9.0, 9.0])}, "typical": {"psnr": torch.tensor([7.0, 12.0])}})
    tensor([ 9., 12.])
    """
    floor = psnr["mean_color"]["psnr"]
    return torch.maximum(floor, psnr["typical"]["psnr"]) if "typical" in psnr else floor
