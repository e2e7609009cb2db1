"""What of the told things a captured update contradicts, and what to question where no attack explains it."""

from collections.abc import Iterator, Sequence

from seepage.audit.row import Row
from seepage.core.nn import has_batch_norm
from seepage.leakage.analysis import size_doubt
from seepage.types import Transcript


def doubts(transcript: Transcript, rows: Sequence[Row], at_least: int | None) -> list[str]:
    """Sentences for people; none where nothing is contradicted and an attack explains the update as it was told.

    Args:
        transcript: What the attacks were given.
        rows: All attacks on it.
        at_least: Examples behind the update at the least, by the rank of its layers; None where no layer tells.
    """
    wrong = size_doubt(transcript[0].batch_size, at_least)
    found = [] if wrong is None else [f"Contradicted: {wrong}."]
    if not any(map(_explains, rows)):
        found.append(
            "No attack here explains the update as it was told. The attacks may be too weak, or noise or rounding may "
            "hide it; or something that was told or inferred is wrong. The options that change it, where seepage "
            f"attack or seepage observe is given the files: {'; '.join(_questions(transcript))}."
        )
    return found


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
        trained = f"local training, {rule}" if rate is None else f"one step of SGD at a learning rate of {rate:.3g}"
        yield (
            f"{trained}: --lr and --steps, or, with momentum, Adam or several batches, --client fedavg with --set "
            "client.lr=…, client.steps=…, client.momentum=…, client.optimizer=adam, client.batch_size=…"
        )
    if has_batch_norm(knowledge.model):
        yield "the mode of batch norm: --set client.mode=train or eval"
    yield f"{'an unknown number of' if size is None else size} example{'' if size == 1 else 's'}: --batch-size"
    yield "weight decay, and whatever else has no option: a rule of your own, --client module:Rule"
