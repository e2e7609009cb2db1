"""The verbs from code: `record` an update or `observe` somebody else's, and `attack` it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.base import Progress, ignore
from seepage.attacks.exposure.reading import read_off
from seepage.base.blocks import Block
from seepage.base.nn import NO_TARGET, as_inputs, forward, in_mode, state_of, try_inputs, vocabulary_of
from seepage.base.own_code import first_line
from seepage.base.registry import Spec
from seepage.errors import SeepageError, short
from seepage.federation.clients import FedSGD
from seepage.federation.clients.losses import check_target, likely_target, target_of, with_inputs
from seepage.federation.models.naming import in_own_names
from seepage.federation.transcript.labels import misfit_of_labels
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.transcript.simulated import OneRound, SimulatedTranscript, Victim
from seepage.federation.types import (
    Architecture,
    Batch,
    ClientUpdate,
    Defense,
    Knowledge,
    Reconstruction,
    Round,
    SideInformation,
    Target,
    Tensors,
    Transcript,
    Update,
)


def record(
    model: nn.Module,
    batch: Batch | Sequence[Batch],
    *,
    client: ClientUpdate | None = None,
    defense: Defense | None = None,
    known: Sequence[SideInformation] = (),
    value_range: tuple[float, float] = (0.0, 1.0),
    architecture: Architecture | None = None,
    blocks: Sequence[Block] = (),
    seed: int = 0,
) -> SimulatedTranscript:
    """What an honest-but-curious server sees when a client trains `model` on `batch`.

    Args:
        model: The model at its current weights. It is not changed.
        batch: One private batch, or one for each round.
        client: The client's rule; None: FedSGD in train mode.
        defense: What the client does to its update before sending it.
        known: What the attacker knows beside the protocol, e.g. `["labels", "defense"]`.
        value_range: Smallest and largest value an input can take.
        architecture: How to build the model by name; needed only to save the transcript to a folder.
        blocks: One-hot blocks of a table's row, (first place, width) of each, which the attacker knows.
        seed: Seeds the defense's noise.

    Returns:
        A transcript. It holds no way back to the batch.

    >>> from seepage import Batch, attack, record, score
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([2]))
    >>> scores = score(attack(record(model, batch), "linear"), batch)
    >>> scores.exact
    1.0
    """
    batches = [batch] if isinstance(batch, Batch) else list(batch)
    if not batches or not len(batches[0]):
        raise SeepageError("record needs at least one private example; pass a Batch with inputs and labels")
    params, buffers = state_of(model)
    shape, rule = tuple(batches[0].inputs.shape[1:]), client or FedSGD()
    try_inputs(model, shape)
    classes = _classes_of(model, batches[0].inputs[:1].repeat_interleave(2, 0), rule)
    if rule.target == "input":
        if "labels" in known:
            raise SeepageError("the targets are the inputs, and who knows them has all; leave out labels")
        outputs = _outputs_of(model, batches[0].inputs[:1].repeat_interleave(2, 0))
        classes, batches = math.prod(outputs), [with_inputs(one, outputs) for one in batches]
    tokens = vocabulary_of(model) is not None
    found = [target_of(batch.labels, rule.loss, tokens=tokens) for batch in batches]
    values = rule.target == "input" or "value" in found  # one class of several at once looks like a chance
    target: Target = "value" if values else found[0]
    check_target(rule.loss, target, classes, getattr(rule, "class_weights", ()))
    for labels in (batch.labels for batch in batches):
        unnamed = (labels < 0) & ((labels != NO_TARGET) | (labels.ndim == 1))  # a token or a pixel may have none
        if not labels.is_floating_point() and bool((unnamed | (labels >= classes)).any()):
            raise SeepageError(
                f"the batch has labels from {labels.min()} to {labels.max()} and the model {classes} classes; "
                f"number the labels from 0 to {classes - 1}"
            )
    knowledge = Knowledge(
        model=model,
        client=rule,
        input_shape=shape,
        num_classes=classes,
        value_range=value_range,
        known=frozenset(known),
        defense=defense if "defense" in known else None,
        architecture=architecture,
        target=target,
        blocks=tuple(blocks),
    )
    for labels in (batch.labels for batch in batches):
        odd = misfit_of_labels(labels, knowledge)
        if odd is not None:
            raise SeepageError(f"the batch {odd}; give class numbers (int64), values or maps that fit the outputs")
    return read_off(Victim.of(knowledge, params, batches, buffers, defense, seed)).transcript()


def _classes_of(model: nn.Module, inputs: Tensor, rule: ClientUpdate) -> int:
    outputs = _outputs_of(model, inputs)[0]
    if not rule.one_logit:
        return outputs
    if outputs != 1:
        raise SeepageError(
            f"the loss binary is of a model's one output, and this model has {outputs}; use cross_entropy, or let the "
            "model return one logit"
        )
    return 2


def _outputs_of(model: nn.Module, inputs: Tensor) -> tuple[int, ...]:
    """Shape of the model's outputs for one example."""
    with torch.no_grad(), in_mode(model, training=False):
        try:
            found = forward(model, {}, inputs)
        except SeepageError:
            raise
        except Exception as error:  # a network of the user's may raise any
            raise SeepageError(
                f"the model cannot take inputs of shape {tuple(inputs.shape[1:])} ({short(first_line(error))}); state "
                "the shape of one example, as the model takes it: input_shape, or --shape on the command line"
            ) from error
    if found.ndim < 2:
        raise SeepageError(
            f"the model returns outputs of shape {tuple(found.shape)} for {len(inputs)} examples, and for n examples "
            "[n, 1] are needed; leave out what flattens or squeezes them, which changes no weight"
        )
    return tuple(found.shape[1:])


def observe(
    model: nn.Module,
    update: Update,
    input_shape: tuple[int, ...],
    *,
    batch_size: int | None = None,
    lr: float | None = None,
    labels: Tensor | None = None,
    client: ClientUpdate | None = None,
    value_range: tuple[float, float] = (0.0, 1.0),
    architecture: Architecture | None = None,
    personal: Collection[str] = (),
    target: Target | None = None,
    blocks: Sequence[Block] = (),
) -> SimulatedTranscript:
    """An update that somebody else sent, to be attacked with no truth at hand.

    Args:
        model: The model that was sent out, at the weights before the update. It is not changed.
        update: A gradient, or `Update.from_states(before, after)`. Parameters that it lacks were not sent. Buffers,
            such as batch-norm statistics, are left out, and so are frozen parameters, which do not move.
        input_shape: Shape of one example, e.g. `(3, 32, 32)`.
        batch_size: Examples behind the update, if you know.
        lr: Learning rate of the one SGD step that made a difference of weights; it turns it into a gradient.
            Weight decay is taken out before, with `Update.without_decay`.
        labels: The examples' labels, as `Batch` has them, if the attacker knows them.
        client: The client's rule; None: FedSGD in train mode.
        value_range: Smallest and largest value an input can take.
        architecture: How to build the model by name; needed only to save the transcript to a folder.
        personal: Names of parameters that are the client's own, whose weights were never seen.
        target: What the examples are trained towards; None: a map where the model's outputs are maps, values where it
            has one output and its loss is `mse`, else classes.
        blocks: As of `record`.

    Raises:
        SeepageError: For an update that does not fit the model, moves a frozen parameter, or is not finite.

    >>> from seepage import Update, attack, observe
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    >>> image, label = torch.rand(1, 1, 8, 8), torch.tensor([2])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> nn.functional.cross_entropy(model(image), label).backward()
    >>> optimizer.step()
    >>> update = Update.from_states(before, model.state_dict())
    >>> _ = model.load_state_dict(before)
    >>> found = attack(observe(model, update, (1, 8, 8), batch_size=1, lr=0.1), "linear")
    >>> torch.allclose(found.inputs, image, atol=1e-3)
    True
    """
    params, buffers = state_of(model)
    try_inputs(model, input_shape)
    params = {name: tensor for name, tensor in params.items() if name not in personal}
    trained = _trained(update.tensors, model, params.keys() | buffers.keys())
    sent = replace(update, tensors={name: tensor for name, tensor in trained.items() if name not in buffers})
    if lr is not None and sent.kind == "delta":
        # after = before - lr g.
        slopes = {name: -tensor / lr for name, tensor in sent.tensors.items()}
        sent = replace(sent, tensors=slopes, kind="gradient", rate=lr)
    zeros = torch.zeros(2, *input_shape, device=next(iter(params.values())).device)
    rule, dummy = client or FedSGD(), as_inputs(model, zeros)
    classes = _classes_of(model, dummy, rule)
    if rule.target == "input":
        outputs = with_inputs(Batch(dummy, torch.zeros(2)), _outputs_of(model, dummy)).labels.shape[1:]
        target, classes = "value", math.prod(outputs)
    target = target or likely_target(_outputs_of(model, dummy), rule.loss, tokens=vocabulary_of(model) is not None)
    check_target(rule.loss, target, classes, getattr(rule, "class_weights", ()))
    knowledge = Knowledge(
        model=model,
        client=rule,
        input_shape=input_shape,
        num_classes=classes,
        value_range=value_range,
        known=frozenset() if labels is None else frozenset(["labels"]),
        architecture=architecture,
        target=target,
        blocks=tuple(blocks),
    )
    seen = Round(0, params, sent, buffers, batch_size=batch_size, labels=labels, personal=frozenset(personal))
    return SimulatedTranscript(knowledge, lambda t: seen, 1)


def _trained(tensors: Mapping[str, Tensor], model: nn.Module, expected: Collection[str]) -> Tensors:
    """The tensors under the model's own names, without those of frozen parameters, which do not move."""
    named = in_own_names(tensors, model, "the update")
    frozen = [name for name, _ in model.named_parameters() if name in named and name not in expected]
    moved = next((name for name in frozen if bool(named[name].any())), None)
    if moved is not None:
        raise SeepageError(
            f"the update moves {short(moved)}, which the model does not train; set requires_grad on the parameters "
            "that the client trained (in a recipe: model.trainable)"
        )
    return {name: tensor for name, tensor in named.items() if name not in frozen}


def attack(
    transcript: Transcript | Path | str,
    use: str | Attack,
    *,
    seed: int = 0,
    t: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Progress = ignore,
) -> Reconstruction:
    """Attack a transcript, or a recorded `observed/` folder.

    Args:
        transcript: A transcript or the path of a folder.
        use: An attack's name (see `seepage list`), or an attack such as `dlg(steps=20)`.
        seed: Seeds the attack's own randomness.
        t: The round to attack, for attacks that read one round.
        options: Options of a named attack, e.g. `{"steps": 500}`.
        progress: Called with how far the attack is.

    Raises:
        Inapplicable: Where the attack can say nothing about this transcript.
        SeepageError: For an unknown name or wrong options, or a damaged folder.
    """
    seen: Transcript = open_transcript(Path(transcript)) if isinstance(transcript, str | Path) else transcript
    chosen = ATTACKS.build(Spec(use, options or {})) if isinstance(use, str) else use
    if chosen.rounds == "one":
        seen = OneRound(seen, t)
    return chosen(seen, seed=seed, progress=progress)
