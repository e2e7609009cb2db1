"""The Cocktail Party Attack: unmix a fully connected layer's aggregated gradient into the examples behind it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from seepage.attacks.base import MATCHING, Attack, Needs, Progress, refuse, run_resumable
from seepage.attacks.cpa.fast import FastRun, Mixed
from seepage.attacks.cpa.ica import (
    EMBEDDINGS,
    IMAGES,
    Objective,
    Unmixing,
)
from seepage.attacks.network import AttackedRound
from seepage.attacks.network.mixing_layer import MixingLayer, find_layer, stretch
from seepage.base.algebra.lowrank import low_rank
from seepage.base.nn import last_linear, normalized_layers
from seepage.base.registry import attacks
from seepage.federation.types import Ambiguity, Knowledge, Reconstruction, Round, Transcript


@attacks.register(
    "cocktail_party",
    paper="Kariyappa et al. 2023",
    cost="seconds (unmixing by independent components)",
    family="unmixing by independent components",
)
@dataclass(frozen=True, kw_only=True)
class CocktailParty(Attack):
    """Blind source separation of a fully connected layer's update (Kariyappa et al., ICML 2023, eq. 4 to 10).

    The layer's weight gradient is `A X`: each row a mixture of the batch's inputs. `published` finds the unmixing as
    the paper does: 25,000 Adam steps on eq. 9 (images) or 10 (embeddings); scale and sign stay open, and each image
    is stretched to the value range. `fast` unmixes differences of pixels in opponent colors by FastICA and
    quasi-Newton maximum likelihood (seconds, and better), takes scale and sign from the bias gradient, and then
    polishes: the model itself says which mixing column an image must have, and images and columns are made to agree.
    What still disagrees is not certified: `objective` holds each guess's mismatch, `certified` what is vouched for.
    Behind one step of Adam or its kin `fast` takes a low rank that weighs each entry by its error (not of the paper).

    Args:
        mode: `fast` or `published`.
        layer: Name of the fully connected layer; None: the first one.
        polish: Polish to exact (fast mode, one gradient step, batch size known).
        objective: The published objective; None: the authors' weights for images or embeddings.
        steps: Adam steps of the published mode.
        lr: Learning rate of the published mode.

    Example:
        >>> from seepage.attacks.cpa.cocktail_party import CocktailParty
        >>> CocktailParty(polish=False).mode
        'fast'
    """

    needs: ClassVar[Needs] = Needs(
        text="a fully connected first layer, no more examples than neurons",
        linear_in_gradient="no row mixes examples",
    )

    mode: Literal["fast", "published"] = "fast"
    layer: str | None = None
    polish: bool = True
    objective: Objective | None = None
    steps: int = 25_000
    lr: float = 1e-3

    def examine(self, transcript: Transcript) -> Mixed:
        """The round, and the layer whose update mixes the batch."""
        attacked = AttackedRound.of(transcript)
        knowledge, observed = attacked.knowledge, attacked.observed
        layer = find_layer(knowledge, observed, self.layer)
        weight = attacked.gradient[layer.weight]
        if not weight.abs().max() > 0:
            raise refuse("zero_gradient")(
                f"the gradient of {layer.weight} is zero everywhere (no unit is active, or the loss is zero)",
                "there is nothing to unmix; use another round",
            )
        _check_centered(knowledge, observed, layer)
        if self.mode == "published" and observed.batch_size is None:
            raise refuse("no_batch_size")(
                "the published method must know the batch size", "name it, or use mode='fast'"
            )
        last = last_linear(knowledge.model, knowledge.num_outputs)
        # The rows of the layer of the classes add up to zero, as softmax minus label does.
        ends = knowledge.softmax_labels and last is not None and last[0] == layer.weight
        most, n = len(weight) - ends, observed.batch_size
        if n is not None and n > most:
            raise refuse("too_many_examples")(
                f"{n} examples are mixed into the {len(weight)} rows of {layer.weight} and at most {most} can be "
                "distinguished",
                "attack a smaller batch or a wider layer, or use a matching attack",
            )
        if n is None:
            _check_unknown_size(layer, weight, ends=ends)
        return attacked, layer

    def run(self, mixed: Mixed, *, seed: int, progress: Progress) -> Reconstruction:
        if self.mode == "published":
            return self._published(mixed, progress)
        return FastRun(mixed, polish=self.polish, seed=seed, progress=progress).reconstruction()

    def _published(self, mixed: Mixed, progress: Progress) -> Reconstruction:
        """The published search (eq. 7 to 10): from its checkpoint if there is one; Ctrl-C ends it with what there is.

        Of the round only the layer's weight gradient and the batch size, which must be known, are read.
        """
        attacked, layer = mixed
        knowledge, batch_size = attacked.knowledge, attacked.observed.batch_size
        assert batch_size is not None  # `examine` refused it
        images, weight = layer.reads_input is not None, attacked.gradient[layer.weight]
        search = Unmixing(
            weight,
            batch_size,
            self.objective or (IMAGES if images else EMBEDDINGS),
            shape=knowledge.input_shape if images and len(knowledge.input_shape) == 3 else None,
            lr=self.lr,
        )

        done, interrupted = run_resumable(search, self.steps, lambda step: search.step(), progress, note=search.note)
        features = search.sources()
        features = features.abs() if layer.sparse else features
        inputs = stretch(features, knowledge) if images else features
        return Reconstruction(
            inputs=inputs.to(weight),
            space="input" if images else "feature",
            ambiguity=frozenset[Ambiguity]({"order", "sign", "scale"}),
            status="interrupted" if interrupted else "exhausted",
            history=tuple(search.history),
            cost={"steps": done, "evaluations": done},
            notes=("scale and sign are open in the published method: each example is stretched to the value range",),
        )


def _check_centered(knowledge: Knowledge, observed: Round, layer: MixingLayer) -> None:
    """Raise `Inapplicable` where a batch norm in train mode takes the mean of the layer's outputs away."""
    model = knowledge.model
    if not knowledge.client.batch_coupled(model):
        return
    norms = normalized_layers(model, observed.params, knowledge.input_shape, buffers=observed.buffers)
    if layer.name in norms.values():
        raise refuse("batch_norm")(
            f"a batch norm in train mode follows {layer.name or 'the layer'}, so the gradient of its bias, which gives "
            "each unmixed example its scale, is rounding alone, and each row mixes the whole batch",
            f"read the batch's own statistics, which the batch norms reveal, or use {MATCHING}",
        )


def _check_unknown_size(layer: MixingLayer, weight: Tensor, *, ends: bool) -> None:
    """Raise `Inapplicable` where nothing says how many examples are mixed in the layer, not even its rank."""
    if layer.reads_input is None:
        raise refuse("no_batch_size")(
            "the batch size is unknown, and what an inner layer reads tells it only where its rank is clear, which it "
            "is not here (local steps, few rows, rounding)",
            "name it with --batch-size",
        )
    live = int(weight.abs().amax(1).count_nonzero())
    rank = low_rank(weight).rank
    if rank >= live - ends:
        raise refuse("no_batch_size")(
            f"the batch size is unknown, and all {live} active rows of {layer.weight} are independent, so there may be "
            "more examples than rows to unmix them by",
            "name it with --batch-size",
        )
