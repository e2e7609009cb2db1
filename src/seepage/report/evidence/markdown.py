"""Markdown: a summary for the page of a build or of a merge request, and a section for a model card."""

from collections.abc import Sequence

from seepage.audit.findings import AuditFinding
from seepage.audit.row import counted_features, counted_guesses
from seepage.base.words import for_markdown
from seepage.report.evidence.statement import Evidence, counted_given

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
    lines = [
        "# seepage: what the updates reveal",
        "",
        for_markdown(evidence.verdict),
        "",
        *_warnings(evidence),
        *_caveats(evidence),
        *_risks(evidence),
        "",
        *([f"**What may be signed?** {for_markdown(evidence.may_sign)}", ""] if evidence.may_sign else []),
    ]
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


def model_card(evidence: Evidence) -> str:
    """A section for a model card, as model hubs show them: what an update of this model reveals in training."""
    date = (evidence.started or "")[:10] or "an unknown day"
    lines = [
        "## Privacy of updates in federated learning",
        "",
        f"Audited on {for_markdown(date)} with {for_markdown(evidence.tool)} by {for_markdown(evidence.auditor)}:",
        f"{for_markdown(evidence.subject)}.",
        f"The attacker is an honest-but-curious server (threat model {evidence.threat_model.letter}, "
        f"{for_markdown(evidence.threat_model.name)}, of {for_markdown(evidence.threat_model.source)}).",
        "",
        for_markdown(evidence.verdict),
        "",
        *_warnings(evidence),
        *_caveats(evidence),
        *_risks(evidence),
        "",
        "| setting | defense | recovered | exactly | best attack | numbers sent per private number |",
        "|---|---|---|---|---|---|",
    ]
    for case in evidence.cases:
        beside = " (no finding: it shows that these attacks work)" if case.control else ""
        cells = [f"{case.letter}: {case.title}{beside}", case.defense_words, case.recovered_words]
        cells += [case.exact_words, case.best or "none"]
        cells += ["not known" if case.ratio is None else f"{case.ratio:g}"]
        lines.append(f"| {' | '.join(map(for_markdown, cells))} |")
    lines += ["", "Attacks: " + "; ".join(for_markdown(f"{one.name} ({one.source})") for one in evidence.attacks) + "."]
    lines += ["", "### Not tried", "", *(f"- {for_markdown(item)}" for item in evidence.not_tried)]
    lines += ["", "### When to audit again", "", *(f"- {for_markdown(item)}" for item in evidence.audit_again)]
    return "\n".join(lines) + "\n"


def _warnings(evidence: Evidence) -> list[str]:
    """What limits the numbers, right under the verdict."""
    lines = evidence.warning_lines
    return ["**Warnings:**", "", *(f"- {for_markdown(line)}" for line in lines), ""] if lines else []


def _caveats(evidence: Evidence) -> list[str]:
    """A paragraph for each caveat."""
    return [line for words in evidence.caveats for line in (for_markdown(words), "")]


def _risks(evidence: Evidence) -> list[str]:
    if evidence.maximum_risk is None or evidence.average_risk is None:
        certified = sum(case.certified for case in evidence.judged)
        features = sum(case.certified_features for case in evidence.judged)
        proofs = [counted_guesses(certified)] * bool(certified) + [counted_features(features)] * bool(features)
        given = max((case.exposed_examples or 0 for case in evidence.judged), default=0)
        proofs += [counted_given(given)] * bool(given and not certified)
        without = f" What proves itself: {'; '.join(proofs)}." if proofs else ""
        why = evidence.unscored.capitalize() or "There is no case"
        return [f"{why}, so no share of private examples can be given.{without}"]
    return [
        f"Private examples recovered in the worst case, the maximum risk: "
        f"{for_markdown(evidence.risk_words(evidence.maximum_risk))}. Average over all cases: "
        f"{for_markdown(evidence.risk_words(evidence.average_risk))}."
    ]


def _table(found: Sequence[AuditFinding]) -> list[str]:
    rows = ((for_markdown(one.title), for_markdown(one.by), WORDS[one.state], for_markdown(one.words)) for one in found)
    return ["| case | attack | state | finding |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
