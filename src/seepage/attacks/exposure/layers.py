"""What the gradient of a fully connected layer reveals: its rank, and rows that are one example's input."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.linear import LinearLeak
from seepage.attacks.network import CERTIFYING_MISMATCH
from seepage.attacks.network.mixing_layer import mixes_examples
from seepage.attacks.reading.rows import MeasuredRows, RowGroup, agreeing_groups, clearness
from seepage.base.adapters import inside_adapters
from seepage.base.algebra.lowrank import CLEAR, INDEPENDENT, low_rank
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.nn import (
    as_inputs,
    called,
    calls_in_pass,
    captured_calls,
    forward,
    generator,
    in_mode,
    input_layers,
    last_linear,
    normalized_layers,
    vocabulary_of,
)
from seepage.base.rounding import FLOAT32_NETWORK, FLOAT64_FLOOR
from seepage.base.words import plural
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round

MAX_ROWS = 512
"""Rows of a layer that are decomposed, those of the largest gradient; more take longer than a round may."""
FEW_ENTRIES = 256
"""Entries of two rows that are compared before all of them are, which no row that differs is worth."""
MAX_ROW_DISTANCE = 3e-6
"""Relative distance of divided rows up to which they are one and the same input; rounding reaches about 1e-6."""
MAX_NOISY_DISAGREEMENT = 0.5
"""Rows of one example that disagree by more than this share no longer count as its noisy input."""
MAX_COMPARED = 2**24
"""Entries of a layer up to which its rows are compared within their errors."""
PROBED = 8
"""Made-up inputs at which the slopes of two examples are compared."""
ROUTED = 32
"""The same where some layers are experts, and made-up examples by which these are found."""
CHANCE_ALONE = 1e-3
"""Chance up to which rows that agree within their errors do so without being one input's."""
EXACT_SHARE = 1e-2
"""Most that an input may be off, as a share of its size, to be called exact: 40 dB, as everywhere."""
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
        more: What the rank leaves is more than rounding, or rows with unknown entries were left out.
        every: The rank is as high as the number of examples that somebody stated: no example is hidden by rounding.
        provided: What has to hold for its rank to count examples, in words; empty: it is known to hold.
        rated: Its weight and its bias are known to have moved by one rate, so that rows over biases are no multiples.
        part: Of a layer of `features` that reads some of the numbers of an example as they are: how many; else 0.
        of: How many an example has.
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
    more: bool = False
    every: bool = False
    provided: str = ""
    rated: bool = True
    part: int = 0
    of: int = 0

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
            and not (self.full or self.more)
            and not self.centered
        )

    @property
    def what(self) -> str:
        """What it reads, in words, as one of them."""
        if self.part:
            return f"vector of {self.part} of an example's {self.of} numbers"
        return "private example" if self.reads == "input" else "inner vector"

    @property
    def noisy(self) -> bool:
        """The rows are one example's input but for noise that is smaller than it."""
        return self.error is not None and not self.found and self.error < MAX_NOISY_DISAGREEMENT


def layer_findings(leaks: Sequence[LayerLeak]) -> Iterator[ClosedForm]:
    """Every layer with its rank, and what it reveals, of its weight and, where rows are divided by it, its bias."""
    inner = [one for one in leaks if one.reads == "positions"]
    folded = inner if len(inner) > MOST_LISTED else []
    for leak in leaks:
        more = ", or more" if leak.full or leak.more else ""
        rank = f"rank {leak.rank}{more}" if leak.rank else "rank hidden by the errors of its entries"
        reads = f"{leak.part} of an example's {leak.of} numbers" if leak.part else leak.reads
        words = f"{leak.layer or 'model'}: {rank}, {plural(leak.neurons, 'neuron')}, reads {reads}"
        if leak.accuracy is not None and not more:  # a rank that is no low one may be noise, beside these errors
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


def rests_on(provided: str, *, rated: bool) -> str:
    """What rows over biases rest on, as the end of a sentence: a step along the gradient, at one rate.

    Where nothing proves it, each is one multiple of its example, as under LARS, or none, as under Adafactor.

    Args:
        provided: As of a `LayerLeak`.
        rated: Weight and bias are known to have moved by one rate.

    >>> rests_on(", if the optimizer is SGD", rated=False)
    ", if the optimizer is SGD and biases have the weights' rate"
    """
    one_rate = "biases have the weights' rate"
    return "" if rated else f"{provided} and {one_rate}" if provided else f", if {one_rate}"


def _revealed(leak: LayerLeak) -> Iterator[ClosedForm]:
    one, what = leak.what, leak.what.replace("vector", "vectors", 1) if leak.reads != "input" else "private examples"
    divided = leak.found > 0 or leak.noisy
    tensors = tuple(filter(None, (leak.weight, leak.bias if divided else None)))
    if leak.found:
        yield ClosedForm(
            name="exact-rows",
            message=f"{leak.found} {what if leak.found > 1 else one} exactly, row by row"
            f"{rests_on(leak.provided, rated=leak.rated)}",
            evidence={"found": leak.found, "part": leak.part},
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
            message=f"the span of {'its' if leak.every else 'at least'} {leak.examples} {what}, fewer than its "
            f"{leak.neurons} neurons: unmixing (cocktail_party) applies{leak.provided}",
            evidence={"rank": leak.rank, "neurons": leak.neurons, "examples": leak.examples},
            limit="Whether unmixing finds them is for the attack to show.",
            tensors=tensors,
        )


def hidden_layers(observed: Round, knowledge: Knowledge) -> list[LayerLeak]:
    """The same layers where entries are known too roughly for any of it."""
    first = {one.weight for one in input_layers(knowledge.model, observed.params, knowledge.input_shape)}
    last = last_linear(knowledge.model, knowledge.num_outputs)
    leaks = []
    for name, (module, positions, mixes) in _linear_layers(observed, knowledge).items():
        prefix = f"{name}." if name else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if weight in observed.update.tensors:
            inner: Literal["positions", "features"] = "positions" if positions > 1 else "features"
            reads = "input" if weight in first else inner
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
    observed: Round,
    knowledge: Knowledge,
    gradient: Mapping[str, Tensor],
    quantized: Collection[str] = (),
    *,
    loss_known: bool = True,
    size_known: bool = True,
) -> list[LayerLeak]:
    """Every fully connected layer whose weight was sent, in the model's order.

    Args:
        observed: The round.
        knowledge: What the server knows.
        gradient: The update read as a gradient; only its direction counts here.
        quantized: Tensors whose entries lie on few levels, so that equal rows prove nothing.
        loss_known: The loss gives examples slopes of directions of their own, as a softmax does, and a squared error.
        size_known: Somebody stated the number of examples; else it was taken from the rank of a layer.
    """
    last = last_linear(knowledge.model, knowledge.num_outputs)
    first = {one.weight for one in input_layers(knowledge.model, observed.params, knowledge.input_shape)}
    centered = set[str]()
    if knowledge.client.batch_coupled(knowledge.model):
        model, shape = knowledge.model, knowledge.input_shape
        centered = set(normalized_layers(model, observed.params, shape, buffers=observed.buffers).values())
    leaks, layers = [], _linear_layers(observed, knowledge)
    ending = None if last is None else last[0].rpartition(".")[0]
    inner = [name for name, (_, positions, _) in layers.items() if positions == 1 and name != ending]
    alike = slopes_alike(observed, knowledge, inner) if inner else {}
    parts = _columns_read(observed, knowledge, [name for name in inner if f"{name}.weight" not in first])
    for name, (module, positions, mixes) in layers.items():
        prefix = f"{name}." if name else ""
        weight, bias = f"{prefix}weight", f"{prefix}bias"
        if weight not in gradient or not bool(gradient[weight].any()) or alike.get(name) == "erased":
            continue  # what was not trained has no rank
        ends = last is not None and last[0] == weight
        reads: Literal["input", "features", "positions"] = "positions" if positions > 1 else "features"
        if weight in first:
            reads = "input"
        rows = gradient[weight].double()
        shifts = gradient[bias].double() if module.bias is not None and bias in gradient else None
        measured = _measured(observed, knowledge, weight, None if shifts is None else bias)
        rank, full, more = rank_of(rows, shifts, ends, measured)
        found, error = 0, None
        # At weights of zero examples of one label have one slope.
        full |= ends and not bool(observed.params[weight].any())
        # A mixture looks like an example where slopes of any examples are multiples of one another.
        mixed = alike.get(name) == "all" or (alike.get(name) == "of one output" and not loss_known) or (ends and full)
        if name in centered:
            pass  # rows are divided by rounding
        elif shifts is not None and positions == 1 and observed.batch_size == 1 and (size_known or not mixed):
            error = _disagreement(rows, shifts)
            found = int(error is not None and error <= CERTIFYING_MISMATCH)
        elif mixed:
            pass
        elif shifts is not None and positions == 1 and not ends and knowledge.num_classes > 2:
            shared = 0 if weight in quantized else closed_form(rows, shifts)
            if measured is not None and weight not in quantized:
                shared = max(shared, read_alone(measured))
            found = min(shared, rank, observed.batch_size or rank)
        sent = bias if shifts is not None else None
        m, d = rows.shape
        leak = LayerLeak(
            name, weight, sent, reads, m, d, rank, full, found, error, ends, name in centered, mixes=mixes, more=more
        )
        every, total = size_known and leak.examples == observed.batch_size, math.prod(knowledge.input_shape)
        leak = replace(leak, every=every, part=parts.get(name, 0), of=total if name in parts else 0)
        leaks.append(replace(leak, accuracy=_accuracy(observed, knowledge, leak)))
    return leaks


def _columns_read(observed: Round, knowledge: Knowledge, names: Sequence[str]) -> dict[str, int]:
    """Of the layers that read nothing but numbers of an example as they are, by name: how many; of rows of a table."""
    if len(knowledge.input_shape) != 1 or not names:
        return {}
    draw, like = generator(0, "columns"), next(iter(observed.params.values()))
    low, high = knowledge.value_range
    probes = low + (high - low) * torch.rand((PROBED, *knowledge.input_shape), generator=draw, dtype=torch.float64)
    with torch.no_grad():
        inputs = as_inputs(knowledge.model, probes.to(like))
        calls = calls_in_pass(knowledge.model, names, observed.params, inputs, buffers=observed.buffers)
    inputs = inputs.to(like)[:, (inputs != inputs[:1]).any(0)]  # [p, d], columns that differ between the examples
    found = dict[str, int]()
    for name, own in calls.items():
        read = own[0].input if len(own) == 1 else inputs[:0]
        if read.ndim == 2 and len(read) == PROBED and read.shape[1] * inputs.shape[1] <= MAX_COMPARED // PROBED:
            same = (read[:, :, None] == inputs[:, None]).all(0)  # [e, d]: entry j of all examples is their column c
            found |= {name: read.shape[1]} if bool(same.any(1).all()) else {}
    return found


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
            same = gaps <= MAX_ROW_DISTANCE  # itself among them
            if int(same.sum()) >= LEAST_ALIKE:
                found += not _of_one_size(ratios[row], shifts[live[same]])
                left &= gaps > LinearLeak.same
    return found


def slopes_alike(
    observed: Round, knowledge: Knowledge, names: Sequence[str]
) -> dict[str, Literal["all", "of one output", "none", "erased"]]:
    """Of layers by name: whether the slopes of two examples at three neurons or more are multiples of one another.

    Then rows that mix the two agree, and no one can tell a mixture from an example by its rows. `of one output`: where
    both are pulled along the same direction of the outputs, as by a loss of one output each, behind one layer and
    piecewise linear activations. `all`: along any two, as of a network that makes one number first. By made-up inputs.
    `erased`: the outputs are the same for all of them, as behind a norm of single values, so its slopes are rounding.
    """
    draw = generator(0, "slopes")
    like = next(iter(observed.params.values()))
    probes = torch.rand((PROBED, *knowledge.input_shape), generator=draw, dtype=torch.float64).to(like)
    low, high = knowledge.value_range
    inputs = as_inputs(knowledge.model, low + (high - low) * probes)
    found, unseen = _alike_at(observed, knowledge, names, inputs, draw)
    if unseen:
        found |= dict.fromkeys(unseen, "all")  # of experts that get none of these either nothing is known
        found |= _alike_at(observed, knowledge, unseen, _routes(observed, knowledge), draw)[0]
    return found


def _alike_at(
    observed: Round, knowledge: Knowledge, names: Sequence[str], inputs: Tensor, draw: torch.Generator
) -> tuple[dict[str, Literal["all", "of one output", "none", "erased"]], list[str]]:
    """What `slopes_alike` finds by these examples, and the layers that fewer than two of them reached."""
    every = {**dict(knowledge.model.named_parameters()), **observed.params}
    state = {name: p.detach().requires_grad_(p.is_floating_point()) for name, p in every.items()}
    with torch.enable_grad(), in_mode(knowledge.model, training=False), captured_calls(knowledge.model, names) as calls:
        outputs = forward(knowledge.model, state, inputs, buffers=observed.buffers)
    found: dict[str, Literal["all", "of one output", "none", "erased"]] = {}
    unseen = [name for name in names if not calls.get(name)]
    seen = {name: calls[name][0].output for name in names if len(calls.get(name, [])) == 1}
    seen = {name: output for name, output in seen.items() if output.requires_grad}
    if not seen or not outputs.requires_grad:
        return found, unseen
    erased = _alike(outputs, FLOAT32_NETWORK) and _erased(knowledge.model, every, inputs)
    several = (torch.rand(outputs.shape, generator=draw, dtype=torch.float64) - 0.3).to(outputs)
    ways = several[:1].expand_as(outputs), several
    slopes = [torch.autograd.grad(outputs, [*seen.values()], w, retain_graph=True, allow_unused=True) for w in ways]
    for name, same, mixed in zip(seen, *slopes, strict=True):
        if same is not None and mixed is not None and len(same) < 2:
            unseen.append(name)  # an expert with one example, which is no two
        elif same is not None and mixed is not None:
            along = [_multiples(slope.double().flatten(1)) for slope in (same, mixed)]
            found[name] = "all" if all(along) else "of one output" if along[0] else "none"
            found[name] = "erased" if erased and bool(same.any()) else found[name]
    return found, unseen


def _erased(model: nn.Module, params: Mapping[str, Tensor], inputs: Tensor) -> bool:
    """Whether the outputs are the same for all inputs, in float64, where rounding cannot be taken for a difference."""
    state = {
        n: t.detach().double() if t.is_floating_point() else t for n, t in (*params.items(), *model.named_buffers())
    }
    try:
        with torch.no_grad(), in_mode(model, training=False):
            outputs = called(model, state, inputs.double() if inputs.is_floating_point() else inputs)
    except RuntimeError:  # it takes no such numbers
        return False
    return _alike(outputs, FLOAT64_FLOOR)


def _alike(outputs: Tensor, share: float) -> bool:
    return bool((outputs - outputs[:1]).abs().max() <= share * outputs.abs().max())


def _multiples(slopes: Tensor) -> bool:
    """Whether some two of the slopes `[n, m]` have one quotient at many neurons, of those where both are live.

    Piecewise linear activations leave a few quotients, and three that agree by chance are few.
    """
    for i in range(len(slopes) - 1):
        both = (slopes[i] != 0) & (slopes[i + 1] != 0)
        quotient = (slopes[i, both] / slopes[i + 1, both])[:MAX_ROWS]
        near = (quotient[:, None] / quotient - 1).abs() <= FLOAT32_NETWORK
        if len(quotient) and int(near.sum(1).max()) >= max(LEAST_ALIKE, len(quotient) / 8):
            return True
    return False


def read_alone(rows: MeasuredRows) -> int:
    """How many inputs `closed_form` finds where entries are known to an error each, as between two checkpoints.

    Rows that agree within their errors on one input are its own; mixtures agree by chance. Two rows whose entries are
    c times their errors agree if their shares of a second input differ by less than about `p = 1 / c`. Of k rows whose
    inputs are within a distance g of that one, as shares of its size, about `k! / (r! (k - r)!) (p / g)^(r - 1)` groups
    of r agree by chance, and the densest neighborhood counts: mixtures of two inputs may all be near one another. A
    second input below these shares puts the first one off by as much, and the entries' errors by theirs: both must be
    small.

    >>> draw = torch.Generator().manual_seed(0)
    >>> x, s = torch.rand(2, 50, generator=draw).double(), torch.rand(8, 2, generator=draw).double()
    >>> s[:4, 1] = 0.0
    >>> rows = torch.cat([s @ x, s.sum(1, keepdim=True)], 1)
    >>> [read_alone(MeasuredRows.of(rows, torch.full_like(rows, error))) for error in (1e-5, 1e-1)]
    [1, 0]
    """
    return len(_groups_alone(rows))


def _groups_alone(rows: MeasuredRows) -> list[RowGroup]:
    if rows.value.numel() > MAX_COMPARED:
        return []
    share = 1 / clearness(rows).clamp(min=1e-300)  # p of each row
    divided = rows.value[:, :-1] / rows.value[:, -1:]
    found = []
    for group in agreeing_groups(rows):
        size, off, r = group.example.norm(), group.spread.norm(), len(group.rows)
        beside = share < 1
        beside[group.rows] = False
        gaps = ((divided[beside] - group.example).norm(dim=1) / size).nan_to_num(torch.inf).clamp(max=1.0).sort().values
        many = r + 1 + torch.arange(len(gaps), dtype=gaps.dtype, device=gaps.device)
        worst = float(share[group.rows].max())
        logs = torch.lgamma(many + 1) - torch.lgamma(many - r + 1) - math.lgamma(r + 1) + (r - 1) * (worst / gaps).log()
        sure = r >= LEAST_ALIKE and (not len(gaps) or float(logs.max()) < math.log(CHANCE_ALONE))
        if sure and 2 * float(off / size) + 2 * group.scale_error + 2 * worst < EXACT_SHARE:
            found += [group] * (not _of_one_size(group.example, group.slopes))
    return found


def _of_one_size(example: Tensor, slopes: Tensor) -> bool:
    """Whether rows may be signs alone, which agree whatever the examples: they prove no example.

    A rule that divides each entry by its size leaves `W_jk = c sign(g_jk)`: entries of one size or zero, and rows of
    one size c. An example of black and white pixels has such entries too, in rows as different as its slopes; where all
    entries are one value, rows that were divided in different steps look so as well.
    """
    sizes, rows = example.abs() / example.abs().max(), slopes.abs() / slopes.abs().max()
    one_value = bool((example / example[0] - 1).abs().max() < EXACT_SHARE)
    return one_value or bool(((sizes < EXACT_SHARE) | (sizes > 1 - EXACT_SHARE)).all() and rows.min() > 1 - EXACT_SHARE)


def _measured(observed: Round, knowledge: Knowledge, weight: str, bias: str | None) -> MeasuredRows | None:
    """A layer's rows with their errors, the bias last; None of a gradient that was sent, whose errors are float32's."""
    update = observed.update
    if update.kind == "gradient" and update.rate is None and update.step is None:
        return None
    try:
        measured = observed.measured(knowledge.client, [weight] if bias is None else [weight, bias])
    except SeepageError:
        return None  # nothing tells the scale of several steps
    if bias is not None:
        return MeasuredRows.of_layer(measured, weight, bias)
    return MeasuredRows.of(measured.value[weight].double(), measured.error[weight].double())


def rank_of(rows: Tensor, shifts: Tensor | None, ends: bool, measured: MeasuredRows | None) -> tuple[int, bool, bool]:
    """Independent inputs, whether they are as many as there can be, and whether what is left is more than rounding.

    The bias counts as one more entry of every input, a one.
    """
    whole = rows if shifts is None else torch.cat([rows, shifts[:, None]], 1)
    error = torch.zeros_like(whole)
    if measured is not None:
        whole, error = measured.value, measured.error
    # The gradient is slopes^T [m, n] times inputs [n, 1 + d]: its rank is the number of independent examples.
    live, columns = whole.abs().sum(1) > 0, whole.abs().sum(0) > 0
    known = live & error.isfinite().all(1)  # of a row that was cut off nothing says how it would go on
    left_out = bool((live & ~known).any())
    whole, error = whole[known][:, columns], error[known][:, columns]
    if not whole.numel():
        return 0, False, left_out
    some = whole.norm(dim=1).argsort(descending=True, stable=True)[:MAX_ROWS]
    whole, error = whole[some], error[some]
    # Rows of the layer of the classes sum to zero, as softmax minus label does: one less is independent.
    found, most = low_rank(whole), min(len(whole) - ends, whole.shape[1])
    # The largest singular value of independent errors is about that of their largest row and column together.
    noise = float(error.norm(dim=1).max() + error.norm(dim=0).max())
    rank = min(found.rank, int((found.values > noise).sum()))
    above = int((found.values > CLEAR * max(noise, INDEPENDENT * float(found.values[0]))).sum())
    return rank, rank >= most, left_out or above > rank


def _linear_layers(observed: Round, knowledge: Knowledge) -> dict[str, tuple[nn.Linear, int, bool]]:
    """Each fully connected layer that a pass goes through, the vectors that it reads per example, whether it mixes."""
    aside, every = inside_adapters(knowledge.model), knowledge.model.named_modules()
    layers = {name: module for name, module in every if isinstance(module, nn.Linear) and name not in aside}
    like = next(iter(observed.params.values()))
    probe = torch.zeros((2, *knowledge.input_shape), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        inputs = as_inputs(knowledge.model, probe)
        calls = calls_in_pass(knowledge.model, layers, observed.params, inputs, buffers=observed.buffers)
        routed = _routed(observed, knowledge, [name for name in layers if name not in calls])
    found = {
        name: (
            layer,
            sum(call.input.numel() // layer.in_features for call in calls[name]) // 2,
            mixes_examples(calls[name]),
        )
        for name, layer in layers.items()
        if name in calls
    }
    found |= {name: (layers[name], vectors // layers[name].in_features, False) for name, vectors in routed.items()}
    return {name: found[name] for name in layers if name in found}


def _routed(observed: Round, knowledge: Knowledge, names: Sequence[str]) -> dict[str, int]:
    """Numbers that each of these layers reads of one example, of experts to which some examples are sent; else none."""
    if not names:
        return {}
    found, model, inputs = dict[str, int](), knowledge.model, _routes(observed, knowledge)
    if calls_in_pass(model, names, observed.params, inputs, buffers=observed.buffers):
        for one in inputs.split(1):
            calls = calls_in_pass(model, names, observed.params, one, buffers=observed.buffers)
            for name, own in calls.items():
                found[name] = max(found.get(name, 0), sum(call.input.numel() for call in own))
    return found


def _routes(observed: Round, knowledge: Knowledge) -> Tensor:
    """Made-up examples that go different ways in a network of experts: as wide as standardized ones, or any words."""
    probes = torch.rand((ROUTED, *knowledge.input_shape), generator=generator(0, "routes"), dtype=torch.float64)
    words = vocabulary_of(knowledge.model) is not None
    wide = probes if words else 3 * math.sqrt(12) * (probes - 0.5)
    return as_inputs(knowledge.model, wide.to(next(iter(observed.params.values()))))
