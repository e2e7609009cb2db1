"""JUnit XML: one test case per finding, so that a build shows what leaks and what was not tried."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from seepage.audit.findings import AuditFinding
from seepage.base.words import for_xml
from seepage.report.evidence.statement import Evidence

ERRORS = ("untried", "open")
"""States of findings of which nobody knows what they would be."""


def junit(evidence: Evidence) -> str:
    """The document.

    A finding that leaks is a failure; one whose attack does not apply or was not needed, or whose guesses no truth
    judges, is skipped where another attack says what can be reconstructed; one that was asked for and has no result is
    an error, and so is each of a case of which nothing is known: what can be reconstructed there nobody can say.

    Args:
        evidence: The run's evidence.
    """
    found = evidence.findings
    root = ET.Element("testsuites", {"name": "seepage", **_counts(found)})
    for title in dict.fromkeys(one.title for one in found):
        inside = [one for one in found if one.title == title]
        stamp = {} if evidence.started is None else {"timestamp": for_xml(evidence.started.removesuffix("Z"))}
        suite = ET.SubElement(root, "testsuite", {"name": for_xml(title), **stamp, **_counts(inside)})
        for one in inside:
            names = {"name": for_xml(one.by), "classname": for_xml(f"seepage.{one.kind}.{one.case}")}
            element = ET.SubElement(suite, "testcase", {**names, "time": f"{one.seconds:.3f}"})
            if one.state == "leaks":
                ET.SubElement(element, "failure", message=for_xml(one.words), type=one.severity)
            elif one.state in ERRORS:
                ET.SubElement(element, "error", message=for_xml(one.words), type=one.state)
            elif one.state in ("skipped", "unneeded", "unjudged"):
                ET.SubElement(element, "skipped", message=for_xml(one.words))
            else:
                ET.SubElement(element, "system-out").text = for_xml(one.words)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(found: Sequence[AuditFinding]) -> dict[str, str]:
    states = [one.state for one in found]
    return {
        "tests": str(len(states)),
        "failures": str(states.count("leaks")),
        "errors": str(sum(state in ERRORS for state in states)),
        "skipped": str(sum(state in ("skipped", "unneeded", "unjudged") for state in states)),
        "time": f"{sum(one.seconds for one in found):.3f}",
    }
