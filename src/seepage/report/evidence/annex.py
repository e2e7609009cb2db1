"""`annex.html`: a printed page for a data-protection impact assessment. No picture, no script, no network."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from seepage.audit.case import Case
from seepage.audit.verdict import answers, headline
from seepage.base.lock import scratch
from seepage.base.words import places_of
from seepage.errors import SeepageError, short
from seepage.report.evidence.statement import BARRED, Evidence, leaks_words
from seepage.report.first_screen import system_under_test
from seepage.report.formatting import duration, percent, unbroken
from seepage.report.page import STRONG
from seepage.report.table import case_words, share_of
from seepage.report.templates import page_environment

MOST_CASES = 4
"""Cases on the page, those that gave back most; the others stand in `result.json`."""

MOST_CAVEATS, LONGEST_DOUBT = 1, 250
"""Doubts in print, and characters of one where it has several sentences; `result.json` has all of them whole."""

MOST_WARNINGS = 3
"""Kinds of warnings in print."""

TO_FILL = (
    "Processing, its purposes and interest, GDPR Art. 35(7)(a)",
    "Necessity and proportionality, Art. 35(7)(b)",
    "Advice of the data protection officer, Art. 35(2)",
    "Views of data subjects, Art. 35(9)",
    "Who receives single updates, and where; kept until",
)
"""Lines of the controller's, which no run fills."""

BOUNDED = {"tpr": "members", "exact_share": "exact copies"}
"""What a bound is of."""

HEAD = re.compile(r"(?:([A-Z][A-Z ,]+\.) )?(.*)", re.DOTALL)
"""A verdict: the words in capitals that it begins with, and the rest."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")

PRINT_SECONDS = 120
"""Longest time that a browser may take to print the page."""


def annex(evidence: Evidence, *, digest: str, signer: str | None = None) -> str:
    """The page.

    Args:
        evidence: The run's evidence.
        digest: SHA-256 of the run's manifest.
        signer: Name of the key that signs the pack; None: none does.
    """
    result, letters = evidence.result, evidence.letters

    def risk(case: Case) -> tuple[float, int]:
        share = share_of(result, case)
        return (-1.0, 0) if share is None else (share.share, share.of)

    shown = sorted(sorted(result.judged, key=risk, reverse=True)[:MOST_CASES], key=result.judged.index)
    level = "quiet" if result.verdict_level == "nothing" else "partial"
    level = "leaks" if result.verdict_level in STRONG else level
    warnings = evidence.warning_lines
    files = [(case, [one for one in evidence.judged_files if one.case == case.name]) for case in shown]
    attacks = [(name, source, [one for one in evidence.findings if one.by == name])
               for name, source in evidence.sources.items()]  # fmt: skip
    style = Path(__file__).with_name("annex.css").read_text(encoding="utf-8")
    return (
        page_environment("report/evidence", filters=(duration, unbroken))
        .get_template("annex.html.j2")
        .render(
            e=evidence,
            cases=[(case, *(case_words(result, case, name) for name in ("recovered", "exact"))) for case in shown],
            left=len(result.judged) - len(shown),
            judged=[(letters[case.name], own) for case, own in files if own],
            attacks=attacks,
            leaks_words=leaks_words,
            tried=[one for one in evidence.findings if one.kind in ("attack", "membership")],
            taken=places_of((letters[case.name], case.assumed_update) for case in result.judged if case.assumed_update),
            observations=places_of(
                (letters[case.name], words) for case in shown for words in evidence.observations.get(case.name, [])
            ),
            inferred=list(dict.fromkeys(name for case in result.cases for name in case.inferred or {})),
            system=system_under_test(result.judged),
            letters=letters,
            parts={name: evidence.lettered(words) for name, words in evidence.summary.items()},
            answers=_answers(evidence),
            not_tried=[evidence.lettered(words) for words in evidence.not_tried if BARRED not in words],
            warnings=warnings[:MOST_WARNINGS],
            warnings_left=len(warnings[MOST_WARNINGS:]),
            asked=[("Threshold for acceptance", evidence.threshold or ""), *((what, "") for what in TO_FILL)],
            caveats=[_begun(words) for words in evidence.caveats[:MOST_CAVEATS]],
            caveats_left=len(evidence.caveats[MOST_CAVEATS:]),
            level=level,
            verdict=HEAD.fullmatch(evidence.lettered(headline(result))),
            digest=digest,
            signer=signer,
            style=style,
        )
    )


def _answers(evidence: Evidence) -> list[tuple[str, str]]:
    """The answers of the verdict, with shares over all cases and all that a claim rests on."""
    worst, mean = (evidence.risk_words(risk) for risk in (evidence.maximum_risk, evidence.average_risk))
    found = evidence.summary.get("reconstruction", "")
    risk = evidence.maximum_risk
    counted = risk is None or not risk.hits or f"{risk.hits:,} of {risk.of:,}" in found
    most = found if found and counted else "; ".join(filter(None, (worst, found)))
    said = [("reconstruction", most), *[("over all cases", mean)] * (len(evidence.result.judged) > 1)]
    for question, words in answers(evidence.result, brief=False):
        if question == "claimed":
            held = [case.promise for case in evidence.result.judged if case.promise is not None]
            promises = [promise for promise in held if promise.phrase in words]
            said.append((question, f"{words}; {promises[0].terms}" if promises else words))
        elif question == "upper bound":
            held_by = [row for row in evidence.result.bounds if row.assumption and row.words in words]
            rests = dict.fromkeys(part for row in held_by for part in row.assumption.rstrip(".").split("; "))
            binds = dict.fromkeys(f"of {BOUNDED.get(row.measure, row.measure)} {row.binds}" for row in held_by)
            more = f". It rests on this: {'; '.join(rests)}. It binds {'; '.join(binds)}"
            said.append((question, f"{words}{more * bool(rests)}"))
        elif question != "reconstruction":
            said.append((question, words))
    for case in (one for one in evidence.result.cases if one.control):  # which the page does not list
        said = [(what, words.replace(f" on {case.heading}", "")) for what, words in said]
    said = [(what, evidence.lettered(words)) for what, words in said]
    reached = [case.known_accuracy for case in evidence.result.cases if case.known_accuracy is not None]
    own = (
        f"of the models as attacked: {percent(min(reached))} to {percent(max(reached))}" if reached else "not measured"
    )
    price = dict(said).get("accuracy")
    return [*said[: -1 if price else None], ("accuracy", f"{price}; {own}" if price else own)]


def _begun(words: str) -> str:
    """The sentences that a text begins with, as many as there is room for and one at least.

    >>> _begun("It is wrong. " + "What to do: this. " * 20)[:60]
    'It is wrong. What to do: this. What to do: this. What to do:'
    >>> _begun("It is wrong. " + "What to do, " * 50)
    'It is wrong. The rest stands in result.json.'
    """
    kept, *rest = words.split(". ")
    while rest and len(kept) + len(rest[0]) < LONGEST_DOUBT:
        kept = f"{kept}. {rest.pop(0)}"
    return f"{kept}. The rest stands in result.json." if rest else kept


def find_browser() -> str | None:
    """A browser of Chromium's kind on this machine; the environment variable `SEEPAGE_BROWSER` names another."""
    return os.environ.get("SEEPAGE_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)


def print_page(page: Path, pdf: Path) -> None:
    """Print a page as PDF by a browser on this machine, which is given a profile of its own and no network.

    Raises:
        SeepageError: Where there is no browser, or it writes no file.
    """
    browser = find_browser()
    if browser is None:
        raise SeepageError(
            f"no browser was found to print {page.name} as PDF; install Chromium, or open the page and print it"
        )
    with scratch() as place:
        options = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
        options += ["--disable-component-update", f"--user-data-dir={place / 'profile'}", "--no-pdf-header-footer"]
        # Its sandbox refuses to start for root, as in a container. The page is our own, without scripts.
        options += ["--no-sandbox"] * (hasattr(os, "geteuid") and os.geteuid() == 0)
        command = [browser, *options, f"--print-to-pdf={pdf.resolve()}", page.resolve().as_uri()]
        try:
            ended = subprocess.run(command, capture_output=True, timeout=PRINT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SeepageError(
                f"{browser} did not print {page.name} ({short(str(error))}); print it by hand"
            ) from error
    if ended.returncode or not pdf.exists():
        raise SeepageError(f"{browser} did not print {page.name} (exit code {ended.returncode}); print it by hand")
