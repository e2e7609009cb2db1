"""What the gradient of the last bias reveals about the labels of a batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.search.labels import counted_shares, largest_remainder, two_rows
from seepage.base.nn import (
    as_inputs,
    called,
    captured_calls,
    forward,
    generator,
    in_mode,
    last_linear,
    vocabulary_of,
    without_hooks,
)
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_ZERO
from seepage.federation.clients.losses import loss_of
from seepage.federation.models.naming import tied_names
from seepage.federation.types import Knowledge

SIGN_SHARE = 0.1
"""Share of the largest entry below which a bias may have risen by weight decay alone, after steps of Adam, whose sizes
are alike."""
ZERO_SUM_SHARE = 1e-3
"""Share of the entries' absolute sum up to which their sum counts as zero."""
LABEL_DRAWS = 8
"""Draws of labels on which a loss of the user's own is tried."""
WIDE = 100.0
"""Range of made-up inputs at which outputs lie in [0, 1] only where they are chances."""
MOST_PLACES = 2**11
"""Labels up to which counts are told apart."""
OFF_WHOLE = 0.2
"""How far counts of labels may be from whole numbers."""
FALSE_ALARM = 1e-6
"""Chance of counts that come out whole and are none."""
MAX_NAMED_CLASSES = 12
"""Classes that a sentence names one by one."""
SOFTMAX_ONLY = ", if the loss is a softmax's and each label one class"
"""What is read off signs rests on this: no sum of sizes contradicts another loss."""
HARD_ONLY = ", if each label is one class and nothing was added"
"""What is read off sums of a softmax rests on this: those of soft labels and of control variates vanish, too."""


@dataclass(frozen=True)
class Head:
    """What the last fully connected layer is to the network's outputs, by one pass on made-up inputs.

    Attributes:
        softmax: Mean softmax `[classes]` of the outputs.
        kind: `outputs`: their softmax is that of what the layer returns, so the gradient of its bias is softmax minus
            label. `rises`: each output rises with its own entry alone, as behind a ReLU: a negative entry of that
            gradient still is of a class that is there. `other`: neither, so the gradient names no class.
    """

    softmax: Tensor
    kind: Literal["outputs", "rises", "other"]
    places: int = 1
    same: bool = False


def head_of(
    model: nn.Module,
    params: Mapping[str, Tensor],
    input_shape: tuple[int, ...],
    weight: str,
    *,
    buffers: Mapping[str, Tensor] | None = None,
    count: int = 2,
    training: bool = False,
    words: Tensor | None = None,
) -> Head:
    """What the layer with this weight is to the model's outputs.

    Args:
        model: The network.
        params: Its weights; of those not named its own are taken.
        input_shape: Shape of one example.
        weight: Name of the layer's weight.
        buffers: As of `forward`.
        count: Made-up inputs: noise at several brightnesses.
        training: Whether batch norm takes its statistics from them.
        words: `[v]` how often each token stands in the made-up inputs, up to a factor; None: all alike.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU())
    >>> head_of(net, {}, (2, 2), "1.weight").kind, head_of(net[:2], {}, (2, 2), "1.weight").kind
    ('rises', 'outputs')
    """
    layer = weight.rpartition(".")[0]
    state = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *params.items())}
    tied, own_layer = tied_names(model), model.get_submodule(layer)
    prefix = f"{layer}." if layer else ""
    # Of a weight that an embedding shares the first name; one that is made of others, as a weight norm's, has none.
    own = {name: tied.get(prefix + name, prefix + name) for name, _ in own_layer.named_parameters()}
    for name in own.values():
        state[name] = state[name].clone().requires_grad_()
    noise = torch.rand((count, *input_shape), generator=generator(0, "steps"), dtype=torch.float64)
    levels = torch.linspace(0.1, 0.9, count, dtype=torch.float64).reshape(-1, *[1] * len(input_shape))
    probes = (levels + 0.4 * (noise - 0.5)).clamp(0, 1).to(next(iter(state.values())))
    inputs = as_inputs(model, probes)
    if words is not None:
        draws = torch.multinomial(words.cpu(), inputs.numel(), replacement=True, generator=generator(0, "words"))
        inputs = draws.view(inputs.shape).to(inputs)
    with torch.enable_grad(), in_mode(model, training=training), captured_calls(model, [layer]) as calls:
        outputs = forward(model, state, inputs, buffers=None if buffers is None else dict(buffers))
    softmax = outputs.detach().double().softmax(1).transpose(0, 1).flatten(1)  # [classes, examples and places]
    mean, found, places = softmax.mean(1), calls.get(layer, []), outputs[0, 0].numel()
    if len(found) != 1 or found[0].output.numel() != outputs.numel() or not outputs.requires_grad:
        return Head(mean, "other")
    # Not what the layer returned, which a ReLU may have overwritten, and a hook permuted.
    with torch.no_grad(), in_mode(own_layer, training=False), without_hooks(own_layer):
        again = called(own_layer, {name: state[known] for name, known in own.items()}, found[0].input.detach())
    returned = again.double().flatten(0, -2)  # [n T, classes]
    if returned.shape == softmax.T.shape and torch.allclose(returned.softmax(1), softmax.T, atol=FLOAT32_NETWORK):
        values = outputs.detach().double().transpose(0, 1).flatten(1).T
        return Head(mean, "outputs", places, torch.allclose(returned, values, atol=FLOAT32_NETWORK))
    # v^T J = v * (1^T J) for a v at random: J is diagonal.
    weights = torch.rand(outputs.shape, generator=generator(0, "slopes")).to(outputs)
    reads = found[0].output
    if reads.shape != outputs.shape:
        return Head(mean, "other")
    (slopes,) = torch.autograd.grad(outputs, reads, torch.ones_like(outputs), retain_graph=True)
    (mixed,) = torch.autograd.grad(outputs, reads, weights)
    alone = torch.allclose(mixed, weights * slopes, atol=FLOAT32_NETWORK)
    rises = alone and bool((slopes >= 0).all())
    return Head(mean, "rises" if rises else "other")


def names_labels(loss: str, model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Whether a loss of the user's own pulls up the outputs of labels alone, as a cross-entropy does.

    Its gradient in the network's own outputs, at labels that are drawn, may be below zero only for classes among them.
    Class numbers are tried first, one for each place, then a yes or no for each class. And so at drawn outputs, of
    chances within [0, 1], as an absolute error pulls up outputs below zero whatever their labels.

    >>> names_labels("torch.nn.functional:cross_entropy", nn.Linear(3, 4), (3,))
    True
    >>> names_labels("torch.nn.functional:mse_loss", nn.Linear(3, 4), (3,))
    False
    """
    draw, other = generator(0, "probe"), generator(0, "outputs")
    noise = torch.rand((2, *input_shape), generator=draw, dtype=torch.float64).to(next(model.parameters()))
    with torch.no_grad(), in_mode(model, training=False):
        outputs = called(model, {}, as_inputs(model, noise)).detach()
        spread = noise if vocabulary_of(model) is not None else WIDE * (noise - 0.5)
        wide = called(model, {}, as_inputs(model, spread)).detach()
    chances = bool(((wide >= 0) & (wide <= 1)).all())
    classes = outputs.shape[1]
    shapes = ((len(outputs), *outputs.shape[2:]), tuple(outputs.shape))
    for shape in shapes:
        try:
            kept = []
            for place in range(LABEL_DRAWS):
                some = torch.randperm(classes, generator=draw)[: max(1, classes // 2)]
                held = some[torch.randint(len(some), shape, generator=draw)].to(outputs.device)
                if shape == shapes[0]:
                    labels, present = held, torch.isin(torch.arange(classes, device=held.device), held)
                else:
                    labels = (torch.rand(shape, generator=draw) < 0.2).to(outputs)
                    present = labels.transpose(0, 1).flatten(1).any(1)
                drawn = torch.rand(outputs.shape, generator=other).to(outputs)
                drawn = drawn if chances else outputs + 2 * drawn - 1
                logits = (drawn if place % 2 else outputs.clone()).requires_grad_()
                (slope,) = torch.autograd.grad(loss_of(loss, logits, labels), logits)
                lowest = slope.transpose(0, 1).flatten(1).min(1).values
                kept.append(bool((lowest[~present] >= -FLOAT32_ZERO * float(slope.abs().max())).all()))
                kept[-1] &= bool(slope.isfinite().all() & (lowest < 0).any())
            return all(kept)
        except Exception:
            continue
    return False


@dataclass(frozen=True)
class LabelLeak:
    """What the last layer says of the labels.

    Attributes:
        present: Classes that are in the batch: only these have a negative entry in the last bias gradient.
        counts: Estimated examples, or labels at places, of each class, where the update is one step of a loss that is
            fully explained and the batch size is known; None: unknown.
        off_whole: Largest distance of a count from a whole number before rounding, 0 to 0.5; None without counts.
        least: Examples of each class at the least, whatever the outputs were; None without counts.
        most: The same at the most; None where the batch size was inferred, as there may be more examples.
        sound: Whether the entries of the bias gradient sum to zero, as those of an unchanged cross-entropy gradient
            do; where only their signs are left, whether there are both, and no more that rose than examples; else
            `present` and `counts` are not to be believed.
        complete: Whether no other class can be there: no more examples than classes named, or than proved ones.
        places: Labels in all, where an example has many, one at each place, and their counts come out whole; else None.
        multiple: All of these counts may be so many times more, or fewer.
        shares: Least share of all labels that each class has, where an example has many; None: not known.
        signed: Only signs are left, so that no sum says that the loss is a softmax's.
        condition: What has to hold for the classes to be labels, where nothing proves it, as the end of a sentence.
    """

    present: tuple[int, ...]
    counts: tuple[int, ...] | None
    off_whole: float | None
    sound: bool
    least: tuple[int, ...] | None = None
    most: tuple[int, ...] | None = None
    complete: bool = False
    places: int | None = None
    multiple: bool = False
    shares: tuple[float, ...] | None = None
    signed: bool = False
    condition: str = ""

    @property
    def believed(self) -> bool:
        """Whether it names classes that can be believed."""
        return self.sound and bool(self.present)

    @property
    def source(self) -> str | None:
        """The classes, with what is proved of their counts, and where they were read; None where it names none."""
        if not self.believed:
            return None
        first = self.present[:MAX_NAMED_CLASSES]
        named = [f"{c}{self._interval(c)}" for c in first]
        more = f" and {len(self.present) - len(first)} more" if len(self.present) > len(first) else ""
        kind = "class" if len(self.present) == 1 else "classes"
        others = "" if self.complete else ", and perhaps others"
        whole = f", {self.places} labels in all, whose counts come out whole" * bool(self.places)
        whole += ", or all times one number" * self.multiple
        return f"{kind} {', '.join(named)}{more}{others}, from the last bias{whole}{self.condition}"

    @property
    def words(self) -> str:
        """The classes, with their counts where these are known."""
        if not self.sound:
            return "the last bias gradient was changed, or is no cross-entropy's; nothing is read off it"
        one = len(self.present) == 1
        words = (
            f"class{'' if one else 'es'} {', '.join(map(str, self.present)) or 'none'} {'is' if one else 'are'} there"
        )
        if self.counts is None or self.off_whole is None:
            return words + self.condition
        counts, sure = (
            ", ".join(f"{count} of class {name}" for name, count in enumerate(numbers) if count)
            for numbers in (self.counts, self.least or ())
        )
        off = f"before rounding up to {self.off_whole:.2f} off a whole number"
        if self.shares is not None:
            return f"{words}; estimated counts, if each place has a label: {counts} ({off})"
        sure = f"{sure or 'none'}{self.condition}"
        return f"{words}; estimated counts: {counts} ({off}); at the least, whatever the outputs were: {sure}"

    def _interval(self, label: int) -> str:
        if self.places is not None and self.counts is not None:
            return f" ({self.counts[label]})"
        if self.shares is not None:
            return f" ({self.shares[label]:.0%} or more)"
        if self.least is None:
            return ""
        least = self.least[label]
        if self.most is None:
            return f" ({least} or more)"
        most = self.most[label]
        return f" ({least})" if least == most else f" ({least} to {most})"


def label_leak(
    gradient: Mapping[str, Tensor],
    knowledge: Knowledge,
    batch_size: int | None,
    rounding: float = 0.0,
    *,
    lower_bound: bool = False,
    longest: float = 1.0,
    alike: tuple[Tensor, int] | None = None,
    noise: float = 0.0,
) -> LabelLeak | None:
    """The labels of the batch behind a gradient of the mean cross-entropy, by its last bias `b` `[classes]`.

    With softmax values `p_i` and one-hot labels `y_i` of `n` examples, `dL/db = mean_i(p_i - y_i)`: an entry can be
    negative only for a class of the batch (Zhao et al. 2020, iDLG). Where the outputs are close to uniform,
    `n (1 / classes - dL/db)` is close to the count of each class. Whatever they are, the count is
    `sum_i p_i - n dL/db`, which is above `-n dL/db`, and all counts add up to n.

    Args:
        gradient: The update read as a gradient, by parameter.
        knowledge: What the attacker knows.
        batch_size: Examples behind it; None: unknown, or this is not one step of a loss that is fully explained; then
            nothing is counted.
        rounding: How far an entry may be off, where the returned weights were rounded.
        lower_bound: There may be more examples than `batch_size`.
        longest: The gradient may be so many times too long: Nesterov's momentum m makes a first step `1 + m` times as
            long. What is proved of counts holds for any length up to it.
        alike: Softmax values `[classes]` that all examples have, where the last layer's weights are zero, and a number
            of examples. That counts come out whole says that this is one step of the loss.
        noise: Standard deviation of an entry's error, as the sums of the last weight's columns show it.

    Returns:
        None without such a bias, or where its gradient is zero.
    """
    bias = _last_bias(gradient, knowledge)
    if bias is None or not (largest := float(bias.abs().max())) > 0:
        return None
    # The sum of errors of deviation s has s sqrt(classes): beside noise an entry must stand out of what the sum shows.
    shown = DEVIATIONS * max(noise, abs(float(bias.sum())) / math.sqrt(len(bias)))
    present = tuple(torch.nonzero(bias < -max(FLOAT32_ZERO * largest, rounding, shown)).flatten().tolist())
    sound = abs(float(bias.sum())) <= max(ZERO_SUM_SHARE * float(bias.abs().sum()), rounding * len(bias))
    # A mean of the errors of one sigmoid lies between -1 and 1.
    sound &= not knowledge.client.one_logit or largest <= 1
    if alike is not None:
        shares = alike[1] * (alike[0].to(bias) - bias)
        off_whole, exact = float((shares - shares.round()).abs().max()), tuple(shares.round().long().tolist())
        if off_whole <= alike[1] * max(FLOAT32_NETWORK, rounding) and min(exact) >= 0:
            there = tuple(label for label, count in enumerate(exact) if count)
            return LabelLeak(there, exact, off_whole, True, exact, exact, complete=True)
    if batch_size is None:
        return LabelLeak(present, None, None, sound)
    shares = counted_shares(bias, batch_size)
    counts = largest_remainder(shares, batch_size)
    off_whole = float((shares - shares.round()).abs().max())
    # A count above this is proved by more than rounding. Labels that are smoothed are nearer to uniform, not further.
    sure = -batch_size * (bias + max(FLOAT32_ZERO * largest, rounding)) / longest
    least = sure.ceil().clamp(min=0).long()
    if int(least.sum()) > batch_size or float(bias.clamp(min=0).sum()) > 1 + FLOAT32_ZERO:
        return LabelLeak(present, None, None, sound)  # no mean of softmax minus label is so large: another rate
    most = None if lower_bound else tuple((least + batch_size - int(least.sum())).tolist())
    proved = not lower_bound and int(least.sum()) == batch_size
    return LabelLeak(present, tuple(counts.tolist()), off_whole, sound, tuple(least.tolist()), most, proved)


def at_places(
    leak: LabelLeak, bias: Tensor, head: Head, most: int | None, longest: float, rounding: float = 0.0
) -> LabelLeak:
    """The same with counts of labels at each place, or shares of them at the least.

    Of m labels at places of all examples `dL/db_c = mean p_c - count_c / m`, so that `count_c / m >= -dL/db_c`,
    whatever the outputs are; and with the mean softmax of the network on made-up inputs in the place of p, as of a
    network that is hardly trained or has many classes, `m (p - dL/db)` is a whole number for each class. Numbers m are
    tried: K counts above 0 all come within `off` of whole numbers by a chance of `(2 off)^K`. Where that proves no
    number, counts of a label at each place are an estimate, if they come near whole numbers.

    Args:
        leak: The classes.
        bias: `[classes]` the gradient of the last bias.
        head: The layer.
        most: Places of all examples, if known; some may have no label.
        longest: As of `label_leak`.
        rounding: As of `label_leak`.
    """
    mean = head.softmax.to(bias.device) - bias.double()
    found = list[tuple[int, Tensor, float]]()
    tried = range(1, min(MOST_PLACES if most is None else most, MOST_PLACES) + 1)
    for total in tried:
        counts = total * mean
        whole = counts.round()
        off, held = float((counts - whole).abs().max()), int((whole > 0).sum())
        if int(whole.sum()) != total or float(whole.min()) < 0 or off > OFF_WHOLE:
            continue
        if held * math.log(max(2 * off, 1e-9)) + math.log(len(tried)) < math.log(FALSE_ALARM):
            found.append((total, whole.long(), off))
    if not found:
        shares = tuple(((-bias.double() - rounding) / longest).clamp(min=0).tolist())
        guess = (most or 0) * mean
        off, whole = float((guess - guess.round()).abs().max()), guess.round().long()
        if most is None or off > OFF_WHOLE or int(whole.sum()) != most or int(whole.min()) < 0:
            return replace(leak, shares=shares)
        return replace(leak, shares=shares, counts=tuple(whole.tolist()), off_whole=off)
    # Counts that have a divisor are whole for fewer labels, too; a label at each place is the rule.
    total, counts, off = next((one for one in found if one[0] == most), found[0])
    present = tuple(torch.nonzero(counts).flatten().tolist())
    own = tuple(counts.tolist())
    return replace(
        leak, present=present, counts=own, off_whole=off, complete=True, places=total, multiple=len(found) > 1
    )


def map_leak(bias: Tensor, rounding: float = 0.0) -> LabelLeak:
    """The classes of maps by the bias `[classes]` of the convolution that makes them.

    Its gradient is the mean of softmax minus label over all places that have a label, and below zero only for a class
    that some of them have.
    """
    low = -max(FLOAT32_ZERO * float(bias.abs().max()), rounding)
    sound = abs(float(bias.double().sum())) <= ZERO_SUM_SHARE * float(bias.double().abs().sum()) + rounding * len(bias)
    return LabelLeak(tuple(torch.nonzero(bias < low).flatten().tolist()), None, None, sound)


def finding_leak(bias: Tensor, rounding: float | Tensor = 0.0) -> LabelLeak | None:
    """The findings behind the last bias of independent sigmoids, each with a cross-entropy of its own.

    With `w` the weight of those that are there, `dL/db_c = mean_i (p_ic (1 - y_ic) - w_c (1 - p_ic) y_ic)`, so that an
    entry is below zero only where somebody has the finding c; where few have it, it may be above zero all the same.

    Args:
        bias: `[classes]` the gradient of the last bias, up to a factor, or numbers of its signs.
        rounding: How far an entry may be off, or each.
    """
    if not (largest := float(bias.abs().max())) > 0:
        return None
    least = torch.as_tensor(rounding).to(bias).clamp(min=FLOAT32_ZERO * largest)
    present = tuple(torch.nonzero(bias < -least).flatten().tolist())
    return LabelLeak(present, None, None, sound=True)


def _last_bias(tensors: Mapping[str, Tensor], knowledge: Knowledge) -> Tensor | None:
    """`[classes]` the last layer's bias among tensors by name, in float64; None where it is not among them."""
    names = last_linear(knowledge.model, knowledge.num_outputs)
    if names is None or names[1] is None or names[1] not in tensors:
        return None
    bias = tensors[names[1]].double()
    # One logit z stands for the logits (0, z), whose gradients sum to zero whatever was done to z's.
    return two_rows(bias) if knowledge.client.one_logit else bias


def sums_to_zero(bias: Tensor, rounding: float) -> bool:
    """Whether a gradient of the last bias adds up to zero but for rounding to float32: that of the softmax does.

    That of a network under autocast to bfloat16 does so but for a thousandth, noise and other losses not at all.

    Args:
        bias: `[classes]`.
        rounding: How far the sum may be off, where it is a difference of rounded weights.
    """
    return abs(float(bias.double().sum())) <= FLOAT32_ZERO * float(bias.double().abs().sum()) + rounding


def signed_label_leak(
    direction: Mapping[str, Tensor], weights: Mapping[str, Tensor], knowledge: Knowledge, count: int | None
) -> LabelLeak | None:
    """The labels behind steps of an optimizer that keeps of a gradient hardly more than signs, such as Adam.

    The bias of a class that is in none of the batches has a gradient above zero at every step, its mean softmax value,
    and so have the running averages of such gradients that start at zero: it falls at every step. A bias that rose is
    of a class that is there. Others may be there, too: few among many, or learned in the first of several steps.
    One logit for two classes rises where the second class is there, and falls where the first is.

    A weight decay that is added to the gradient pulls every bias towards zero, and where softmax values are small that
    is all that Adam sees of it. So those that lay below zero and rose say something only where no more rose than there
    are examples; or, where their number is not known, about as large a share as of the others, which no decay lifts.

    Args:
        direction: Minus what the tensors changed by.
        weights: What was sent out.
        count: Labels behind the update; None: unknown.
        knowledge: What the attacker knows.

    Returns:
        Classes without counts; None without a last bias, or where it did not move. More than there are examples, of
        biases that no decay lifts, are no cross-entropy's.
    """
    bias, start = _last_bias(direction, knowledge), _last_bias(weights, knowledge)
    if bias is None or start is None or not (largest := float(bias.abs().max())) > 0:
        return None
    rose = bias < -SIGN_SHARE * largest
    low = start < 0
    lifted, others = int((rose & low).sum()), int((rose & ~low).sum())
    # Of the biases below zero no larger a share may rise than of those above it, with one more.
    most = others + (others + 1) * int(low.sum()) / max(1, int((~low).sum()))
    if lifted + others > (most if count is None else count):
        rose &= ~low
    present = tuple(torch.nonzero(rose).flatten().tolist())
    fits = count is None or len(present) <= count
    return LabelLeak(present, None, None, bool((bias > 0).any()) and fits, signed=True)


def label_findings(leak: LabelLeak | None, head: Sequence[str]) -> list[ClosedForm]:
    """What the last layer, of these trained tensors, says of the labels; it is of tensors where it can be believed."""
    if leak is None:
        return []
    counted = leak.counts is not None
    message, tensors = "the labels and about how many of each" if counted else "the labels", tuple[str, ...]()
    message += leak.condition
    limit = "Counts take the outputs for uniform, as they are before training."
    if leak.shares is not None:
        limit = "Counts take the mean output for that on made-up examples, as it is before training."
    if leak.believed:
        tensors = tuple(head)
    return [
        ClosedForm(
            name="labels",
            message=message,
            evidence=asdict(leak),
            limit=limit if counted else "Other classes may be there, too.",
            tensors=tensors,
            lines=(f"labels: {leak.words}",),
        )
    ]


def target_findings(
    names: tuple[str, str], gradient: Mapping[str, Tensor], params: Mapping[str, Tensor]
) -> list[ClosedForm]:
    """The values that a lone example was to have, under a squared error that is the mean of a last layer's outputs.

    Of outputs `o = W x + b` the bias's gradient is `g = 2 (o - y) / d` and the weight's `g x^T`: so x, o, and with them
    the targets `y = o - d g / 2`.

    Args:
        names: Of the last layer's weight `[d, k]` and bias.
        gradient: Of these, in its own size.
        params: Their values.
    """
    (weight, bias), (rows, g) = ([one[name].double() for name in names] for one in (params, gradient))
    values = (weight @ (g @ rows / (g @ g)) + bias - len(g) * g / 2).tolist()
    words = ", ".join(f"{value:.3g}" for value in values[:MAX_NAMED_CLASSES]) + ", …" * (len(g) > MAX_NAMED_CLASSES)
    message = f"the target{'s' * (len(g) > 1)} of its example: {words}, if one step of SGD at this rate made it"
    return [ClosedForm(name="targets", message=message, evidence={"targets": values}, tensors=names)]
