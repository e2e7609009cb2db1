"""JUnit XML: one test case per finding, so that a build shows what leaks and what was not tried."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from seepage.evidence.findings import Found
from seepage.evidence.statement import Evidence

_NOT_XML = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""All but the characters of XML 1.0, production 2."""


ERRORS = ("untried", "open")
"""States of findings of which nobody knows what they would be."""


def junit(evidence: Evidence, found: Sequence[Found]) -> str:
    """The document.

    A finding that leaks is a failure; one whose attack does not apply or was not needed, or whose guesses no truth
    judges, is skipped where another attack says what comes back; one that was asked for and has no result is an error,
    and so is each of a case of which nothing is known: what comes back there nobody can say.

    Args:
        evidence: The run's evidence.
        found: Its findings.
    """
    root = ET.Element("testsuites", {"name": "seepage", **_counts(found)})
    for case in dict.fromkeys(one.case for one in found):
        inside = [one for one in found if one.case == case]
        stamp = {} if evidence.started is None else {"timestamp": evidence.started.removesuffix("Z")}
        suite = ET.SubElement(root, "testsuite", {"name": _plain(case), **stamp, **_counts(inside)})
        for one in inside:
            names = {"name": _plain(one.rule), "classname": _plain(f"seepage.{one.kind}.{one.cell}")}
            element = ET.SubElement(suite, "testcase", {**names, "time": f"{one.seconds:.3f}"})
            if one.state == "leaks":
                ET.SubElement(element, "failure", message=_plain(one.words), type=one.severity)
            elif one.state in ERRORS:
                ET.SubElement(element, "error", message=_plain(one.words), type=one.state)
            elif one.state in ("skipped", "unneeded", "unjudged"):
                ET.SubElement(element, "skipped", message=_plain(one.words))
            else:
                ET.SubElement(element, "system-out").text = _plain(one.words)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _counts(found: Sequence[Found]) -> dict[str, str]:
    states = [one.state for one in found]
    return {
        "tests": str(len(states)),
        "failures": str(states.count("leaks")),
        "errors": str(sum(state in ERRORS for state in states)),
        "skipped": str(sum(state in ("skipped", "unneeded", "unjudged") for state in states)),
        "time": f"{sum(one.seconds for one in found):.3f}",
    }


def _plain(text: str) -> str:
    r"""Without characters that XML 1.0 has no place for; names of cases and reasons may be a stranger's.

    >>> _plain("a\x00b\ud800")
    'ab'
    """
    return _NOT_XML.sub("", text)
