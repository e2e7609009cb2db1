"""Membership tests of a run: one outcome on disk for each test and case, and its row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.base import Progress
from seepage.attacks.membership import MembershipInference, MembershipTest, p_values
from seepage.audit.attempt import Ended, tried
from seepage.audit.candidates import open_candidates
from seepage.audit.row import MembershipRow
from seepage.base.schema import Share
from seepage.base.storage import SCHEMA, check_schema, read_json, read_tensors, write_json, write_tensors
from seepage.errors import SeepageError
from seepage.federation.types import Transcript
from seepage.measure.metrics.membership import area_interval, area_under_curve

PER_MILLE = 0.001
"""False positive rate of the stricter share of members identified; needs at least 999 calibration scores."""


@dataclass(frozen=True)
class Judgment:
    """What a test says of the candidates of all rounds of a case.

    Attributes:
        status: `ok`, `inapplicable`, or `error` for a fault in the test's code.
        test: The test's `repr`.
        statistics: For each round `[k]` of its candidates.
        calibration: For each round `[c]` of the calibration examples.
        reference: Number of public examples that taught the test.
        reason: Why there is no result, and what to change.
        seconds: Wall time.
        cpu_seconds: Processor time.
        refusal: The name of what is in the way where the test does not apply.
    """

    status: Ended
    test: str
    statistics: Sequence[Tensor] = ()
    calibration: Sequence[Tensor] = ()
    reference: int = 0
    reason: str | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    refusal: str | None = None


FACTS = ("status", "test", "reason", "reference", "seconds", "cpu_seconds", "refusal")
"""What of a judgment is no tensor."""


def judge_members(
    test: MembershipTest, transcript: Transcript, observed: Path, *, seed: int, device: str, progress: Progress
) -> Judgment:
    """Run a test on the candidates of every round. An exception in its code becomes part of the judgment.

    Args:
        test: The test.
        transcript: What the server saw.
        observed: The folder of the candidates and public examples.
        seed: Seeds the test.
        device: Where to compute.
        progress: Called with the progress of the test.
    """
    candidates, public = open_candidates(observed, device)

    def inferred() -> list[Any]:
        inference, found = None, []
        for t, batch in enumerate(candidates):
            seen = transcript[t]
            if inference is None or not inference.fits(seen):  # a fitted one serves all rounds that it fits
                inference = MembershipInference(test, transcript, public, t=t, seed=seed, progress=progress)
            found.append(inference.of(seen, batch, progress=progress))
        return found

    found, status, reason, refusal, (seconds, cpu_seconds) = tried(inferred)
    if found is None:
        return Judgment(status, repr(test), reason=reason, refusal=refusal)
    statistics, calibration = [one.statistics for one in found], [one.calibration for one in found]
    return Judgment(
        "ok", repr(test), statistics, calibration, found[0].reference, seconds=seconds, cpu_seconds=cpu_seconds
    )


def save_judgment(judgment: Judgment, path: Path) -> None:
    """Write `PATH.safetensors` if there is a result, then `PATH.json`, whose presence marks completion."""
    if judgment.status == "ok":
        named = {"statistics": judgment.statistics, "calibration": judgment.calibration}
        tensors = {f"{t:06d}/{name}": part for name, parts in named.items() for t, part in enumerate(parts)}
        write_tensors(path.with_suffix(".safetensors"), tensors)
    facts = {name: getattr(judgment, name) for name in FACTS}
    facts |= {name: round(facts[name], 3) for name in ("seconds", "cpu_seconds")}
    write_json(path.with_suffix(".json"), {"schema": SCHEMA, **facts})


def open_judgment(path: Path) -> Judgment:
    """Read what `save_judgment` wrote."""
    facts: Mapping[str, Any] = read_json(path.with_suffix(".json"))
    check_schema(facts, path.with_suffix(".json"))
    try:
        tensors = read_tensors(path.with_suffix(".safetensors")) if facts["status"] == "ok" else {}
        parts = {
            name: [tensors[key] for key in sorted(tensors) if key.endswith(f"/{name}")]
            for name in ("statistics", "calibration")
        }
        known: dict[str, Any] = {name: facts[name] for name in FACTS}
        return Judgment(**known, statistics=parts["statistics"], calibration=parts["calibration"])
    except (KeyError, TypeError, ValueError) as error:
        raise SeepageError(
            f"{path}.json is damaged ({type(error).__name__}: {error}); delete it and run again"
        ) from error


def make_membership_row(
    case: str, name: str, judgment: Judgment, members: Sequence[Tensor], level: float, *, seed: int
) -> MembershipRow:
    """One line of the membership table: one test on one case.

    Args:
        case: The case's name.
        name: The test's name.
        judgment: What the test says.
        members: For each round `[k]` bool: which of its candidates were in the batch.
        level: Share of others that may be named by mistake.
        seed: Seeds the bootstrap interval.
    """
    row = MembershipRow(
        case=case,
        test=name,
        options=judgment.test,
        status=judgment.status,
        reason=judgment.reason,
        refusal=judgment.refusal,
        level=level,
        members=sum(int(part.sum()) for part in members),
        others=sum(int((~part).sum()) for part in members),
        seconds=judgment.seconds,
        cpu_seconds=judgment.cpu_seconds,
    )
    if judgment.status != "ok":
        return row
    if [len(part) for part in members] != [len(part) for part in judgment.statistics]:
        raise SeepageError(
            f"the membership test {name} on {case} judged other candidates; delete its files and run again"
        )
    own = torch.cat([s[m] for s, m in zip(judgment.statistics, members, strict=True)])
    rest = torch.cat([s[~m] for s, m in zip(judgment.statistics, members, strict=True)])
    pairs = zip(judgment.statistics, judgment.calibration, strict=True)
    p, member = torch.cat([p_values(*pair) for pair in pairs]), torch.cat(list(members))
    calibration = min(map(len, judgment.calibration))
    low, high = area_interval(own, rest, seed=seed)
    rates = {"members_identified": _share(p[member] <= level), "others_identified": _share(p[~member] <= level)}
    if calibration + 1 >= 1 / PER_MILLE:
        rates |= {
            "members_identified_per_mille": _share(p[member] <= PER_MILLE),
            "others_identified_per_mille": _share(p[~member] <= PER_MILLE),
        }
    return row.model_copy(
        update={
            "auc": round(area_under_curve(own, rest), 4),
            "auc_low": round(low, 4),
            "auc_high": round(high, 4),
            "reference": judgment.reference,
            "calibration": calibration,
            **rates,
        }
    )


def _share(hits: Tensor) -> Share:
    return Share.count(int(hits.sum()), len(hits))
