"""What GitLab reads beside JUnit: a report of code quality, and one of metrics in OpenMetrics' text format."""

from collections.abc import Sequence
from typing import Any, get_args

from seepage.core.words import for_label
from seepage.evidence.findings import Found, State
from seepage.evidence.statement import CaseShare, Evidence

SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}
"""Our severities in the words of the report of code quality."""


def code_quality(found: Sequence[Found], *, location: str = "recipe.toml") -> list[dict[str, Any]]:
    """The report of code quality: one entry for all that leaks, has no result, or is not known.

    Args:
        found: The findings.
        location: The file that they are shown at, relative to the root of the repository.
    """
    return [
        {
            "description": f"{one.rule} on {one.case}: {one.words}",
            "check_name": f"seepage/{one.rule}",
            "fingerprint": one.fingerprint,
            "severity": SEVERITIES[one.severity],
            "location": {"path": location, "lines": {"begin": 1}},
        }
        for one in found
        if one.state in ("leaks", "untried", "open")
    ]


def open_metrics(evidence: Evidence, found: Sequence[Found]) -> str:
    """Numbers that a merge request compares with those of the branch it goes to."""
    lines = [
        "# TYPE seepage_recovered_share gauge",
        "# HELP seepage_recovered_share Private examples recovered.",
    ]
    for case in evidence.judged:
        if case.recovered is not None and case.inconclusive is None:
            lines.append(f'seepage_recovered_share{{case="{for_label(case.case)}"}} {_share(case.recovered)}')
    for name, share in (("maximum", evidence.maximum_risk), ("average", evidence.average_risk)):
        if share is not None and not evidence.risk_words(share).startswith("inconclusive"):
            lines += [f"# TYPE seepage_{name}_risk gauge", f"# HELP seepage_{name}_risk Of recovered examples."]
            lines.append(f"seepage_{name}_risk {_share(share)}")
    lines += ["# TYPE seepage_findings gauge", "# HELP seepage_findings Attacks and cases by state."]
    for state in get_args(State):
        lines.append(f'seepage_findings{{state="{state}"}} {sum(one.state == state for one in found)}')
    return "\n".join([*lines, "# EOF"]) + "\n"


def _share(share: CaseShare) -> str:
    return f"{share.hits / share.of:.6g}"
