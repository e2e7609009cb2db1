"""SARIF 2.1.0: a rule per attack, a result per attack and case, for platforms that show findings of scanners."""

from typing import Any

from seepage.audit.findings import AuditFinding
from seepage.base.registry import attacks as known_attacks
from seepage.base.registry import membership_tests
from seepage.base.words import for_sarif
from seepage.report.evidence.statement import Evidence

SCHEMA_URL = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"

KINDS = {
    "leaks": "fail", "quiet": "pass", "unjudged": "review", "skipped": "notApplicable", "unneeded": "informational",
    "untried": "open", "open": "open",
}  # fmt: skip
"""What SARIF calls the state of a finding; only a `fail` has a level."""


def sarif(evidence: Evidence, *, location: str = "recipe.toml") -> dict[str, Any]:
    """The log.

    Args:
        evidence: The run's evidence.
        location: The file that findings are shown at, relative to the root of the repository: a recipe, or the model.
    """
    found = evidence.findings
    rules = list(dict.fromkeys(one.by for one in found))
    driver = {
        "name": "seepage",
        "semanticVersion": evidence.tool.removeprefix("seepage "),
        "rules": [_rule(rule, evidence.sources.get(rule)) for rule in rules],
    }
    invocation: dict[str, Any] = {"executionSuccessful": all(one.state != "untried" for one in found)}
    lacking = [one for one in found if one.state == "untried"]
    if lacking:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": _sentence(f"{one.by} on {one.title} has no result. {one.words}")}}
            for one in lacking
        ]
    return {
        "$schema": SCHEMA_URL,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "automationDetails": {"id": "seepage/"},
                "invocations": [invocation],
                "results": [_result(one, rules.index(one.by), location) for one in found],
                "properties": {"verdict": evidence.result.verdict, "threatModel": evidence.threat_model.letter},
            }
        ],
    }


def _rule(name: str, published: str | None) -> dict[str, Any]:
    entry = known_attacks.get(name) or membership_tests.get(name)
    about = entry.about if entry is not None else "A measurement or attack of the auditor's own."
    if name == "epsilon":
        about = "The epsilon of the defense that really runs, measured by calling it, beside the one that is claimed."
    if name == "closed_form":
        about = "What the update reveals exactly by itself, read off its layers with no attack run."
    source = "" if published is None else f" Published: {for_sarif(published)}."
    return {
        "id": f"seepage/{name}",
        "name": "".join(part.capitalize() for part in name.replace("-", "_").replace(".", "_").split("_")),
        "shortDescription": {"text": _sentence(about)},
        "fullDescription": {"text": f"{_sentence(about)}{source}"},
        "help": {
            "text": f"{_sentence(about)}{source} Against it: larger batches, fewer numbers sent, noise that is "
            "clipped and accounted for; seepage frontier measures what each costs."
        },
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["privacy", "federated-learning"]},
    }


def _result(one: AuditFinding, index: int, location: str) -> dict[str, Any]:
    return {
        "ruleId": f"seepage/{one.by}",
        "ruleIndex": index,
        "kind": KINDS[one.state],
        "level": one.severity if one.state == "leaks" else "none",
        "message": {"text": _sentence(f"On {one.title}: {one.words}")},
        "locations": [
            {"physicalLocation": {"artifactLocation": {"uri": location}, "region": {"startLine": 1}}},
        ],
        "partialFingerprints": {"attackAndCase/v1": one.fingerprint},
        "properties": {"case": one.case},
    }


def _sentence(text: str) -> str:
    text = for_sarif(" ".join(text.split()))
    return text if text.endswith((".", "!", "?")) else f"{text}."
