"""The closed-form leak of a low-rank adapter: the inputs of the adapted layer, up to its rank."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from seepage.attacks.adapters.tokens import AdapterTokens
from seepage.attacks.adapters.vectors import AdapterInputs, Fit
from seepage.attacks.base import MATCHING, Attack, Needs, Progress, refuse
from seepage.attacks.network import CERTIFYING_MISMATCH, AttackedRound, best_labels, in_range, vouch
from seepage.base.adapters import AdaptedLayer, adapted_layers
from seepage.base.nn import input_layer
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Round, Transcript

LATER = "observe a later round: after one step B is not zero"


@attacks.register(
    "lora",
    paper="ours; Phong et al. 2017 for one layer, generalized Nystrom formula for the lift",
    cost="seconds (closed form); minutes for batches",
)
@dataclass(frozen=True, kw_only=True)
class LoraLeak(Attack):
    """Reads the examples out of the update of a LoRA adapter, where the base is frozen and nothing of it is sent.

    An adapted layer `y = W x + s B A x` sends `grad A = s B^T G` and `grad B = s G A^T`, two sketches of the gradient
    `G = sum delta x^T` that the frozen W would have. Where at most `r` inputs are behind the update, G follows from the
    two exactly (`seepage.base.adapters`), so an adapter of rank r reveals what the whole layer would.

    *The adapted layer reads the input.* One example is a row of G but for its scale; several are unmixed by the
    Cocktail Party Attack. Scales, labels and what unmixing left open follow from the network: the errors delta are
    those of its own backward pass at the inputs, and the inputs solve `G = sum delta x^T`, in turn.

    *The adapted layers read the tokens of a vision transformer* (query, key or value of its first block, behind a layer
    norm), and the update comes from one image. The rows of grad A lie in the span of the normalized tokens. With the
    frozen patch and position embeddings known, a patch that lies in that span is a linear problem of its own: exact
    where the adapters' ranks together reach the tokens, and tokens and patch entries together stay below the width.

    In the first round B is zero and with it grad A: then the update shows the r numbers A x only, and the attack does
    not apply. A guess is certified where the client's own update at it is the observed one, and all tokens are shown.

    Example:
        >>> LoraLeak()
        LoraLeak()
    """

    needs: ClassVar[Needs] = Needs(
        text="a LoRA adapter on the layer that reads the input, or on a vision transformer's first block; B not zero",
        linear_in_gradient="no gradient of an adapter was sent",
        uncoupled="every row a mixture of the batch",
        classes="the label of each row is found by trying every class",
        batch_size="the rank of the adapter is compared with it",
    )

    def examine(self, transcript: Transcript) -> "AdapterInputs | AdapterTokens":
        attacked = AttackedRound.of(transcript)
        knowledge, observed, sent, every = (
            attacked.knowledge,
            attacked.observed,
            attacked.gradient,
            adapted_layers(attacked.model),
        )
        layers = [layer for layer in every if layer.down in sent and layer.up in sent]
        if not layers:
            what = "both factors of no low-rank adapter were sent" if every else "the model has no low-rank adapter"
            raise refuse("not_sent" if every else "no_adapter")(what, f"use {MATCHING}")
        if not any(bool(sent[layer.down].any()) for layer in layers):
            r = max(len(observed.params[layer.down]) for layer in layers)
            raise refuse("zero_gradient")(
                f"B is zero, as in the first round, so the update shows A x alone, {r} numbers of each input", LATER
            )
        n = observed.batch_size
        assert n is not None
        reads = input_layer(knowledge.model, observed.params, knowledge.input_shape)
        first = next((one for one in layers if reads is not None and one.base == reads.weight), None)
        if first is None or reads is None:
            return AdapterTokens.of(attacked, layers)
        _check_rank(first, observed, n)
        return AdapterInputs(attacked, first, reads, n)

    def run(self, seen: "AdapterInputs | AdapterTokens", *, seed: int, progress: Progress) -> Reconstruction:
        if isinstance(seen, AdapterTokens):
            return self._of_tokens(seen)
        knowledge, like = seen.attacked.knowledge, seen.attacked.observed.params[seen.layer.down]
        read, labels, mismatch, turns = Fit(seen)(seen.start(seed, progress))
        inputs = seen.reads.to_inputs(read, knowledge.input_shape).to(like)
        error, _ = vouch(seen.attacked, inputs, labels)
        fits = (mismatch < CERTIFYING_MISMATCH) & in_range(inputs, knowledge.value_range)
        notes = (
            f"the gradient of {seen.layer.base} follows from those of A and B, whose two accounts differ by "
            f"{seen.contradiction:.1e}",
            f"the update at these inputs differs from the observed one by {error:.1e} of its size",
        )
        return Reconstruction(
            inputs=inputs,
            labels=labels,
            objective=mismatch.float(),
            certified=fits & (error < CERTIFYING_MISMATCH),
            cost={"evaluations": turns + 1},
            notes=notes,
        )

    def _of_tokens(self, seen: AdapterTokens) -> Reconstruction:
        knowledge, (image, whole, note) = seen.attacked.knowledge, seen.solve()
        image = image.clamp(*knowledge.value_range).to(seen.attacked.like())
        tries = (vouch(seen.attacked, image, seen.attacked.label(label)) for label in range(knowledge.num_classes))
        labels, error = (one.to(image.device) for one in best_labels(torch.tensor([off]) for off, _ in tries))
        notes = (
            note,
            f"the update at this image differs from the observed one by {float(error):.1e} of its size",
        )
        return Reconstruction(
            inputs=image,
            labels=labels,
            objective=error,
            # A token outside of what is shown of the span makes every patch a little wrong, and the update hardly.
            certified=(error < CERTIFYING_MISMATCH) & whole,
            cost={"evaluations": knowledge.num_classes},
            notes=notes,
        )


def _check_rank(layer: AdaptedLayer, observed: Round, n: int) -> None:
    rank = len(observed.params[layer.down])
    if n > rank:
        raise refuse("rank_too_small")(
            f"{n} examples are behind an adapter of rank {rank}, whose two gradients hold no more than {rank}",
            f"attack a smaller batch, or use {MATCHING}",
        )
