"""Diagnostics about a result row: what a reader must know before believing its numbers."""

from collections.abc import Sequence

from seepage.audit.row import Diagnostic, EpsilonRow, Row
from seepage.leakage.finding import Finding, note, warning


def attack_diagnostics(row: Row, *, contradicted: bool = False) -> list[Finding]:
    """Findings about one attack's result row: failed, diverged, not settled, or led astray by its objective.

    Args:
        row: The row.
        contradicted: The private examples do not give the update that was sent by the client's rule as it was told.
    """
    found, name = [], row.attack
    if row.status == "error":
        words = f"{name} failed ({row.reason}); that it has no score is no evidence of safety."
        found.append(warning("failed", words))
    if row.status == "diverged":
        words = f"{name} diverged (NaN or infinite objective); its score is no evidence of safety."
        found.append(warning("diverged", words))
    if row.status == "exhausted":
        words = f"{name} was still improving when its {row.cost.steps} steps ended"
        if row.cost.steps is None:
            words = f"{name} ended before all its guesses fitted to its own measure"
        found.append(note("not-settled", f"{words}; more steps may recover more."))
    wrong = row.certified.wrong if row.certified is not None else None
    if wrong:
        guesses = "1 guess that is" if wrong == 1 else f"{wrong} guesses that are"
        words = f"{name} vouches for {guesses} not exact: do not rely on what it calls certain here."
        found.append(warning("false-certificate", words, guesses=wrong))
    found += _objective_diagnostics(row, contradicted=contradicted)
    if row.told_extra:
        words = f"{name} was told more than the protocol shows: {', '.join(row.told_extra)}."
        found.append(note("told", words))
    return found


def _objective_diagnostics(row: Row, *, contradicted: bool) -> list[Finding]:
    """Whether the objective or the search was the limit of an attack that did not recover everything."""
    name, reached, truth = row.attack, row.objective, row.objective_at_truth
    if reached is None or truth is None or row.mean("recovered"):
        return []
    if reached < truth - 1e-6 * abs(truth):  # beyond rounding
        words = (
            f"{name} found inputs that fit its objective better ({reached:.3g}) than the truth does ({truth:.3g}): "
            f"{'what was told of the client' if contradicted else 'the objective'} is the limit, not the search."
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


def weak_claims(rows: Sequence[EpsilonRow]) -> list[Diagnostic]:
    """A warning on each claim of an epsilon that the measurement could not have contradicted without an assumption."""
    return [
        Diagnostic(
            cell=row.cell,
            name="cannot-contradict",
            severity="warning",
            message=f"{row.short_of}.",
            evidence={"ceiling": row.ceiling},
        )
        for row in rows
        if row.short_of
    ]
