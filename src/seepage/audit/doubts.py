"""What attacks take an update for, what of it the update contradicts, and what to question where none explains it."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from seepage.audit.outcome import Outcome
from seepage.audit.row import FITS, Row, share_words
from seepage.clients import FedAvg
from seepage.clients.base import TrainingRule
from seepage.core.nn import has_batch_norm
from seepage.leakage.analysis import OTHER_OUTPUTS, UpdateAnalysis, size_doubt
from seepage.types import Transcript

WITHOUT_RUN = {Outcome.INAPPLICABLE, Outcome.NOT_RECORDED, Outcome.NOT_NEEDED, Outcome.NOT_TRIED}
"""Outcomes of attacks that did not run."""


def taken_for(transcript: Transcript) -> str:
    """How the first round's update was made, as the attacks take it, told or inferred: in words, with rate and loss.

    >>> from seepage import Architecture, Batch, FedAvg, build, record
    >>> import torch
    >>> model, batch = build(Architecture("fc2"), (1, 4, 4), 3), Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 2]))
    >>> taken_for(record(model, batch))
    'one gradient, on the loss cross_entropy'
    >>> taken_for(record(model, batch, client=FedAvg(lr=0.1, steps=3, momentum=0.9)))
    '3 steps of SGD with momentum 0.9 at a learning rate of 0.1, on the loss cross_entropy'
    """
    rule = transcript.knowledge.client
    softened = isinstance(rule, TrainingRule) and rule.label_smoothing
    weighted = isinstance(rule, TrainingRule) and rule.class_weights
    changed = f" with labels smoothed by {softened:g}" if softened else " with class weights" if weighted else ""
    return f"{_trained(transcript)}, on the loss {rule.loss}{changed}"


OPTIMIZERS = {
    "sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adadelta": "Adadelta",
    "signs": "an optimizer that leaves hardly more than signs of a gradient",
}  # fmt: skip


def _trained(transcript: Transcript) -> str:
    """What the client is taken to have done, but for the loss."""
    rule, update = transcript.knowledge.client, transcript[0].update
    # The share of weights that shrank: of one step the learning rate times weight decay, and more with momentum.
    share = max(update.decayed.values(), default=0.0)
    decay = f", but for {share:.3g} of the weights, taken out as weight decay" if share else ""
    if update.rate is not None:
        return f"one step of SGD at a learning rate of {update.rate:.3g}{decay}"
    if update.kind == "gradient":
        return "one gradient"
    if not isinstance(rule, FedAvg):
        return f"local training by {rule}{decay}"
    count, unit = (rule.steps, "step") if rule.steps else (rule.epochs, "epoch")
    momentum = f" with momentum {rule.momentum:g}" if rule.momentum else ""
    optimizer = f"{OPTIMIZERS[rule.optimizer]}{momentum}"
    rate = "with entries of" if rule.signs_alone else "at a learning rate of"
    return f"{count} {unit}{'' if count == 1 else 's'} of {optimizer} {rate} {rule.lr:.3g}{decay}"


def contradicts(off: tuple[float, float] | None) -> bool:
    """Whether the private examples do not give the update that was sent: by `compared_to_sent` of the truth."""
    return off is not None and max(off[0], abs(off[1] - 1)) > FITS


def doubts(
    transcript: Transcript,
    rows: Sequence[Row],
    at_least: int | None,
    said: Mapping[str, str] | None = None,
    off: tuple[float, float] | None = None,
) -> list[str]:
    """Sentences for people; none where nothing is contradicted and an attack explains the update as it was told.

    Args:
        transcript: What the attacks were given.
        rows: All attacks on it.
        at_least: Examples behind the update at the least, by the rank of its layers; None where no layer tells.
        said: What was inferred of the update, by name.
        off: `compared_to_sent` of the private examples, where these are at hand.
    """
    wrong, rule = size_doubt(transcript[0].batch_size, at_least), transcript.knowledge.client
    if wrong is not None:
        return [f"Contradicted: {wrong}."]  # enough to stop every attack, so that nothing else need be questioned yet
    if rule.signs_alone or (not contradicts(off) and any(map(_explains, rows))):
        return []
    found, ran = causes(transcript, said or {}), any(row.outcome not in WITHOUT_RUN for row in rows)
    if not (found or ran or contradicts(off)):
        return []
    words = "No attack here explains the update as it was told" if ran else "No attack ran"
    weak = "The attacks may be too weak, or noise"
    if off is not None and contradicts(off):
        away, multiple = off
        if away <= FITS:
            why = "a learning rate above"
            if multiple < 1:
                why = "clipping to a norm (--client fedavg with --set client.clip_norm=…), or a learning rate below"
            return [
                f"Contradicted by the truth: the update that was sent is {multiple:.3g} times that of the true "
                f"examples, as behind {why} the one told (--lr, --steps)."
            ]
        words = f"Contradicted by the truth: the update of the true examples is off by {share_words(away)} of its size"
        weak = "Noise"
    if found:
        return [f"{words}. The files themselves speak for this: {'; '.join(found.values())}."]
    return [
        f"{words}. {weak} or rounding may hide it; or something that was told or inferred is wrong. The options that "
        f"change it, where seepage attack or seepage record is given the files: {'; '.join(_questions(transcript))}."
    ]


def causes(transcript: Transcript, said: Mapping[str, str]) -> dict[str, str]:
    """What of the client the files and the network speak for and no attack takes account of: by name, in words.

    Names are `noise`, `rounding`, `low precision`, `several passes`, `dropout`, `missing weights`, `other outputs` and
    `rate`.

    Args:
        transcript: What the attacks were given.
        said: What was inferred of the update, by name.
    """
    look, found = UpdateAnalysis(transcript, inferred=said), dict[str, str]()
    knowledge = transcript.knowledge
    for mark in look.defenses:
        if mark.name == "noised":
            found["noise"] = f"noise (the update {mark.message}), which no attack was told of"
        if mark.name in ("rounded", "quantized"):
            found["rounding"] = f"rounding (the update {mark.message})"
    if look.low_precision:
        found["low precision"] = (
            "half precision (the gradient of the last bias adds up to zero but for a thousandth, as under autocast)"
        )
    if "passes" in said:
        found["several passes"] = f"several batches in one step, or several steps ({said['passes']}): --steps"
    dropped = dropping_layers(knowledge.model) if knowledge.client.mode == "train" else 0
    if dropped:
        found["dropout"] = (
            f"dropout ({dropped} of the network's layers drop values or paths in training, by chance, and the attacks "
            "have them off)"
        )
    if "weights" in said:
        found["missing weights"] = f"other weights than the client's ({said['weights']})"
    if OTHER_OUTPUTS in said:
        found[OTHER_OUTPUTS] = f"another loss than was told ({said[OTHER_OUTPUTS]})"
    for name, why in (("told rate", ""), ("learning rate", "it was inferred, ")):
        if name in said:
            found["rate"] = (
                "another learning rate, number of steps or loss, or Nesterov's momentum "
                f"({why}{said[name]}): --lr, --steps, --loss"
            )
    return found


def dropping_layers(model: nn.Module) -> int:
    """Layers that drop values or paths in train mode; libraries have a dropout of paths of their own."""
    shares = (getattr(module, "drop_prob", getattr(module, "p", 0.0)) for module in model.modules() if _drops(module))
    return sum(1 for share in shares if isinstance(share, float | int) and share > 0)


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) or "drop" in type(module).__name__.lower()


def _explains(row: Row) -> bool:
    """Whether guesses are of what was sent: by the truth, by the update that they give, or by proof where none is."""
    return row.leaks or row.fits or (bool(row.certificate) and row.misfit is None)


def _questions(transcript: Transcript) -> Iterator[str]:
    """What was taken for true of the client, each with its option."""
    observed, knowledge = transcript[0], transcript.knowledge
    rule, rate, size = knowledge.client, observed.update.rate, observed.batch_size
    softened = ", or --set client.label_smoothing=… or client.class_weights=…" * (rule.loss == "cross_entropy")
    yield f"the loss, {rule.loss}: --loss{softened}"
    if rate is not None or observed.update.kind == "delta":
        yield (
            f"{_trained(transcript)}: --lr and --steps, or, with momentum, Adam or several batches, --client fedavg "
            "with --set client.lr=…, client.steps=…, client.momentum=…, client.optimizer=adam, client.batch_size=…"
        )
        yield f"{'that' if observed.update.decayed else 'no'} weight decay: --weight-decay"
        clipped = next((one.message for one in UpdateAnalysis(transcript).defenses if one.name == "clipped"), None)
        if clipped is not None and not getattr(rule, "clip_norm", None):
            yield f"no clipping, though the update {clipped}: --client fedavg with --set client.clip_norm=…"
    own = knowledge.architecture
    if len(knowledge.input_shape) == 3 and own is not None and "normalize" not in own.options:
        yield "no normalization but the network's own: --normalize"
    if has_batch_norm(knowledge.model):
        yield "the mode of batch norm: --set client.mode=train or eval"
    yield f"{'an unknown number of' if size is None else size} example{'' if size == 1 else 's'}: --batch-size"
    yield "whatever else the client may have done: a rule of your own, --client module:Rule"
