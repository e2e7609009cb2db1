"""The linear-equation attack: activation patterns from ratios of gradients, then linear equations layer by layer."""

from dataclasses import dataclass
from typing import ClassVar

from seepage.attacks.base import Attack, Needs, Progress
from seepage.attacks.linear_equations.gradients import INSTEAD, LayerGradients
from seepage.attacks.linear_equations.known_inputs import KnownInputs
from seepage.attacks.network import CERTIFYING_MISMATCH
from seepage.base.registry import attacks
from seepage.federation.types import Reconstruction, Transcript


@attacks.register(
    "linear_equations",
    paper="Pan et al. 2022",
    cost="seconds (linear equations, layer by layer)",
)
@dataclass(frozen=True, kw_only=True)
class LinearEquations(Attack):
    """Linear-equation attack by exclusively activated neurons (Pan et al., USENIX Security 2022).

    In a fully connected ReLU network row j of a layer's weight gradient is `sum_i slope_ij f_i`, f_i what the layer
    reads of example i, over the examples that switch unit j on. Units that one example alone switches on have rows of
    equal ratios, which give f_i, and its zeros are the activation pattern of the layer before. With all patterns known
    the slopes of every layer before follow from the weights,

        slope_l = pattern_(l+1) * (slope_(l+1) @ W_(l+1)),        dL/dW_l = sum_i slope_l,i f_l,i^T,

    and the second line is a system of linear equations for what layer l reads of all examples: layer by layer down to
    the examples themselves, which need no unit of their own in the first layer then.

    Every group of units is checked without the truth: the network's own backward pass on what the group gives must
    send back the group's slopes and its columns of the next layer's gradient, for one label. What passed is taken away
    from the gradient of that layer and of all behind it, which leaves other examples alone at more units.

    Deviations from the paper, whose text was not at hand (its abstract, and what later papers say of it, were). Where
    the paper asks of each example two exclusive neurons in the last hidden layer and one in every other, this asks for
    all examples of the batch in one layer, any, and takes found ones away in between. Where a layer has a bias one
    unit is enough, since the bias gradient gives the length. Where no layer has all, examples found in the first
    layer are returned, and others whose layers determine them by their weights alone. A network of convolutions is
    refused.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, attack, build, record
        >>> images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> seen = record(build(Architecture("mlp3"), (1, 8, 8), 4), Batch(images, torch.arange(6) % 4))
        >>> found = attack(seen, LinearEquations())
        >>> apart = torch.cdist(found.inputs.flatten(1), images.flatten(1))
        >>> found.certified.all().item(), bool(apart.amin(1).max() < 1e-3)
        (True, True)
    """

    needs: ClassVar[Needs] = Needs(
        text="fully connected layers with ReLU; units that one example of the batch alone switches on",
        every_tensor="the equations go through every layer",
        linear_in_gradient="the ratios of a row are not those of an example",
        gradient="mixes local steps, whose units are on for other examples at each step",
        softmax_gradient="each example is identified by the errors of a cross-entropy, softmax minus label",
        batch_size="without it no example's share of the update is known",
        instead=INSTEAD.removeprefix("use "),
    )

    def examine(self, transcript: Transcript) -> "LayerGradients":
        return LayerGradients.of(transcript)

    def run(self, seen: "LayerGradients", *, seed: int, progress: Progress) -> Reconstruction:
        found = _search(seen, progress)
        notes = tuple(
            f"layer {seen.chain.maps[one.layer].name!r}: {len(one.labels)} of {seen.batch_size} examples are known "
            "from units of their own"
            for one in found
        )
        whole = found[-1]
        if len(whole.labels) < seen.batch_size:
            first = found[0]
            notes += ("no layer tells all examples, so the patterns that the equations need are not known",)
            return seen.reconstruction(first.readings, first.labels, first.mismatch, first.mismatch >= 0, notes)
        readings, mismatch = seen.solved_down(whole)
        sure = (mismatch <= CERTIFYING_MISMATCH).expand(len(readings))
        if whole.layer > 0:
            notes += (
                f"with all patterns known from layer {seen.chain.maps[whole.layer].name!r} on, linear equations give "
                "what the layers before read",
            )
        notes += (f"the batch explains the gradient up to {mismatch:.1e}",)
        return seen.reconstruction(readings, whole.labels, mismatch.expand(len(readings)), sure, notes)


def _search(seen: "LayerGradients", progress: Progress) -> list[KnownInputs]:
    """Examples known at each layer from the first on, up to the first layer at which all are."""
    known: list[KnownInputs] = []
    while len(known) < len(seen.chain) - 1:
        layer = len(known)
        start = seen.raised(known[-1]) if known else seen.nothing()
        grown = seen.grown(start)
        known.append(grown)
        progress.report(layer + 1, len(seen.chain), float(seen.batch_size - len(grown.labels)))
        if len(grown.labels) == seen.batch_size:
            break
        # A layer with more active units than inputs determines by its weights alone what it read of an example.
        lowered = seen.lowered(grown.at(slice(len(start.labels), None)))
        if layer > 0 and len(lowered.labels) > 0:
            known = [seen.grown(known[0].joined(lowered))]
            if len(known[0].labels) == seen.batch_size:
                break
    return known
