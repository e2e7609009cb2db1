"""Reasons to distrust a result: in a row's numbers, in the facts stated of the client, in attacks that did not run."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.base import SingleRound
from seepage.attacks.exposure.analysis import (
    ANOTHER_RATE,
    OTHER_OUTPUTS,
    UNKNOWN_LOSS,
    UNKNOWN_RATE,
    UpdateAnalysis,
    size_doubt,
)
from seepage.attacks.exposure.finding import note, warning
from seepage.attacks.network import AttackedRound, vouch, vouch_unlabeled
from seepage.attacks.network.outputs import draws
from seepage.audit.attempt import Attempt
from seepage.audit.outcome import Outcome
from seepage.audit.row import FITS, UNTRUE, EpsilonRow, Row, share_words
from seepage.audit.values import NORMALIZATIONS
from seepage.base.nn import has_batch_norm, vocabulary_of
from seepage.base.registry import Spec
from seepage.base.rounding import FLOAT32_SUM
from seepage.base.schema import Finding
from seepage.base.words import plural
from seepage.errors import Inapplicable
from seepage.federation.clients import FedAvg
from seepage.federation.clients.base import TrainingRule
from seepage.federation.models.normalize import statistics_of
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Batch, Reconstruction, Transcript
from seepage.measure.metrics import is_image

# --- of a row's numbers ------------------------------------------------------------------------------------------


def attack_diagnostics(row: Row, *, contradicted: bool = False) -> list[Finding]:
    """Findings about one attack's result row: failed, diverged, not settled, or led astray by its objective.

    Args:
        row: The row.
        contradicted: Whether the private examples, by the stated client rule, do not give the update that was sent.
    """
    found, name = [], row.attack
    if row.status == "error":
        words = f"{name} failed ({row.reason}); that it has no score is no evidence of safety."
        found.append(warning("failed", words))
    if row.status == "diverged":
        words = f"{name} diverged (NaN or infinite objective); its score is no evidence of safety."
        found.append(warning("diverged", words))
    if row.status == "interrupted":
        made = "" if row.cost.steps is None else f" after {plural(row.cost.steps, 'step')}"
        words = f"{name} was stopped at the deadline{made}, still improving; the same command goes on from there."
        found.append(note("stopped", words))
    if row.status == "exhausted":
        words = f"{name} was still improving when its {row.cost.steps} steps ended"
        if row.cost.steps is None:
            words = f"{name} ended before all its guesses fitted to its own measure"
        found.append(note("not-settled", f"{words}; more steps may recover more."))
    wrong = row.certified.wrong if row.certified is not None else None
    if wrong:
        guesses = "1 guess that is" if wrong == 1 else f"{wrong} guesses that are"
        words = f"{name} certified {guesses} not exact: do not rely on its certificates here."
        found.append(warning("false-certificate", words, guesses=wrong))
    found += _objective_diagnostics(row, contradicted=contradicted)
    if row.side_information and row.gave_result:
        words = f"{name} knew more than the protocol shows: {', '.join(row.side_information)}."
        found.append(note("known", words))
    return found


def _objective_diagnostics(row: Row, *, contradicted: bool) -> list[Finding]:
    """Whether the objective or the search was the limit of an attack that did not recover everything."""
    name, reached, truth = row.attack, row.objective, row.objective_at_truth
    if reached is None or truth is None or row.mean("recovered"):
        return []
    if reached < truth - 1e-6 * abs(truth):  # beyond rounding
        words = (
            f"{name} found inputs that fit its objective better ({reached:.3g}) than the truth does, which has "
            f"{truth - reached:.2g} more: "
            f"{'what was stated of the client' if contradicted else 'the objective'} is the limit, not the search."
        )
        return [warning("objective-limits", words, reached=reached, truth=truth)]
    if reached > truth:
        words = (
            f"{name} stopped at objective {reached:.3g} where the truth has {truth:.3g}: "
            "a better search would see more."
        )
        return [note("search-limits", words, reached=reached, truth=truth)]
    return []


def alignment_diagnostics(row: Row) -> list[Finding]:
    """A finding where the score fitted a quantity, such as a scale, that the attack cannot determine."""
    if not row.fitted:
        return []
    words = f"{row.attack} cannot know {row.fitted}; the score fitted it with the truth, which an attacker could not."
    return [warning("fitted", words)]


def weak_claims(rows: Sequence[EpsilonRow]) -> list[Finding]:
    """A warning on each claim of an epsilon that the measurement could not have contradicted without an assumption."""
    return [
        Finding(
            case=row.case,
            name="cannot-contradict",
            severity="warning",
            message=f"{row.short_of}.",
            evidence={"ceiling": row.ceiling},
        )
        for row in rows
        if row.short_of
    ]


# --- whether guesses give the update that was sent ---------------------------------------------------------------

MOST_STEPS = 100
"""Local steps up to which an update is recomputed: little beside an attack, which recomputes it at every step."""


def misfit(views: Sequence[Transcript], attempts: Sequence[Attempt]) -> float | None:
    """Relative distance between the update that the guesses give and the update that was sent; mean over batches.

    Of one batch: `|s u - v| / |v|`, with v the update that was sent, u the one that the client's rule computes from the
    guesses, the Euclidean norm over all tensors that were sent, and s > 0 the nearest factor (`vouch`), which absorbs
    clipping to a norm and a wrong learning rate. The value is 0 where the guesses give exactly the update that was
    sent; other inputs may give the same update.

    Args:
        views: The transcript of each attempt.
        attempts: One per batch.

    Returns:
        The mean, without unit. None where it cannot be computed for any batch: it needs as many guessed
        inputs as there were examples, and a rule that does not depend on which example is in which local step.
        Without labels it is the distance of the nearest update that any loss gives at these inputs.
    """
    found = [
        _misfit(view, attempt.reconstruction)
        for view, attempt in zip(views, attempts, strict=True)
        if attempt.reconstruction is not None
    ]
    known = [value for value in found if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _misfit(view: Transcript, guess: Reconstruction) -> float | None:
    labels = guess.labels
    if view.knowledge.client.target == "input":
        labels = torch.zeros(len(guess), dtype=torch.long)  # [n]; a rule whose target is the input reads no labels
    if guess.space != "input":
        return None
    if labels is None:
        whole = len(view) == 1 and len(guess) and len(guess) == view[0].batch_size and not view[0].personal
        return vouch_unlabeled(AttackedRound.of(view), guess.inputs) if whole else None
    found = compared_to_sent(view, Batch(guess.inputs, labels))
    return None if found is None else found[0]


def compared_to_sent(view: Transcript, batch: Batch) -> tuple[float, float] | None:
    """Distance between the update that was sent and the one that the client's rule computes from these examples.

    Of a step that bends the gradient, such as Adam's, what the weights moved by is compared: of large entries the
    inverse knows no size.

    Returns:
        Relative distance and best factor (see `vouch`). None where the result depends on which example is in which
        local step, or on the client's own random numbers, such as dropout's, and for more than `MOST_STEPS` steps.
    """
    observed, knowledge = view[0], view.knowledge
    if knowledge.client.mode == "train" and draws(knowledge.model, knowledge.input_shape):
        return None
    if len(view) > 1 or observed.personal or not len(batch) or len(batch) != observed.batch_size:
        return None
    steps = knowledge.client.batches(len(batch))
    if len(steps) > MOST_STEPS or any(len(step) < len(batch) for step in steps):
        return None
    step, sent = observed.update.step, observed.update.tensors
    if step is None or (step.linear and not math.isfinite(step.limit)):
        return vouch(AttackedRound(knowledge, observed), batch.inputs, batch.labels, multiple=None)
    own = knowledge.client(knowledge.model, observed.params, batch, buffers=observed.buffers).tensors
    apart = whole = 0.0
    # Faint entries, as of a bias before a batch norm, are rounding, which such a step makes as large as any.
    faint = FLOAT32_SUM * max(float(own[name].abs().max()) for name in sent)
    for name, tensor in sent.items():
        # A decay c in the gradient bends with it: psi(g + c w), where g alone may be far below what rounding leaves.
        inside = step.coupled * observed.params[name].double()
        ours, theirs = (one.double().clamp(-step.limit, step.limit) + inside for one in (own[name], tensor))
        clear = ours.abs() > faint
        moved = step.psi(theirs)[clear]
        apart += float((step.psi(ours)[clear] - moved).square().sum())
        whole += float(moved.square().sum())
    return (math.sqrt(apart / whole), 1.0) if whole else None


# --- what the client is taken to have done, and what of it the update contradicts --------------------------------

WITHOUT_RUN = {Outcome.INAPPLICABLE, Outcome.NOT_RECORDED, Outcome.NOT_NEEDED, Outcome.NOT_TRIED}
"""Outcomes of attacks that did not run."""


def assumed_update(transcript: Transcript) -> str:
    """The client rule that the attacks assume for the first round, stated or inferred: in words, with rate and loss.

    >>> from seepage import Architecture, Batch, FedAvg, build, record
    >>> import torch
    >>> model, batch = build(Architecture("fc2"), (1, 4, 4), 3), Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 2]))
    >>> assumed_update(record(model, batch))
    'one gradient, on the loss cross_entropy'
    >>> assumed_update(record(model, batch, client=FedAvg(lr=0.1, steps=3, momentum=0.9)))
    '3 steps of SGD with momentum 0.9 at a learning rate of 0.1, on the loss cross_entropy'
    """
    rule = transcript.knowledge.client
    softened = isinstance(rule, TrainingRule) and rule.label_smoothing
    weighted = isinstance(rule, TrainingRule) and rule.class_weights
    changed = f" with labels smoothed by {softened:g}" if softened else " with class weights" if weighted else ""
    return f"{_trained(transcript)}, on the loss {rule.loss}{changed}"


OPTIMIZERS = {
    "sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad", "adadelta": "Adadelta",
    "signsgd": "an optimizer that leaves hardly more of a gradient than the sign of each entry",
}  # fmt: skip


def _trained(transcript: Transcript) -> str:
    """The assumed client rule in words, without the loss."""
    rule, update = transcript.knowledge.client, transcript[0].update
    # The share of weights that shrank: of one step the learning rate times weight decay, and more with momentum.
    share = max(update.decayed.values(), default=0.0)
    decay = f", but for {share:.3g} of the weights, taken out as weight decay" if share else ""
    if update.rate is not None:
        return f"one step of SGD at a learning rate of {update.rate:.3g}{decay}"
    if (step := update.step) is not None:
        bent = f" and epsilon {step.eps:.3g}" if step.bent else ""
        return f"one step of {step.name} whose entries move by {step.rate:.3g} at the most{bent}{decay}"
    if update.kind == "gradient":
        return "one gradient"
    if not isinstance(rule, FedAvg):
        return f"local training by {rule}{decay}"
    count, unit = (rule.steps, "step") if rule.steps else (rule.epochs, "epoch")
    momentum = f" with momentum {rule.momentum:g}" if rule.momentum else ""
    optimizer = f"{OPTIMIZERS[rule.optimizer]}{momentum}"
    rate = "with entries of" if rule.sign_only else "at a learning rate of"
    return f"{count} {unit}{'' if count == 1 else 's'} of {optimizer} {rate} {rule.lr:.3g}{decay}"


def contradicts(off: tuple[float, float] | None) -> bool:
    """Whether the private examples do not give the update that was sent: by `compared_to_sent` of the truth."""
    return off is not None and max(off[0], abs(off[1] - 1)) > FITS


def up_to_a_factor(off: tuple[float, float] | None, said: Mapping[str, str]) -> tuple[float, float] | None:
    """What `compared_to_sent` gives, where nothing tells the rate without the multiple, which contradicts nobody.

    >>> contradicts((0.0, 0.05)), contradicts(up_to_a_factor((0.0, 0.05), {"unknown rate": "not known"}))
    (True, False)
    """
    return off if off is None or UNKNOWN_RATE not in said else (off[0], 1.0)


def normalization_of_truth(view: Transcript, batch: Batch) -> str | None:
    """The stated statistics under which these pictures give the update that was sent; None: under none of them."""
    own, shape = view.knowledge.architecture, view.knowledge.input_shape
    stated = own is not None and "normalize" in own.options
    if stated or not is_image(shape) or vocabulary_of(view.knowledge.model) is not None:
        return None
    best, name = FITS, None
    for one in NORMALIZATIONS:
        mean, std = (batch.inputs.new_tensor(part)[:, None, None] for part in statistics_of(one))
        if len(mean) in (1, shape[0]):
            off = compared_to_sent(view, replace(batch, inputs=(batch.inputs - mean) / std))
            best, name = (off[0], one) if off is not None and off[0] < best else (best, name)
    return name


def contradiction_flags(
    transcript: Transcript, off: tuple[float, float] | None, said: Mapping[str, str]
) -> list[Finding]:
    """A warning where the true examples do not give the update that was sent, and no noise or rounding shows in it."""
    if off is None or not contradicts(off) or {"noise", "rounding"} & causes(transcript, said).keys():
        return []
    message = f"{UNTRUE[0].upper()}{UNTRUE[1:]}."
    return [warning("contradicted-by-truth", message, off=off[0], multiple=off[1])]


def caveats(
    transcript: Transcript,
    rows: Sequence[Row],
    at_once: int | None,
    said: Mapping[str, str] | None = None,
    off: tuple[float, float] | None = None,
    under: str | None = None,
) -> list[str]:
    """Sentences on facts of the client that the update contradicts, or that may explain why no attack succeeds.

    Empty where nothing is contradicted and an attack explains the update by the assumed client rule.

    Args:
        transcript: Transcript that the attacks were given.
        rows: Rows of all attacks on it.
        at_once: Least number of examples behind the update, if it is one step, by the rank of its layers; None where no
            layer shows it.
        said: Name of each inferred fact, to its source.
        off: `compared_to_sent` of the private examples, where these are at hand.
        under: `normalization_of_truth` of them.
    """
    wrong, rule = size_doubt(transcript[0].batch_size, at_once), transcript.knowledge.client
    if wrong is not None:
        # Enough to stop every attack, so that nothing else need be questioned yet. Rounding and noise add to a rank, so
        # that it contradicts nobody alone: the classes that are named are another way.
        labels, size = UpdateAnalysis(OneRound(transcript, 0)).labels, transcript[0].batch_size
        more = labels is not None and labels.believed and size is not None and len(labels.present) > size
        return [f"Contradicted: {wrong}." if more else f"Questioned, by one way alone: {wrong}."]
    if rule.sign_only or (not contradicts(off) and any(map(_explains, rows))):
        return []
    found, ran = causes(transcript, said or {}), any(row.outcome not in WITHOUT_RUN for row in rows)
    if not (found or ran or contradicts(off)):
        return []
    guessed = {"learning rate", "local steps", "optimizer", "batch size"} & set(said or {})
    source = "stated or inferred" if guessed else "stated"
    words = (
        f"No attack here explains the update with the client settings that were {source}" if ran else "No attack ran"
    )
    weak = "The attacks may be too weak, or noise"
    if off is not None and contradicts(off):
        away, multiple = off
        if away <= FITS:
            why = "a learning rate above"
            if multiple < 1:
                why = "clipping to a norm (--client fedavg with --set client.clip_norm=…), or a learning rate below"
            return [
                f"Contradicted by the truth: the update that was sent is {multiple:.3g} times that of the true "
                f"examples, as behind {why} the one {source} (--lr, --steps)."
            ]
        words = f"Contradicted by the truth: the update of the true examples is off by {share_words(away)} of its size"
        if under is not None:
            return [f"{words}; under --normalize {under} they give it: attack again with that."]
        weak = "Noise"
    if found:
        return [f"{words}. What the files show may be why: {'; '.join(found.values())}."]
    return [
        f"{words}. {weak} or rounding may hide it, or one of these is not the client's: "
        f"{', '.join(_questions(transcript))}."
    ]


def causes(transcript: Transcript, said: Mapping[str, str]) -> dict[str, str]:
    """Possible causes in the client of an unexplained update, by name: signs in the files that no attack models.

    Names are `noise`, `rounding`, `low precision`, `several passes`, `dropout`, `missing weights`, `other outputs`,
    `loss` and `rate`.

    Args:
        transcript: Transcript that the attacks were given.
        said: Name of each inferred fact, to its source.
    """
    look, found = UpdateAnalysis(transcript, inferred=said), dict[str, str]()
    knowledge = transcript.knowledge
    for mark in look.defenses:
        if mark.name == "noised":
            found["noise"] = f"noise (the update {mark.message}), which no attack knew of"
        if mark.name in ("rounded", "quantized"):
            found["rounding"] = f"rounding (the update {mark.message})"
    if look.low_precision:
        found["low precision"] = (
            "half precision or faint noise (the gradient of the last bias adds up to zero but for a thousandth)"
        )
    if "passes" in said:
        found["several passes"] = f"several batches in one step, or several steps ({said['passes']}): --steps"
    if knowledge.client.mode == "train" and draws(knowledge.model, knowledge.input_shape):
        found["dropout"] = (
            "dropout, noise or random paths (a pass in train mode draws random numbers, and attacks have none)"
        )
    if "weights" in said:
        found["missing weights"] = f"other weights than the client's ({said['weights']})"
    if OTHER_OUTPUTS in said:
        found[OTHER_OUTPUTS] = f"another loss than attacks assume ({said[OTHER_OUTPUTS]})"
    if ANOTHER_RATE in said:
        found["rate"] = (
            f"another learning rate, number of steps or loss, or Nesterov's momentum ({said[ANOTHER_RATE]}): --lr, "
            "--steps, --loss"
        )
    if UNKNOWN_RATE in said:
        found["rate"] = "a learning rate that nothing tells, so that the update was read up to a factor: --lr"
    if UNKNOWN_LOSS in said and "noise" not in found:
        found["loss"] = f"another loss ({said[UNKNOWN_LOSS]})"
    if "learning rate" in said:
        found["rate"] = f"another learning rate than the inferred one ({said['learning rate']}): --lr, --steps, --loss"
    return found


def _explains(row: Row) -> bool:
    """Whether guesses are of what was sent: by the truth, by the update that they give, or by proof where none is."""
    return row.leaks or row.fits or (bool(row.certificate) and row.misfit is None)


def _questions(transcript: Transcript) -> Iterator[str]:
    """The assumptions on the client in words, each with the option that changes it."""
    observed, knowledge = transcript[0], transcript.knowledge
    rule, rate, size = knowledge.client, observed.update.rate, observed.batch_size
    yield f"{rule.loss} (--loss)"
    if vocabulary_of(knowledge.model) is None and not is_image(knowledge.input_shape):
        low, high = knowledge.value_range
        yield f"values from {low:g} to {high:g} (--values)"
    if rate is not None or observed.update.kind == "delta":
        yield f"{_trained(transcript)} (--lr, --steps, --client)"
        yield f"{'that' if observed.update.decayed else 'no'} weight decay (--weight-decay)"
        clipped = next((one.message for one in UpdateAnalysis(transcript).defenses if one.name == "clipped"), None)
        if clipped is not None and not getattr(rule, "clip_norm", None):
            yield f"no clipping, though the update {clipped} (--client fedavg with --set client.clip_norm=…)"
    own = knowledge.architecture
    if len(knowledge.input_shape) == 3 and own is not None and "normalize" not in own.options:
        yield "no normalization (--normalize)"
    if has_batch_norm(knowledge.model):
        yield f"batch norm in {rule.mode} mode (--set client.mode=…)"
    yield f"{'an unknown number of' if size is None else size} example{'' if size == 1 else 's'} (--batch-size)"


# --- attacks that nobody asked for -------------------------------------------------------------------------------


def refusals(transcript: Transcript, asked: Collection[str]) -> dict[str, str]:
    """Name of each attack that was not requested and does not apply to a transcript, to the reason.

    Any other attack of this package was requested, or may apply.

    Args:
        transcript: Transcript that the attacks would be given.
        asked: Registered names of the requested attacks.
    """
    first = SingleRound(transcript.knowledge, transcript[0])  # read once, for all of them
    found = {}
    for name in ATTACKS:
        if name in asked:
            continue
        try:
            attack: Attack = ATTACKS.build(Spec(name))
            # Some solve for minutes before they know whether they apply: of those only the declared needs are checked.
            if ATTACKS[name].facts.get("slow_check"):
                attack.needs.check(first.knowledge, first.observed)
            else:
                attack.check(first if attack.rounds == "one" else transcript)
        except Inapplicable as refused:
            found[name] = str(refused)
        except Exception:  # an attack may be user code; a fault of it rules nothing out
            continue
    return found
