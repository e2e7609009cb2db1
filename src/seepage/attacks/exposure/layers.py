"""What the gradient of a fully connected layer reveals: its rank, and rows that are one example's input."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.linear import LinearLeak
from seepage.attacks.network import CERTIFYING_MISMATCH
from seepage.attacks.network.mixing_layer import mixes_examples
from seepage.base.adapters import inside_adapters
from seepage.base.algebra.lowrank import low_rank
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.nn import as_inputs, calls_in_pass, input_layer, last_linear, normalized_layers
from seepage.federation.types import Knowledge, Round

MAX_ROWS = 512
"""Rows of a layer that are decomposed, those of the largest gradient; more take longer than a round may."""
FEW_ENTRIES = 256
"""Entries of two rows that are compared before all of them are, which no row that differs is worth."""
MAX_ROW_DISTANCE = 3e-6
"""Relative distance of divided rows up to which they are one and the same input; rounding reaches about 1e-6."""
MAX_NOISY_DISAGREEMENT = 0.5
"""Rows of one example that disagree by more than this share no longer count as its noisy input."""
MOST_LISTED = 6
"""Layers that read positions, up to which each has a line of its own."""


@dataclass(frozen=True)
class LayerLeak:
    """What one fully connected layer reveals.

    Attributes:
        layer: Name of the module.
        weight: Name of its `[m, d]` weight.
        bias: Name of its bias, or None where there is none or it was not sent.
        reads: `input`: the model's input itself. `features`: one inner vector per example. `positions`: several
            vectors per example, as in a transformer.
        neurons: m.
        width: d, the entries of what it reads.
        rank: Independent inputs above rounding and noise. It cannot pass the live rows and columns of the gradient.
        full: The rank is as large as it can be, so there may be more inputs than that.
        found: Inputs that its rows reveal one by one (see `closed_form`); 0 where the rows prove nothing.
        error: Relative disagreement of the rows where the update is known to come from one example, whose input they
            then all are, but for noise; None otherwise.
        last: It is the layer of the classes, where one neuron's row is minus the sum of the others.
        centered: A batch norm in train mode reads its outputs and takes their mean away: the slopes of each neuron add
            up to zero over the batch, which is one rank less than there are examples and no gradient of the bias.
        believed: Nothing speaks of noise, rounding or another loss, which change what the rank says of examples.
        mixes: Its rows mix the examples, as unmixing needs (`mixes_examples`).
        accuracy: Of a layer that reads the input, the median relative error that number formats and the client's step
            leave on the entries of a difference of weights; 1 where more than half are unknown. None of others.
    """

    layer: str
    weight: str
    bias: str | None
    reads: Literal["input", "features", "positions"]
    neurons: int
    width: int
    rank: int
    full: bool
    found: int
    error: float | None
    last: bool
    centered: bool = False
    believed: bool = True
    mixes: bool = True
    accuracy: float | None = None

    @property
    def examples(self) -> int:
        """Inputs behind it at the least, by its rank."""
        return self.rank + 1 if self.centered and self.rank else self.rank

    @property
    def unmixable(self) -> bool:
        """Fewer inputs than neurons, so that methods which unmix the rows apply.

        Not where they mix positions, nor where no gradient of the bias says how much of each input is in them.
        """
        return (
            self.mixes
            and self.believed
            and self.reads != "positions"
            and self.rank > 1
            and not self.full
            and not self.centered
        )

    @property
    def noisy(self) -> bool:
        """The rows are one example's input but for noise that is smaller than it."""
        return self.error is not None and not self.found and self.error < MAX_NOISY_DISAGREEMENT


def layer_findings(leaks: Sequence[LayerLeak]) -> Iterator[ClosedForm]:
    """Every layer with its rank, and what it reveals, of its weight and, where rows are divided by it, its bias."""
    inner = [one for one in leaks if one.reads == "positions"]
    folded = inner if len(inner) > MOST_LISTED else []
    for leak in leaks:
        more = ", or more" if leak.full else ""
        rank = f"rank {leak.rank}{more}" if leak.rank else "rank hidden by the errors of its entries"
        words = f"{leak.layer or 'model'}: {rank}, {leak.neurons} neurons, reads {leak.reads}"
        if leak.accuracy is not None:
            known = f"known to {leak.accuracy:.1g} of itself" if leak.accuracy < 1 else "not known"
            words += f", its median entry {known}"
        lines = () if leak in folded else (words,)
        yield ClosedForm(name="layer", message=words, evidence=asdict(leak), lines=lines)
        yield from _revealed(leak)
    if folded:
        low, high = min(one.rank for one in folded), max(one.rank for one in folded)
        ranks = f"rank {low if low == high else f'{low} to {high}'}" if high else "ranks hidden by errors"
        words = (
            f"{len(folded)} further layers: inner features at the positions of an example, such as tokens; {ranks}; "
            "no row is one example's"
        )
        yield ClosedForm(name="further-layers", message=words, lines=(words,))


def _revealed(leak: LayerLeak) -> Iterator[ClosedForm]:
    what = "private examples" if leak.reads == "input" else "inner vectors"
    one = what.removesuffix("s")
    divided = leak.found > 0 or leak.noisy
    tensors = tuple(filter(None, (leak.weight, leak.bias if divided else None)))
    if leak.found:
        yield ClosedForm(
            name="exact-rows",
            message=f"{leak.found} {what if leak.found > 1 else one} exactly, row by row",
            evidence={"found": leak.found},
            limit="Rows that fewer neurons share are not counted, so there may be more.",
            tensors=tensors,
            examples=leak.found if leak.reads == "input" else 0,
            vectors=leak.found,
        )
    if leak.noisy:
        yield ClosedForm(
            name="noisy-rows",
            message=f"its one {one}, but for noise ({leak.error:.0%} of a row)",
            evidence={"error": leak.error},
            limit="How much a denoiser brings back is not known.",
            tensors=tensors,
        )
    if leak.unmixable:
        yield ClosedForm(
            name="span",
            message=f"the span of its {leak.examples} {what}, fewer than its {leak.neurons} neurons: unmixing "
            "(cocktail_party) applies",
            evidence={"rank": leak.rank, "neurons": leak.neurons, "examples": leak.examples},
            limit="Whether unmixing finds them is for the attack to show.",
            tensors=tensors,
        )


def hidden_layers(observed: Round, knowledge: Knowledge) -> list[LayerLeak]:
    """The same layers where entries are known too roughly for any of it."""
    first = input_layer(knowledge.model, observed.params, knowledge.input_shape)
    last = last_linear(knowledge.model, knowledge.num_outputs)
    leaks = []
    for name, (module, positions, mixes) in _linear_layers(observed, knowledge).items():
        prefix = f"{name}." if name else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if weight in observed.update.tensors:
            inner: Literal["positions", "features"] = "positions" if positions > 1 else "features"
            reads = "input" if first is not None and first.weight == weight else inner
            sent, ends = bias if bias in observed.update.tensors else None, last is not None and last[0] == weight
            m, d = module.out_features, module.in_features
            leak = LayerLeak(name, weight, sent, reads, m, d, 0, True, 0, None, ends, mixes=mixes)
            leaks.append(replace(leak, accuracy=_accuracy(observed, knowledge, leak)))
    return leaks


def _accuracy(observed: Round, knowledge: Knowledge, leak: LayerLeak) -> float | None:
    """How well the median entry of a layer that reads the input is known; None of others, and of a sent gradient."""
    if leak.reads != "input" or (observed.update.step is None and observed.update.rate is None):
        return None
    middle = observed.measured(knowledge.client, [leak.weight]).accuracy()
    return None if middle is None else min(middle, 1.0)


def layer_leaks(
    observed: Round, knowledge: Knowledge, gradient: Mapping[str, Tensor], quantized: Collection[str] = ()
) -> list[LayerLeak]:
    """Every fully connected layer whose weight was sent, in the model's order.

    Args:
        observed: The round.
        knowledge: What the server knows.
        gradient: The update read as a gradient; only its direction counts here.
        quantized: Tensors whose entries lie on few levels, so that equal rows prove nothing.
    """
    last = last_linear(knowledge.model, knowledge.num_outputs)
    first = input_layer(knowledge.model, observed.params, knowledge.input_shape)
    centered = set[str]()
    if knowledge.client.batch_coupled(knowledge.model):
        model, shape = knowledge.model, knowledge.input_shape
        centered = set(normalized_layers(model, observed.params, shape, buffers=observed.buffers).values())
    leaks = []
    for name, (module, positions, mixes) in _linear_layers(observed, knowledge).items():
        prefix = f"{name}." if name else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if weight not in gradient:
            continue
        ends = last is not None and last[0] == weight
        reads: Literal["input", "features", "positions"] = "positions" if positions > 1 else "features"
        if first is not None and first.weight == weight:
            reads = "input"
        rows = gradient[weight].double()
        shifts = gradient[bias].double() if module.bias is not None and bias in gradient else None
        rank, full = _rank(rows, shifts, ends)
        found, error = 0, None
        if name in centered:
            pass  # rows are divided by rounding
        elif shifts is not None and positions == 1 and observed.batch_size == 1:
            error = _disagreement(rows, shifts)
            found = int(error is not None and error <= CERTIFYING_MISMATCH)
        elif shifts is not None and positions == 1 and not ends and knowledge.num_classes > 2:
            shared = 0 if weight in quantized else closed_form(rows, shifts)
            found = min(shared, rank, observed.batch_size or rank)
        sent = bias if shifts is not None else None
        m, d = rows.shape
        leak = LayerLeak(name, weight, sent, reads, m, d, rank, full, found, error, ends, name in centered, mixes=mixes)
        leaks.append(replace(leak, accuracy=_accuracy(observed, knowledge, leak)))
    return leaks


def _disagreement(rows: Tensor, shifts: Tensor) -> float | None:
    """How far the rows are from multiples of one vector, as a share of their size; None where there are none."""
    if not shifts.abs().max() > 0 or not rows.abs().max() > 0:
        return None
    # One example's gradient is the outer product of slopes and input, and its bias gradient the slopes: so the input
    # is the least-squares solution of shifts x^T = rows, and what is left of the rows is noise.
    vector = shifts @ rows / (shifts @ shifts)  # [d]
    return float((rows - shifts[:, None] * vector).norm() / rows.norm())


def closed_form(rows: Tensor, shifts: Tensor) -> int:
    """How many inputs the divided rows `rows / shifts` reveal.

    A row of the weight's gradient is a sum over examples of (slope at the neuron) times (input), and the bias entry is
    the sum of the slopes (Phong et al. 2017). If one example alone reaches the neuron, their ratio is its input. All
    neurons that are reached by that example alone have one ratio; neurons reached by several have different ones,
    as long as the slopes of different examples are not multiples of each other. So a ratio that three rows share is
    taken for an input. It proves nothing with two classes, nor before a layer of one unit, nor in the layer of the
    classes itself, whose absent classes share a mixture where the outputs are uniform.

    Args:
        rows: `[m, d]` gradient of the weight.
        shifts: `[m]` gradient of the bias.

    Example:
        >>> slopes = torch.tensor([[1.0, 2, 5, 0, 0, 0], [0, 0, 0, 1, 3, 4]])
        >>> inputs = torch.tensor([[1.0, 0, 2], [3, 1, 0]])
        >>> closed_form(slopes.T @ inputs, slopes.sum(0))
        2
    """
    if not shifts.abs().max() > 0:
        return 0
    # A ratio is only as good as its divisor: rows of small bias gradient are mostly rounding.
    live = (shifts.abs() > LinearLeak.floor * shifts.abs().max()).nonzero().squeeze(1)
    live = live[shifts[live].abs().argsort(descending=True, stable=True)[:MAX_ROWS]]
    ratios = rows[live] / shifts[live, None]  # [k, d]; one example's neurons all have its input as their ratio
    sizes = ratios.norm(dim=1).clamp(min=1e-300)
    # Distances by differences: by products they would drown in rounding, at relative sizes of 1e-6. Over some entries
    # they are no larger than over all, so what is not near there need not be compared in whole.
    some = ratios[:, :: 1 + ratios.shape[1] // FEW_ENTRIES]
    near = torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist") <= MAX_ROW_DISTANCE * sizes[:, None]
    left, found = (near.sum(1) >= LEAST_ALIKE) & (sizes > 1e-290), 0
    # Count each input once: take a shared ratio, and strike out all that are close to it.
    for row in left.nonzero().squeeze(1).tolist():
        if left[row]:
            gaps = (ratios - ratios[row]).norm(dim=1) / sizes[row]  # [k]
            if int((gaps <= MAX_ROW_DISTANCE).sum()) >= LEAST_ALIKE:  # itself among them
                found += 1
                left &= gaps > LinearLeak.same
    return found


def _rank(rows: Tensor, shifts: Tensor | None, ends: bool) -> tuple[int, bool]:
    """Independent inputs, and whether there may be more. The bias counts as one more entry of every input, a one."""
    whole = rows if shifts is None else torch.cat([shifts[:, None], rows], 1)
    # The gradient is slopes^T [m, n] times inputs [n, 1 + d]: its rank is the number of independent examples.
    whole = whole[whole.abs().sum(1) > 0][:, whole.abs().sum(0) > 0]  # live neurons and entries alone
    if not whole.numel():
        return 0, False
    whole = whole[whole.norm(dim=1).argsort(descending=True, stable=True)[:MAX_ROWS]]
    # Rows of the layer of the classes sum to zero, as softmax minus label does: one less is independent.
    rank, most = low_rank(whole).rank, min(len(whole) - ends, whole.shape[1])
    return rank, rank >= most and most > 1


def _linear_layers(observed: Round, knowledge: Knowledge) -> dict[str, tuple[nn.Linear, int, bool]]:
    """Each fully connected layer that a pass goes through, the vectors that it reads per example, whether it mixes."""
    aside, every = inside_adapters(knowledge.model), knowledge.model.named_modules()
    layers = {name: module for name, module in every if isinstance(module, nn.Linear) and name not in aside}
    like = next(iter(observed.params.values()))
    probe = torch.zeros((2, *knowledge.input_shape), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        inputs = as_inputs(knowledge.model, probe)
        calls = calls_in_pass(knowledge.model, layers, observed.params, inputs, buffers=observed.buffers)
    return {
        name: (
            layer,
            sum(call.input.numel() // layer.in_features for call in calls[name]) // 2,
            mixes_examples(calls[name]),
        )
        for name, layer in layers.items()
        if name in calls
    }
