"""Markdown: a summary for the page of a build or of a merge request."""

from collections.abc import Sequence

from seepage.audit.findings import AuditFinding
from seepage.base.words import for_markdown
from seepage.report.evidence.statement import Evidence

WORDS = {
    "leaks": "**leaks**",
    "quiet": "nothing",
    "unjudged": "not judged",
    "skipped": "does not apply",
    "unneeded": "not needed",
    "untried": "**no result**",
    "open": "**not known**",
}


TELLING = ("leaks", "untried", "open")
"""States that a reader must see at once."""


def summary(evidence: Evidence) -> str:
    """What `$GITHUB_STEP_SUMMARY`, or a comment on a merge request, shows of a run."""
    lines = ["# seepage: what the updates reveal", "", for_markdown(evidence.result.verdict), ""]
    if warnings := evidence.warning_lines:
        lines += ["**Warnings:**", "", *(f"- {for_markdown(line)}" for line in warnings), ""]
    lines += [line for words in evidence.caveats for line in (for_markdown(words), "")]
    if evidence.maximum_risk is None:
        why = evidence.unscored[:1].upper() + evidence.unscored[1:] or "There is no case"
        lines += [f"{why}, so no share of private examples can be given.", ""]
    else:
        worst, average = (
            for_markdown(evidence.risk_words(share)) for share in (evidence.maximum_risk, evidence.average_risk)
        )
        lines += [
            f"Private examples recovered in the worst case, the maximum risk: {worst}. "
            f"Average over all cases: {average}.",
            "",
        ]
    if evidence.may_sign:
        lines += [f"**What may be signed?** {for_markdown(evidence.may_sign)}", ""]
    lines += ["| part of the verdict | finding |", "|---|---|"]
    lines += [f"| {for_markdown(name)} | {for_markdown(words)} |" for name, words in evidence.summary.items()]
    telling = [one for one in evidence.findings if one.state in TELLING]
    rest = [one for one in evidence.findings if one.state not in TELLING]
    if telling:
        lines += ["", *_table(telling)]
    if rest:
        lines += [
            "",
            "<details><summary>Attacks that found nothing, do not apply, or were not needed</summary>",
            "",
            *_table(rest),
        ]
        lines += ["", "</details>"]
    lines += ["", "**Not tried:**", "", *(f"- {for_markdown(item)}" for item in evidence.not_tried)]
    return "\n".join(lines) + "\n"


def _table(found: Sequence[AuditFinding]) -> list[str]:
    rows = ((for_markdown(one.title), for_markdown(one.by), WORDS[one.state], for_markdown(one.words)) for one in found)
    return ["| case | attack | state | finding |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
