"""Convert captured files (two checkpoints, or weights and a gradient) to an `observed/` folder for the attacks."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from seepage.api import observe
from seepage.attacks.exposure import UpdateAnalysis, sent_words
from seepage.attacks.exposure.analysis import (
    ANOTHER_RATE,
    ASSUMED_LOSS,
    FEWEST_VALUES,
    HALF,
    HALF_PRECISION,
    OPTIMIZER,
    OTHER_OUTPUTS,
    UNKNOWN_LOSS,
    UNKNOWN_RATE,
)
from seepage.attacks.exposure.balance import ONE_STEP, Balance, balance_of, every_rate
from seepage.attacks.exposure.decay import WeightDecay, decay_of_directions, infer_weight_decay
from seepage.attacks.exposure.inference import UNSHOWN_STEPS, infer_size, infer_steps, rate_doubt
from seepage.attacks.exposure.labels import label_leak, sums_to_zero
from seepage.attacks.exposure.reading import OneStep
from seepage.attacks.exposure.rules import Adaptive, Explained, adaptive_step, along_gradient, sgd_words, vanishing_sums
from seepage.attacks.exposure.running_statistics import (
    STILL,
    BatchStatistics,
    batch_statistics,
    scale_free,
    shown_range,
    statistics_words,
    stood_still,
)
from seepage.attacks.network.outputs import outputs_of
from seepage.audit.capture import NORMALIZATION, VALUES, Capture, some
from seepage.audit.captured_network import UNTOLD, find_network
from seepage.audit.caveats import OPTIMIZERS
from seepage.audit.recipe.parts import problems_of
from seepage.audit.values import Range, ValuesShown, shown_values
from seepage.base.nn import as_inputs, generator, in_mode, last_linear, logits_in, output_shape, vocabulary_of
from seepage.base.registry import models
from seepage.base.schema import Finding
from seepage.base.storage import make_private
from seepage.base.words import plural
from seepage.errors import SeepageError, short
from seepage.federation.clients import FedAvg, FedSGD, OwnStep, gradient_rule, make_client
from seepage.federation.clients.fedavg import MOST_STEPS
from seepage.federation.clients.losses import LOSSES
from seepage.federation.clients.one_step import KEPT
from seepage.federation.measured import Step
from seepage.federation.models.naming import UNNAMED, in_own_names
from seepage.federation.models.normalize import classes_second
from seepage.federation.models.trial import Untaken, own_faults, sigmoid_words, tried
from seepage.federation.models.weights import load_weights, read_state
from seepage.federation.sent_tensors import check_finite
from seepage.federation.transcript.foreign import check_batch_size
from seepage.federation.transcript.recorded import save_transcript
from seepage.federation.types import Architecture, ClientUpdate, Tensors, Transcript, Update
from seepage.measure.metrics.image import is_image

Search = Callable[[Callable[[Range], Transcript]], ValuesShown | None]
"""Looks for the range of values, by a transcript with inputs of any."""
ARRAYS = "arrays"
"""Name of the fact that arrays have no names."""


NO_SOFTMAX = "assumed to be cross_entropy, whose last bias adds up to zero without noise, and this does not: --loss"
"""What is said of a loss that nobody stated where the update contradicts the one that is assumed."""


def _own_rates(balance: Balance, model: nn.Module, update: Update, outputs: int) -> tuple[dict[str, float], bool]:
    """The rate of each tensor over that of the last bias, or of the first tensor where nothing tells the last bias's.

    And whether that is so, as then nothing tells the scale of the gradient either.
    """
    names, last = list(update.tensors), last_linear(model, outputs)
    found = every_rate(balance.rates, names, None if last is None else last[1] or last[0])
    return (found, False) if found is not None else (dict(balance.rates), True)


def _half(before: Tensors, after: Tensors) -> str | None:
    """The format of half precision that all returned weights are of, where those that were sent out are not."""
    names = [name for name in before if name in after and after[name].is_floating_point()]
    for form in (torch.float16, torch.bfloat16):
        fits = [torch.equal(after[name].to(form).double(), after[name].double()) for name in names]
        if fits and all(fits) and any(not torch.equal(before[n].to(form).double(), before[n].double()) for n in names):
            return str(form).removeprefix("torch.")
    return None


def observe_files(
    capture: Capture, folder: Path, *, needs_rate: bool = True, search: Search | None = None
) -> list[str]:
    """Write an `observed/` folder from captured files and return notes about them for the reader.

    Facts that are not given are inferred from the update where it determines them: local steps or the learning rate
    from the gradient of the last bias, weight decay from what no gradient moves, and it is taken out, the batch size
    from the rank of the layers' gradients. `knowledge.json` lists them under `inferred`.

    Args:
        capture: The files and what is known.
        folder: Where to write; must not contain a recording already.
        needs_rate: Whether a learning rate that nothing tells is an error; else the update is read up to a factor.
        search: Looks for the range of pictures that nobody stated, where rows of the first layer show none.

    Raises:
        SeepageError: For files that cannot be read or do not fit the model, and a client rule that contradicts them.
    """
    with own_faults(capture.architecture.use):
        return _observe(capture, folder, needs_rate=needs_rate, search=search)


def _observe(
    capture: Capture, folder: Path, *, needs_rate: bool, search: Search | None, shown: Mapping[str, str] | None = None
) -> list[str]:
    given, client, architecture, input_shape = capture, capture.client, capture.architecture, capture.input_shape
    if (folder / "knowledge.json").exists():
        raise SeepageError(f"{folder} already holds a recorded update; choose another folder with --out")
    for problem in problems_of(client, "client"):
        raise SeepageError(f"{problem}; correct --set client.OPTION=VALUE")
    classes = capture.num_classes
    if min(1 if classes is None else classes, *(input_shape or (1,)), 1) < 1:
        raise SeepageError(f"--shape and --classes must be from 1 up, got {input_shape} and {classes}")
    _check_rule(capture)
    if isinstance(make_client(client).per_client, OwnStep):
        raise SeepageError(
            f"the training step {short(client.use)} is run to record, and these files hold what a client sent already; "
            "leave --client out, or say how it was made: --client fedavg:lr=0.1,steps=1"
        )
    state, sent = read_state(capture.before), read_state(capture.answer)
    one_logit, moved_by = make_client(client).one_logit, partial(capture.moved, state, sent)
    try:
        network = find_network(architecture, state, input_shape, 1 if one_logit else classes, moved_by)
    except SeepageError as error:
        bare = needs_rate and capture.gradient is None and capture.lr is None and client.use == "fedsgd"
        if not (bare and str(error).startswith(UNTOLD)):
            raise
        raise SeepageError(f"{error}, and the learning rate with --lr, if you know it") from error
    model, input_shape, outputs, said = network.model, network.input_shape, network.outputs, dict(network.inferred)
    if make_client(client).loss == "bce" and not one_logit:
        wide = output_shape(model, dict(model.named_parameters()), None, input_shape)
        if not wide or wide[0] == 1:
            client, one_logit = replace(client, options={**client.options, "loss": "binary"}), True
            capture = replace(capture, client=client)
            network = find_network(architecture, state, input_shape, 1, moved_by)
            model, outputs = network.model, network.outputs
            said = {name: words for name, words in said.items() if name != "classes"}
            said["loss"] = "bce, of the network's one logit"
    check_batch_size(capture.batch_size, list(input_shape), "--batch-size")
    ordered = any(map(UNNAMED.fullmatch, (*state, *sent)))
    sent = in_own_names(sent, model, str(capture.answer))
    capture, sent, form = capture.mended(in_own_names(state, model, str(capture.before)), sent)
    said |= form | ({ARRAYS: "of files without names are taken in the order of the network's"} if ordered else {})
    personal = _personal(capture, model, in_own_names(state, model, str(capture.before)), sent)
    spared = {*personal, *_brought(model, architecture)}
    as_built = _as_built(architecture, model, {*in_own_names(state, model, str(capture.before)), *personal})
    said |= {} if as_built is None else {"weights": as_built}
    try:
        note = load_weights(model, state, outputs, str(capture.before), optional=spared)
    except SeepageError as error:
        raise SeepageError(f"{error}{network.unfit}") from error
    if note is not None:
        raise SeepageError(
            f"{capture.before} was made for another number of classes than {outputs}; give that with --classes"
        )
    _check_range(capture, model, input_shape)
    if network.classes_last and make_client(client).loss in LOSSES:
        classes_second(model)
        architecture = architecture.with_options(classes_last=True)
    _check_classes(classes, model, input_shape, one_logit=one_logit)
    _ask_for_target(capture, model, input_shape, sent)
    returned = sent
    if capture.difference is not None:
        there = ((name, tensor) for name, tensor in model.named_buffers() if name in sent)
        returned = {name: sent[name] + tensor for name, tensor in there if sent[name].shape == tensor.shape}
    plain = "mode" not in client.options and client.use in ("fedsgd", "fedavg")
    start = dict(model.named_parameters())
    fit = {n: t for n, t in sent.items() if n in start and t.shape == start[n].shape}
    moved = {n: t if capture.after is None else t - start[n] for n, t in fit.items()}
    # Files that hold what was sent beside new weights stand still, too, whatever the mode was.
    if plain and stood_still(model, returned) and not scale_free(model, moved, input_shape):
        client = replace(client, options={**client.options, "mode": "eval"})
        capture = replace(capture, client=client)
        said[STILL] = "assumed eval mode: no batch norm counted a pass or moved its statistics"
    squashed = sigmoid_words(model, input_shape) if one_logit else None
    said |= {} if squashed is None else {"outputs": squashed}
    buffers, own = dict(model.named_buffers()), dict(model.named_parameters())
    before = {name: p.detach() for name, p in own.items() if name not in personal}
    half = None if capture.after is None else _half(before, sent)
    said |= {} if half is None else {HALF: f"the returned weights are {half} numbers, and those sent out are not"}
    update = capture.update(before, {name: tensor for name, tensor in sent.items() if name not in buffers})
    if not any(bool(tensor.any()) for tensor in update.tensors.values()):
        raise SeepageError("the update is zero everywhere, so there is nothing to attack; give two different files")
    check_finite(update.tensors, 0)
    beside = _moved_beside(model, update.tensors, input_shape)
    said |= {} if beside is None else {OTHER_OUTPUTS: beside}
    unstated = update.kind == "delta" and client.use == "fedsgd"
    balance = balance_of(model, input_shape, update.tensors, before) if unstated else None
    bent = None if balance is not None else _Bent.of(capture, update, before, model, (input_shape, outputs))
    first = bent is not None and update.kind == "delta"
    update, decay = _without_decay(capture, model, update, before, (input_shape, outputs), first=first)
    if unstated and balance is None and bent is None and decay is not None:
        balance = balance_of(model, input_shape, update.tensors, before)
    own_rates, untold = dict[str, float](), False
    if balance is not None and balance.rates and (capture.steps or 1) == 1:
        own_rates, untold = _own_rates(balance, model, update, outputs)
        update = update.at_one_rate(own_rates)
    other = _another_loss(capture, model, update, before, (input_shape, outputs)) if bent is None else bent.other
    said |= {UNKNOWN_LOSS: NO_SOFTMAX} if other else {}
    if "loss" not in capture.known and not one_logit and capture.target != "value":
        said[ASSUMED_LOSS] = "cross_entropy of labels that are one class each"
    if bent is None or not first:
        one = balance is not None and balance.single and capture.steps is None
        counted = replace(capture, steps=1) if one else capture
        rule, lr, found = _rule(
            counted, model, update, (input_shape, outputs), needs_rate=needs_rate and not untold, other=other or untold
        )
        found |= {"local steps": ONE_STEP.format(balance.neurons)} if one and balance is not None else {}
    elif bent.step is None:
        rule, lr, found = _rule_of_signs(capture, bent.adaptive)
    else:
        update, found = bent.read(update, before)
        rule, lr = gradient_rule(make_client(client)), None
    said |= found
    if bent is None and update.kind == "delta" and client.use == "fedsgd":
        sums = () if other else vanishing_sums(model, outputs, rule, capture.target or "class", input_shape)
        along = balance is not None or along_gradient(update.tensors, before, sums=sums)
        said[OPTIMIZER] = sgd_words(along, balance, own_rates)
    if lr is not None and "learning rate" not in found and rule.softmax_gradient and not other:
        certain = not rule.batch_coupled(model)
        doubt = rate_doubt(model, update.tensors, input_shape, outputs, lr) if certain else None
        said |= {} if doubt is None else {ANOTHER_RATE: doubt}
    said |= {} if decay is None else {"weight decay": decay.words(None if UNKNOWN_RATE in said else lr)}
    kept = {name: one for name, one in returned.items() if name in buffers and one.shape == buffers[name].shape}
    update = replace(update, returned=kept)
    whole = partial(
        observe, model, update, input_shape, lr=lr, client=rule, architecture=architecture, personal=personal,
        target=capture.target, value_range=capture.values or (0.0, 1.0), blocks=capture.blocks,
    )  # fmt: skip
    transcript, more, unknown = _with_size(whole, capture.batch_size, said)
    said |= more
    said |= shown or {}
    statistics, size = batch_statistics(model, buffers, returned), transcript[0].batch_size
    by_columns = None if capture.values is not None else shown_range(model, statistics, input_shape)
    if by_columns is not None:
        transcript = whole(batch_size=size, value_range=by_columns)
        low, high = by_columns
        said[VALUES] = f"from {low:g} to {high:g}, about: three deviations around the means of the input's own columns"
    elif capture.values is None and "normalize" not in architecture.options and vocabulary_of(model) is None:
        seen, by = _shown(lambda ends: whole(batch_size=size, value_range=ends), size, input_shape, search)
        if seen is not None and seen.normalize is not None:
            normalized = replace(given, architecture=given.architecture.with_options(normalize=seen.normalize))
            told = {NORMALIZATION: f"{seen.normalize}, under which the values of {by} are those of 8-bit pictures"}
            return _observe(normalized, folder, needs_rate=needs_rate, search=None, shown=told)
        if seen is not None and seen.range != (0.0, 1.0):
            (low, high), (least, most) = seen.range, map(float, seen.examples.aminmax())
            transcript = whole(batch_size=size, value_range=seen.range)
            said[VALUES] = f"from {low:g} to {high:g}, about: the values of {by} are from {least:.3g} to {most:.3g}"
    _check_sign(capture, transcript, said)
    said |= _of_batch_norms(statistics, rule, said)
    make_private(folder)
    save_transcript(transcript, folder, inferred=said)
    remarks = _remarks(update, rule, lr, said, unknown)
    return [*filter(None, [network.pools, network.warned]), *remarks, sent_words(transcript[0], model)]


def _shown(
    within: Callable[[Range], Transcript], size: int | None, shape: tuple[int, ...], search: Search | None
) -> tuple[ValuesShown | None, str]:
    """What proven examples show of the range of values, and whose they are; None where none are proven."""
    if (found := shown_values(within)) is not None:
        return found, f"{plural(len(found.examples), 'example')} in rows of the first layer"
    found = search(within) if search is not None and size is not None and is_image(shape) else None
    return found, "" if found is None else f"{plural(len(found.examples), 'example')} that gauss_newton certifies"


def _check_classes(classes: int | None, model: nn.Module, input_shape: tuple[int, ...], *, one_logit: bool) -> None:
    """Raise where a stated number of classes is not the network's: no other number is shown as stated."""
    if classes is None or one_logit:
        return
    outputs = output_shape(model, dict(model.named_parameters()), None, input_shape)
    if classes not in outputs:
        raise SeepageError(
            f"--classes {classes} was stated, and the network's outputs for one example have shape "
            f"{','.join(map(str, outputs)) or '()'}; leave it out, or name the network that has so many with --model"
        )


def _ask_for_target(capture: Capture, model: nn.Module, input_shape: tuple[int, ...], sent: Tensors) -> None:
    """Raise `SeepageError` where a model returns as many numbers as it takes, and nobody says that they are classes.

    Nothing is asked where the last bias says so: of a softmax its gradient adds up to zero.
    """
    stated = (capture.target, capture.num_classes, vocabulary_of(model))
    if make_client(capture.client).loss != "cross_entropy" or any(one is not None for one in stated):
        return
    outputs = output_shape(model, dict(model.named_parameters()), None, input_shape)
    if math.prod(outputs) != math.prod(input_shape) or math.prod(outputs) < FEWEST_VALUES:
        return
    names, own, made = last_linear(model, outputs[0]), dict(model.named_parameters()), outputs_of(model, input_shape)
    maps = None if made is None else f"{made.layer}.bias".removeprefix(".")
    bias = maps if names is None else names[1]
    if bias is not None and bias in sent and bias in own and sent[bias].shape == own[bias].shape:
        moved, start = sent[bias].double(), own[bias].detach().double()
        rounding = float(torch.finfo(torch.float32).eps * start.abs().sum())
        if sums_to_zero(moved - start, rounding) or sums_to_zero(moved, 0.0):  # AFTER, or a gradient
            return
    raise SeepageError(
        f"the model returns as many numbers as it takes, {math.prod(outputs)}, as an autoencoder does; say what "
        "it is: --target input, with its loss (--loss mse, bce, or your own module:function), or --target class"
    )


def _personal(capture: Capture, model: nn.Module, before: Tensors, after: Tensors) -> list[str]:
    """Trained parameters that neither file has: the client's own, which never leave it."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    lone = [name for name in trained if name not in before and name in after]
    if lone and capture.gradient is None:
        raise SeepageError(
            f"{capture.before} lacks {some(lone)}, which {capture.after} has, so there is no difference of them; give "
            "the weights that were sent out, or leave them out of both"
        )
    personal = [name for name in trained if name not in before]
    if len(personal) == len(trained):
        raise SeepageError(
            f"{capture.before} holds none of the parameters that {capture.architecture.use!r} trains: it lacks "
            f"{some(trained)} and has {some(list(before))}; name the network that the files are of with --model, "
            "such as --model mymodule:factory, or save them under its names"
        )
    return personal


def _brought(model: nn.Module, architecture: Architecture) -> list[str]:
    """Frozen parameters that a user-defined factory may have given their weights, so that no file needs them."""
    own = models.is_foreign(architecture.use)
    return [name for name, parameter in model.named_parameters() if own and not parameter.requires_grad]


def _as_built(architecture: Architecture, model: nn.Module, before: Collection[str]) -> str | None:
    """What of the network no file has, so that it is as its factory made it; None where that is nothing.

    Args:
        architecture: The network's.
        model: The network.
        before: Names that the file has, and of what is the client's own, which nothing is taken for.
    """
    missing = {name: tensor for name, tensor in model.named_parameters() if name not in before}
    # Batch norm without its statistics is the client's own, as in FedBN.
    statistics = [name for name, _ in model.named_buffers() if name not in before and name.endswith("running_var")]
    if not missing and not statistics:
        return None
    names, count = [*missing, *statistics], sum(tensor.numel() for tensor in missing.values())
    parts = [f"{count:,} weight{'s' * (count > 1)}"] if missing else []
    parts += [f"the statistics of {len(statistics)} batch norms"] if statistics else []
    listed = ", ".join(name if len(name) <= 40 else f"...{name[-37:]}" for name in names[:2])
    return (
        f"not in the files: {' and '.join(parts)} ({listed}{' and more' if len(names) > 2 else ''}); taken from "
        f"{architecture.use} as built: are they the client's?"
    )


def _moved_beside(model: nn.Module, moved: Tensors, input_shape: tuple[int, ...]) -> str | None:
    """Parameters that moved though the network's outputs do not depend on them; None where there are none."""
    own = dict(model.named_parameters())
    named = [name for name in moved if name in own and own[name].requires_grad]
    zeros = torch.zeros(2, *input_shape, device=next(model.parameters()).device)

    def unused_at(inputs: Tensor) -> list[str]:
        with torch.enable_grad(), in_mode(model, training=False):
            total = logits_in(model(as_inputs(model, inputs))).sum()
        slopes = torch.autograd.grad(total, [own[name] for name in named], allow_unused=True)
        return [name for name, slope in zip(named, slopes, strict=True) if slope is None and moved[name].any()]

    try:
        unused = unused_at(zeros)
        if not unused:
            return None
        if vocabulary_of(model) is None:
            noise = torch.randn((16, *input_shape), generator=generator(0, "probe"))
            if unused_at(3 * noise.to(zeros)) != unused:
                return None  # which are used depends on the input, as of routed experts
    except (SeepageError, RuntimeError, TypeError):
        return None  # reported where the outputs are used
    return (
        f"{some(unused)} moved, and the outputs of the network as it was given do not depend on them: the client "
        "trains on other outputs; name the network that returns them with --model, and the loss with --loss"
    )


def _of_batch_norms(found: list[BatchStatistics], rule: ClientUpdate, inferred: Mapping[str, str]) -> dict[str, str]:
    """Facts from the returned running statistics: that they hold the batch's, and forward passes beyond the steps.

    Args:
        found: What the statistics of each batch norm show.
        rule: The client's rule, as the update is read.
        inferred: The facts that were inferred before.
    """
    words, passes = statistics_words(found), max((one.steps for one in found), default=0)
    steps = rule.steps if isinstance(rule, FedAvg) else 1
    said = {} if words is None else {"batch norm": words}
    if steps is not None and passes > steps:
        said["passes"] = f"{passes} in train mode for {steps} step{'' if steps == 1 else 's'}, as the batch norms count"
        if inferred.get("local steps") == UNSHOWN_STEPS:
            said["local steps"] = f"assumed to be 1; if each pass was a step, they were {passes}: --steps {passes}"
    return said


def _check_sign(capture: Capture, transcript: Transcript, said: Mapping[str, str]) -> None:
    """Raise where a gradient has more classes than examples, and no more the other way round: it is a difference.

    Of softmax minus label an entry of the last bias is below zero only for a class that is there.
    """
    found = UpdateAnalysis(transcript, inferred=said)
    size, labels, head = found.observed.batch_size, found.labels, found.head
    if capture.gradient is None or size is None or "batch size" in said or labels is None or head is None:
        return
    if head.places > 1 or not labels.sound or len(labels.present) <= size:
        return
    turned = Update({name: -tensor for name, tensor in found.observed.update.tensors.items()})
    other = label_leak(turned.tensors, transcript.knowledge, None)
    if other is not None and len(other.present) <= size:
        raise SeepageError(
            f"{capture.gradient} is no gradient of {size} example{'s' * (size > 1)}: its last bias names "
            f"{len(labels.present)} classes, and {len(other.present)} with the other sign, which a difference of "
            "weights has; give it with --difference FILE and --lr, or the right --batch-size"
        )


def _with_size(
    whole: Callable[..., Transcript], batch_size: int | None, guessed: Mapping[str, str]
) -> tuple[Transcript, dict[str, str], str | None]:
    """The transcript with a batch size, the facts inferred (batch size, labels), and why no size is known, if so."""
    transcript, said, unknown = whole(batch_size=batch_size), {}, None
    found = UpdateAnalysis(transcript, inferred=guessed)
    if batch_size is None:
        batch_size, words = infer_size(found)
        if batch_size is None:
            unknown = words
        else:
            said["batch size"] = words
            transcript = whole(batch_size=batch_size)
            # The analysis with a batch size also counts the labels.
            found = UpdateAnalysis(transcript, inferred={**guessed, **said})
    labels = None if found.told_labels is None or OTHER_OUTPUTS in guessed else found.told_labels.source
    return transcript, said | ({"labels": labels} if labels else {}), unknown


def _check_range(capture: Capture, model: nn.Module, shape: tuple[int, ...]) -> None:
    """Raise where the network does not take numbers of the stated range, as of columns that it looks up in a table."""
    if capture.values is None:
        return
    low, high = capture.values
    draw, like = generator(0, "range"), next(model.parameters(), torch.zeros(()))
    probes = low + (high - low) * torch.rand((16, *shape), generator=draw).to(like)
    try:
        tried(model, as_inputs(model, probes))
    except Untaken as error:
        raise SeepageError(
            f"the network {capture.architecture.use!r} does not take numbers from {low:g} to {high:g} ({error}); give "
            "a range that holds for every column with --values, or leave it out"
        ) from error


def _check_rule(capture: Capture) -> None:
    client, lr, steps = capture.client, capture.lr, capture.steps
    again = {"lr": lr, "steps": steps}
    if client.use != "fedsgd" and any(stated not in (None, client.options.get(name)) for name, stated in again.items()):
        raise SeepageError(
            "--lr and --steps are for plain SGD; give the rate and steps of --client fedavg with --set client.lr=… and "
            "client.steps=…"
        )
    if capture.gradient is not None and (lr is not None or steps is not None or client.use != "fedsgd"):
        raise SeepageError("a gradient needs neither --lr nor --steps nor another rule than fedsgd; leave them out")
    if steps is not None and not 1 <= steps <= MOST_STEPS:
        raise SeepageError(f"--steps must be from 1 to {MOST_STEPS}, got {steps}; give the client's local steps")


def _without_decay(
    capture: Capture,
    model: nn.Module,
    update: Update,
    before: Tensors,
    sizes: tuple[tuple[int, ...], int],
    *,
    first: bool,
) -> tuple[Update, WeightDecay | None]:
    """The update without weight decay, which is no gradient of any example, and that decay where it was inferred.

    A `first` step of an optimizer that leaves one size is no SGD.
    """
    stated, lr = capture.weight_decay, capture.lr
    if stated == 0:
        return update, None
    if stated is not None:
        if lr is None or update.kind != "delta":
            raise SeepageError(
                "--weight-decay is that of plain SGD between two checkpoints, whose rate it is multiplied with; give "
                "--lr with it, leave it out of a gradient and of another client's rule, where cross-entropy tells it, "
                "or give --weight-decay 0 to leave the update as it is"
            )
        share = 1 - (1 - lr * stated) ** (capture.steps or 1)
        return update.without_decay(before, dict.fromkeys(before, share)), None
    rule = make_client(capture.client)
    if first or update.kind != "delta" or not rule.linear_in_gradient:
        return update, None
    if rule.loss == "cross_entropy":
        decay = infer_weight_decay(model, before, update.tensors, *sizes[::-1])
    else:  # the rows of a gradient add up to 0 for losses of the softmax alone
        decay = decay_of_directions(before, update.tensors)
    return (update, None) if decay is None else (update.without_decay(before, decay.shares), decay)


def _another_loss(
    capture: Capture, model: nn.Module, update: Update, before: Tensors, sizes: tuple[tuple[int, ...], int]
) -> bool:
    """Whether the update contradicts cross-entropy where nobody stated it: the last bias does not add up to zero.

    Not where it is off by no more than half precision puts it off, nor of several outputs that a softmax does not read.
    """
    input_shape, outputs = sizes
    if "loss" in capture.known:
        return False
    rule = make_client(capture.client)
    names = vanishing_sums(model, outputs, rule, capture.target or "class", input_shape)
    sent = {name: update.tensors[name].double() for name in names if name in update.tensors}
    name = next((name for name, tensor in sent.items() if tensor.ndim == 1), None)
    if name is None:
        return False
    # Of two classes the sums vanish under a softmax and any rule, so that only what the weights were rounded to counts.
    bias, two = sent[name], update.kind == "delta" and len(sent[name]) < 3
    if update.kind == "delta" and not two and along_gradient(update.tensors, before, sums=names) is not False:
        return False
    stored = float(before[name].double().abs().sum()) if two else 0.0
    # Its entries are sums of softmax values and labels, which float32 rounds before they cancel: as where each class is
    # there as often as it is expected. At no known rate the weights beside it say how large those may have been.
    largest = max(float(tensor.abs().max()) for tensor in sent.values())
    unit = 1.0 if update.kind == "gradient" else capture.lr or largest
    rounding = torch.finfo(torch.float32).eps * (len(bias) * unit + stored)
    return not sums_to_zero(bias, HALF_PRECISION * float(bias.abs().sum()) + rounding)


def _rule(
    capture: Capture,
    model: nn.Module,
    update: Update,
    sizes: tuple[tuple[int, ...], int],
    *,
    needs_rate: bool,
    other: bool = False,
) -> tuple[ClientUpdate, float | None, dict[str, str]]:
    """The client's rule, the learning rate that turns a weight difference into one gradient, and what was inferred."""
    client = capture.client
    rule = make_client(client)
    if update.kind == "gradient" or client.use != "fedsgd":
        return rule, None, {}
    # Steps and rate are read off the softmax's share in the last bias, which other losses do not have.
    tells = update.tensors if rule.softmax_gradient and not other else {}
    found = infer_steps(model, tells, *sizes, lr=capture.lr, steps=capture.steps, coupled=rule.batch_coupled(model))
    if found is None and not needs_rate:
        return rule, 1.0, {UNKNOWN_RATE: "not known, and the last bias does not tell it"}
    if found is None:
        raise SeepageError(
            "two checkpoints differ by a gradient times the learning rate, which is not known and which the last bias "
            "does not tell; give --lr, with --steps for more than one step of SGD, or --client fedavg with --set "
            "client.lr=…"
        )
    if found.steps == 1:
        return rule, found.lr, dict(found.said)
    same = {name: client.options[name] for name in KEPT if name in client.options}
    return FedAvg(lr=found.lr, steps=found.steps, **same), None, dict(found.said)


@dataclass(frozen=True)
class _Bent:
    """A step whose optimizer divides each entry by a size of its own, or which clips entries, as stated or as seen.

    Attributes:
        step: The one step that is inverted; None: several, or one that cannot be.
        shares: The share of each weight that a decay beside it took off, by name.
        adaptive: What the files show; None where the step was stated.
        stated: The optimizer that was stated; empty where none was.
        other: It is one step under a loss that nobody stated, and none under the one that is assumed.
    """

    step: Step | None
    shares: Mapping[str, float]
    adaptive: Adaptive | None
    stated: str = ""
    other: bool = False

    @classmethod
    def of(
        cls, capture: Capture, update: Update, before: Tensors, model: nn.Module, sizes: tuple[tuple[int, ...], int]
    ) -> Self | None:
        """None where the update is linear in a gradient, as far as was stated or can be seen; others as `_rule`."""
        rule, lr, rule_options = make_client(capture.client), capture.lr, capture.client.options
        input_shape, outputs = sizes
        sums = vanishing_sums(model, outputs, rule, capture.target or "class", input_shape)
        if isinstance(rule, FedAvg) and not rule.linear_in_gradient and update.kind == "delta":
            one = rule.first_step(capture.batch_size)
            if one is None:
                return None  # several steps, or signs: as stated
            shares: Mapping[str, float] = dict.fromkeys(before, one[1])
            if rule.optimizer == "adamw" and capture.weight_decay is None and "weight_decay" not in rule_options:
                # PyTorch's AdamW decays where nothing is said of it, so what is not stated is looked for.
                seen = adaptive_step(update.tensors, before, sums=sums)
                shares = shares if seen is None or seen.best is None else {**shares, **seen.shares}
            return cls(one[0], shares, None, OPTIMIZERS[rule.optimizer])
        seen, other = adaptive_step(update.tensors, before, sums=sums), False
        if sums and "loss" not in capture.known and seen is not None and seen.best is None:
            # Its sums need not vanish; and of several steps nothing gathers at a rate that somebody chose.
            free = adaptive_step(update.tensors, before)
            seen, other = (free, True) if free is not None and free.best is not None else (seen, False)
        if seen is None or (seen.flat and seen.best is None and "optimizer" in capture.known):
            return None
        plain = isinstance(rule, FedAvg | FedSGD) and rule.linear_in_gradient
        if not plain:
            return None
        best, count = seen.best, rule.count(capture.batch_size or 1) if isinstance(rule, FedAvg) else 1
        several = (capture.steps or 1) > 1 or count > 1
        if best is None or several or not _fits_rate(best, seen, lr):
            return cls(None, {}, seen)
        shares = seen.shares
        if capture.weight_decay is not None:
            shares = dict.fromkeys(before, capture.weight_decay * (lr or best.step.rate))
        return cls(best.step, shares, seen, other=other)

    def read(self, update: Update, before: Tensors) -> tuple[Update, dict[str, str]]:
        """The gradient behind the step, and what is said of it."""
        assert self.step is not None  # or signs alone are read
        told = f"one step of {self.stated}, as stated" if self.adaptive is None else self.adaptive.finding.message
        gradient, words = OneStep(self.step, told, self.shares).read(before, update)
        return gradient, {"optimizer": words}


def _fits_rate(best: Explained, seen: Adaptive, lr: float | None) -> bool:
    """Whether a step that was seen can be one at the stated rate; sums that it explains say so by themselves."""
    if lr is None or best.off is not None:
        return True
    # Adam's ceiling is its rate, NAdam's up to a tenth more, and RMSprop's 1 / sqrt(1 - alpha) of it.
    times = seen.size / lr
    return abs(times - 1) < 0.12 or abs(times - 10) < 0.01


def _rule_of_signs(capture: Capture, adaptive: Adaptive | None) -> tuple[ClientUpdate, float | None, dict[str, str]]:
    """The client rule for an update of hardly more than signs, as Adam gives it, whatever rule was stated.

    With it, attacks that need a gradient refuse, instead of reading its rows as mixtures of examples.

    Returns:
        The rule, the learning rate to divide by (always None), and the inferred facts by name.
    """
    assert adaptive is not None  # or nothing was seen
    client, steps = capture.client, capture.steps
    rule, seen = make_client(client), adaptive.finding
    same = {name: client.options[name] for name in (*KEPT, "batch_size") if name in client.options}
    said = {"optimizer": seen.message}
    if steps is None and isinstance(rule, FedSGD):
        said["local steps"] = _steps_of_signs(seen, capture.lr)
    count = rule.steps if isinstance(rule, FedAvg) else steps
    return FedAvg(lr=adaptive.size, steps=count or 1, optimizer="signsgd", **same), None, said


def _steps_of_signs(adaptive: Finding, lr: float | None) -> str:
    """The inferred number of steps in words; an entry moves by at most about the learning rate in one step of Adam."""
    many = 1 if lr is None else round(adaptive.evidence["size"] / lr)
    if lr is None and not adaptive.evidence["one_step"]:
        return "assumed to be 1, as nothing counts them; of Adam they were several, and --lr counts these"
    if lr is None or many < 2:
        return UNSHOWN_STEPS
    return f"assumed to be 1; of Adam or AdamW at {lr:.3g} they were {many} or more: --steps"


SIZE_UNKNOWN = "batch size unknown"


def _remarks(
    update: Update,
    rule: ClientUpdate,
    lr: float | None,
    said: Mapping[str, str],
    unknown: str | None,
) -> list[str]:
    size = float(torch.stack([tensor.double().norm() for tensor in update.tensors.values()]).norm())
    words = [f"{len(update.tensors)} tensors, norm {size:.3g}"]
    if update.kind == "delta":
        one = "" if lr is None else f"one SGD step at learning rate {lr:.3g}"
        words.append(f"read as {one or f'what {rule} sends'}")
    if unknown is not None:
        words.append(f"{SIZE_UNKNOWN}: {unknown}; give it with --batch-size, where you know it: most attacks need it")
    return [*words, *inferred_lines(said)]


def inferred_lines(said: Mapping[str, str]) -> list[str]:
    """One line for each fact that was inferred, or assumed as its words say, instead of stated.

    >>> inferred_lines({"batch size": "1, from the rank of 2.weight", "local steps": "assumed to be 1"})
    ['inferred, not stated: batch size: 1, from the rank of 2.weight', 'not stated: local steps: assumed to be 1']
    """
    # Classes are read off the network, or assumed to be its outputs.
    taken = {n for n, words in said.items() if n.startswith(("assumed", "classes")) or words.startswith("assumed")}
    return [f"{'inferred, ' * (name not in taken)}not stated: {name}: {words}" for name, words in said.items()]


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse a shape such as `3,32,32`.

    >>> parse_shape("3,32,32"), parse_shape("3x32x32")
    ((3, 32, 32), (3, 32, 32))
    """
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise SeepageError(f"--shape takes whole numbers such as 3,32,32, got {text!r}") from error
