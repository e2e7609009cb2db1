"""R-GAP: one example in closed form, layer by layer from the loss back to the input; and which layer stops it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.network import CERTIFYING_MISMATCH, AttackedRound, vouch
from seepage.attacks.rgap.chain import INSTEAD, Chain, LinearMap, solved
from seepage.base.registry import attacks
from seepage.base.rounding import FLOAT64_FLOOR
from seepage.federation.types import Ambiguity, Reconstruction, Tensors, Transcript

MOST_UNKNOWNS = 4096
"""Most entries a convolution may read; a solution takes time with their cube."""


@dataclass(frozen=True)
class LayerRank:
    """How far one layer's equations determine its input.

    Attributes:
        name: Module name.
        unknowns: Number of entries of its input.
        rank: Rank of all equations together.
        deficit: `unknowns - rank`, the dimension of the undetermined part; 0: the input is determined.
    """

    name: str
    unknowns: int
    rank: int

    @property
    def deficit(self) -> int:
        return self.unknowns - self.rank


def _solve(
    layer: LinearMap, output_gradient: Tensor, gradient: Tensor, known: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, LayerRank, float]:
    """What one layer read `[unknowns]`, the rank of its equations, and their relative residual.

    Args:
        layer: The layer.
        output_gradient: `[outputs]`.
        gradient: Of its weight.
        known: Its outputs and which of them are known; None: none.
    """
    equations, wanted = layer.gradient_system(output_gradient, gradient)
    # A fully connected layer's system is |k| I x = G^T k / |k|: solved by a division, of full rank. The outputs add
    # nothing to it.
    if isinstance(layer.module, nn.Linear) and output_gradient.norm() > 0:
        return wanted / output_gradient.norm(), LayerRank(layer.name, layer.unknowns, layer.unknowns), 0.0
    if layer.unknowns > MOST_UNKNOWNS:
        raise refuse("too_large")(
            f"layer {layer.name!r} reads {layer.unknowns:,} values, and to solve for {MOST_UNKNOWNS:,} takes a minute",
            INSTEAD,
        )
    parts = [(equations, wanted)]
    if known is not None:
        outputs, sure = known
        # W x = z - b at the outputs that are known: a ReLU hides z where it is off. [known outputs, unknowns]
        parts.insert(0, (layer.matrix()[sure], (outputs - layer.spread_bias(len(outputs)))[sure]))
    reading, rank, residual = solved(parts, FLOAT64_FLOOR)
    return reading, LayerRank(layer.name, layer.unknowns, rank), residual


@attacks.register(
    "rgap",
    paper="Zhu and Blaschko 2021",
    cost="milliseconds to minutes (least squares, layer by layer)",
)
@dataclass(frozen=True, kw_only=True)
class RGap(Attack):
    """Recursive gradient attack on one example (Zhu and Blaschko, ICLR 2021, algorithm 1, eq. 6 to 15).

    From the last layer to the first: with `k`, the slope of the loss by a layer's output, the weight gradient is linear
    in what the layer read (gradient constraints), and so is its output, once that is known (weight constraints). Both
    together are solved by least squares in float64; the activation in front is turned around, and
    `k' = act'(z) * W^T k` carries the slope on. A layer whose equations have less rank than unknowns protects the
    input: the numbers are in the notes.

    Deviations from the paper. The loss is cross-entropy over any number of classes, not the logistic loss of two. Where
    a layer has a bias, its gradient gives the slope directly; without one the slope of the last layer is
    `a u`, u the left singular vector of its gradient, and a is found on a line: `softmax(W v / a) - e_y = a u`. The
    negative entry of the slope is the label. Pooling and residual connections are refused, as are batches: with more
    than one example the products no longer split.

    Example:
        >>> from seepage import Batch, attack, record
        >>> image = torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        >>> conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        >>> model = nn.Sequential(conv, nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(96, 4)).double()
        >>> seen = record(model, Batch(image, torch.tensor([3])))
        >>> found = attack(seen, RGap())
        >>> found.labels, bool((found.inputs - image).abs().max() < 1e-4)
        (tensor([3]), True)
    """

    needs: ClassVar[Needs] = Needs(
        text="one example; a chain of fully connected layers and convolutions without pooling",
        every_tensor="the recursion goes through every layer",
        linear_in_gradient="it is no gradient of the model the recursion goes back through",
        gradient="is no gradient of the model the recursion goes back through",
        softmax_gradient="the recursion starts from the gradient of a cross-entropy, softmax minus label",
        batch_size="the recursion holds for one example",
        single_example="the recursion solves for one example",
    )

    def examine(self, transcript: Transcript) -> tuple[AttackedRound, Chain, Tensors]:
        """The round, its model layer by layer, and its update in float64."""
        attacked = AttackedRound.of(transcript)
        chain = Chain.of(attacked.model, attacked.observed.params, attacked.knowledge.input_shape)
        gradient = {name: g.double() for name, g in attacked.gradient.items()}
        for layer in chain.maps:
            if not gradient[f"{layer.name}.weight"].abs().max() > 0:
                raise refuse("zero_gradient")(
                    f"the gradient of {layer.name}.weight is zero everywhere (no unit is active, or the loss is zero)",
                    "nothing can be solved; use another round",
                )
            if layer.unknowns > MOST_UNKNOWNS and isinstance(layer.module, nn.Conv2d):
                raise refuse("too_large")(
                    f"convolution {layer.name!r} reads {layer.unknowns:,} values, and more than {MOST_UNKNOWNS:,} "
                    "take minutes to solve for",
                    INSTEAD,
                )
        return attacked, chain, gradient

    def run(self, seen: tuple[AttackedRound, Chain, Tensors], *, seed: int, progress: Progress) -> Reconstruction:
        attacked, chain, gradient = seen
        output_gradient, label = _last_gradient(chain.maps[-1], gradient)
        known: tuple[Tensor, Tensor] | None = None
        ranks: list[LayerRank] = []
        for i in range(len(chain) - 1, -1, -1):
            layer = chain.maps[i]
            if isinstance(layer.module, nn.Linear) and layer.bias is not None:
                # dL/db is k itself, exactly: better than the k that came down through the solved layers.
                output_gradient = gradient[f"{layer.name}.bias"]
            weight = gradient[f"{layer.name}.weight"]
            reading, rank, residual = _solve(layer, output_gradient, weight, known)
            ranks.insert(0, rank)
            progress.report(len(ranks), len(chain), residual)
            if i > 0:
                after = chain.maps[i - 1].after
                # Turn the activation around; where a ReLU was off, its input is not known and its derivative is zero.
                # z = act^-1(what the layer behind read).
                known = after.inverse(reading), after.known(reading)
                # k' = act'(z) * W^T k, one layer further to the front.
                bend = after.derivative(known[0] * known[1])
                output_gradient = bend * layer.pulled_back(output_gradient[None])[0]
        # What the first layer read, taken back through the normalization in front of it. [1, *shape]
        inputs = chain.to_inputs(reading[None]).reshape(1, *attacked.knowledge.input_shape)
        inputs = inputs.clamp(*attacked.knowledge.value_range).to(attacked.like()).contiguous()
        labels = attacked.label(label)
        mismatch = inputs.new_tensor([vouch(attacked, inputs, labels)[0]])
        whole = all(rank.deficit == 0 for rank in ranks)
        return Reconstruction(
            inputs=inputs,
            labels=labels,
            ambiguity=frozenset[Ambiguity](),
            objective=mismatch.float(),
            certified=(mismatch <= CERTIFYING_MISMATCH) & whole,
            cost={"evaluations": 1},
            notes=_notes(ranks),
        )


def _last_gradient(last: LinearMap, gradient: Tensors) -> tuple[Tensor, int]:
    """Slopes `[classes]` of the loss by the logits, and the label: the only negative one."""
    if not isinstance(last.module, nn.Linear):
        raise refuse("no_head")("the last layer is no fully connected one, whose gradient tells the label", INSTEAD)
    if last.bias is not None:
        output_gradient = gradient[f"{last.name}.bias"]
        return output_gradient, int(output_gradient.argmin())
    # Without a bias: the gradient k x^T has rank one, so u = +-k / |k| and s v = +-|k| x.
    left, values, right = torch.linalg.svd(gradient[f"{last.name}.weight"], full_matrices=False)
    tries = []
    for sign in (1.0, -1.0):
        u, v = sign * left[:, 0], sign * values[0] * right[0]
        label = int(u.argmin())
        size, misfit = _length(last.weight @ v, u, label)
        # Only one sign has softmax(W v / a) - e_y = a u at any a; the other leaves a misfit.
        tries.append((misfit, label, size * u))
    best = min(tries, key=lambda one: one[0])
    return best[2], best[1]


def _length(logits: Tensor, u: Tensor, label: int) -> tuple[float, float]:
    """The a with `softmax(logits / a) - e_label` nearest `a u`, and how near.

    The norm of the output_gradient is between 0 and the root of 2. Of several solutions the best on a grid is refined.
    """
    from scipy.optimize import minimize_scalar

    wanted = F.one_hot(torch.tensor(label), len(u)).to(u)

    def misfit(log: float) -> float:
        a = 10.0**log
        # Over a, the slope's length, so that tiny slopes near 0 do not win by being tiny.
        return float(((logits / a).softmax(0) - wanted - a * u).norm() / a)

    # |softmax - e_label| is at most sqrt(2) = 10^0.15. Steps of 0.0154, so that 0.02 to either side reaches both
    # neighbors.
    grid = torch.linspace(-6, 0.16, 400).tolist()
    start = min(grid, key=misfit)
    found = minimize_scalar(misfit, bounds=(start - 0.02, start + 0.02), method="bounded", options={"xatol": 1e-12})
    return 10.0 ** float(found.x), float(found.fun)


def _notes(ranks: list[LayerRank]) -> tuple[str, ...]:
    """Ranks, layer by layer, and which layer protects the input."""
    holes = [one for one in ranks if one.deficit > 0]
    each = (f"{one.name} {one.rank} of {one.unknowns}" for one in ranks)
    said = f"rank of unknowns, first layer first: {', '.join(each)}"
    if not holes:
        return said, "no layer has a deficit: the input is determined, up to rounding"
    worst = max(holes, key=lambda one: one.deficit / one.unknowns)
    return said, f"layer {worst.name!r} protects most: {worst.deficit} of {worst.unknowns} values are left open"
