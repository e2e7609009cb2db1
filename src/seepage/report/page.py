"""`report.html`: a run as one page for readers who are responsible for the data rather than the code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.case import Kind
from seepage.audit.recipe.places import shown_recipe
from seepage.audit.result_rows import identifies_members, open_membership, tells_members
from seepage.audit.row import PASSED_OVER, Case, Row
from seepage.audit.verdict import answers, caveat_lines, headline, not_asked, reasons, warning_lines
from seepage.base.images import LARGEST_SIDE, data_uri
from seepage.base.manifest import renew
from seepage.base.schema import Finding
from seepage.base.storage import write_whole
from seepage.base.words import places_of, plural
from seepage.report import formatting as words
from seepage.report.first_screen import MOST_PAIRS, best_examples, system_under_test
from seepage.report.leakage import open_exposed
from seepage.report.picture_choice import shows_pictures
from seepage.report.pictures import Examples, Guesses, Place, open_examples, truth_folder
from seepage.report.records import records_of
from seepage.report.run import RunFolder, open_run
from seepage.report.table import HEADINGS, CaseTexts, RowTexts, further_metrics, is_muted
from seepage.report.templates import page_environment
from seepage.report.texts import texts_of

STRIP_LENGTH = 8
"""Examples shown per case."""

LEVELS = {
    "certified": "Certified copies",
    "exact": "Exact copies",
    "recognizable": "Recognizable copies",
    "partial": "Partly recovered",
    "nothing": "Nothing recovered",
    "inconclusive": "Inconclusive",
}
"""The verdict in words; any other level means that nothing could be scored."""

STRONG = ("certified", "exact", "recognizable")
"""Levels at which examples were reconstructed."""


@dataclass(frozen=True)
class StripPicture:
    """One picture of a strip; without a `uri` the attack returned none."""

    alt: str
    uri: str | None = None
    caption: tuple[str, ...] = ()


def write_report(run: Path | RunFolder, *, pictures: bool | None = None) -> Path:
    """Write `report.html` into a finished run's folder: one file, no script, nothing from the network.

    With pictures the page holds private data, and must be kept like them.

    Args:
        run: The run folder, with `result.json`, or what was read of it.
        pictures: Whether to show private pictures and their reconstructions; otherwise only text and numbers. None: as
            it was last said of this run, and with pictures where nothing was said.

    Returns:
        Path of the page.

    Raises:
        SeepageError: Where the run is unfinished or damaged, or the folder cannot be written.
    """
    opened = open_run(run) if isinstance(run, Path) else run
    path = opened.folder / "report.html"
    write_whole(path, _render(opened, shows_pictures(opened.folder) if pictures is None else pictures))
    renew(opened.folder, [path.name])
    return path


def _render(run: RunFolder, pictures: bool) -> str:
    filters: tuple[Callable[..., str], ...] = (
        words.breakable,
        words.unbroken,
        words.number,
        words.signed,
        words.scientific,
        words.percent,
        words.count_of,
        words.duration,
        plural,
    )
    return page_environment("report", filters=filters).get_template("template.html.j2").render(_content(run, pictures))


def _content(run: RunFolder, pictures: bool) -> dict[str, Any]:
    beside = {case.name for case in run.result.cases if case.control}
    common, sections = _common_notes(run), [_section(run, case, pictures) for case in run.result.cases]
    kinds = {section["kind"] for section in sections}
    kind = next((one for one in ("pictures", "records", "texts") if one in kinds), "pictures")
    exposed, level = open_exposed(run.folder), run.result.verdict_level
    titles, tests = run.result.titles, run.result.judged_membership
    members = tells_members(tests)
    wrong = any(row.contradicted for row in run.result.epsilons)
    tokens = any(row.identified_tokens for row in run.result.judged_rows)
    every = [section["known"] for section in sections if section["known"]]
    known = [item for item in every[0] if all(item in found for found in every)] if every else []
    return {
        "run": run,
        "subject": _subject(run),
        "pictures": pictures,
        "command": run.env.command if pictures else run.shown_command,
        "recipe": run.recipe if pictures or run.recipe is None else shown_recipe(run.recipe),
        "kind": kind,
        "shows_truth": any(truth_folder(run, case) for case in run.result.cases),
        "certified": any(row.certified_examples for row in run.result.rows),
        "targets": {case.target for case in run.result.cases},
        "headline": headline(run.result),
        "answers": answers(run.result),
        "not_asked": not_asked(run.result.summary),
        "caveats": caveat_lines(run.result.cases),
        "warning_lines": warning_lines(run.flags, run.result.cases),
        "titles": titles,
        "exposed": exposed,
        "normed": any(one.batch_norm for one in exposed),
        # Somebody who was identified was harmed, whatever was reconstructed of the examples themselves.
        "level": "recognizable"
        if (members or wrong or tokens) and level not in STRONG
        else level
        if level in LEVELS
        else "unscored",
        "level_words": LEVELS.get(level, "Not scored")
        + "; tokens identified" * tokens
        + (
            "; members identified"
            if identifies_members(tests)
            else "; membership leaks"
            if members
            else "; membership open" * open_membership(tests)
        )
        + "; epsilon contradicted" * wrong,
        "cases": [CaseTexts(run.result, case) for case in run.result.cases],
        "none": words.NONE,
        "matrix": [
            (attack, [row and RowTexts(row) for row in (_row(run, attack, case) for case in run.result.cases)])
            for attack in run.attacks
        ],
        "sections": sections,
        "known": known,
        "pairs": _pairs(run) if pictures else [],
        "system": system_under_test(run.result.cases, known),
        "remarks": _remarks(run, common),
        "common": common,
        "diagnostics": _diagnostics(run),
        "warnings": len({flag.message for flag in run.flags if flag.severity == "warning" and flag.case not in beside}),
        "model_words": words.model_words,
        "training_words": words.training_words,
        "defense_words": words.defense_words,
        "is_muted": is_muted,
        "headings": HEADINGS,
        "glossary": words.GLOSSARY,
        "without_update": words.without_update,
        "untested": [case for case in run.result.cases if case.membership_skipped],
    }


def _subject(run: RunFolder) -> str:
    """What was audited, and when: `fc2 and convnet on album, 2026-11-24`; what is not known is left out."""
    models = _few([case.model for case in run.result.cases], "models")
    data = _few([case.data for case in run.result.cases], "data sets")
    return ", ".join(filter(None, (" on ".join(filter(None, (models, data))), (run.env.started or "")[:10])))


def _few(names: Sequence[str | None], what: str) -> str:
    found = list(dict.fromkeys(filter(None, names)))
    return " and ".join(found) if len(found) < 3 else f"{len(found)} {what}"


def _row(run: RunFolder, attack: str, case: Case) -> Row | None:
    return next((row for row in run.result.rows_of(case) if row.attack == attack), None)


# --- at a glance -------------------------------------------------------------------------------------------------


def _remarks(run: RunFolder, common: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Remarks about attacks that hold for all cases: reasons for missing results, and notes common to every case."""
    lacking = reasons((row for row in run.result.rows if row.reason or not _was_tried(row)), run.result.titles)
    return [*lacking, *((attack, f"every case: {note}") for attack, note in common)]


def _was_tried(row: Row) -> bool:
    """Whether the attack applied and was run."""
    return row.status not in ("inapplicable", *PASSED_OVER)


def _common_notes(run: RunFolder) -> list[tuple[str, str]]:
    """Notes that an attack made on every case on which it was run, if these are several."""
    found = []
    for attack in run.attacks:
        tried = [row for row in run.result.rows if row.attack == attack and _was_tried(row)]
        notes = dict.fromkeys(str(note) for row in tried for note in row.notes)
        found += [(attack, note) for note in notes if len(tried) > 1 and all(note in row.notes for row in tried)]
    return found


# --- one case ----------------------------------------------------------------------------------------------------


def _section(run: RunFolder, case: Case, shown: bool) -> dict[str, Any]:
    """One case, ready to be laid out; `shown`: with its examples."""
    rows = run.result.rows_of(case)
    tried = [row for row in rows if _was_tried(row)]
    known = [str(item) for item in tried[0].known] if tried else []
    found = open_examples(run, case) if shown else Examples()
    kind = case.kind or found.kind or "pictures"
    further = further_metrics(tried)
    return {
        "case": case,
        "accuracy": words.accuracy_words(case),
        "known": [item for item in known if all(item in map(str, row.known) for row in tried)],
        "side_information": any(row.side_information for row in tried),
        "rows": [RowTexts(row, further) for row in tried],
        "kind": kind,
        "further": further,
        "others": [row for row in rows if not _was_tried(row) or row.reason],
        "strips": _strips(run, tried, found) if found.kind == "pictures" else [],
        "texts": texts_of(run, case, found),
        "records": records_of(run, case, found),
        "remark": _remark(found, kind) if shown else f"This page was written without {kind}.",
    }


def _strips(run: RunFolder, rows: list[Row], pictures: Examples) -> list[tuple[str, str, list[StripPicture]]]:
    """Rows of pictures: whose they are, a remark, and the pictures."""
    numbers = {place: i for i, place in enumerate(pictures.places, 1)}
    places, strips = _strip_places(run, rows, [*numbers]), []
    if pictures.truth:
        shown = [_shown(pictures.private(place), f"Private example {numbers[place]}", ()) for place in places]
        strips.append(("private", "what the client holds", shown))
    for row in rows:
        if row.attack in pictures.guesses:
            guesses = pictures.guesses[row.attack]
            shown = [_guess(run, row, numbers[place], place, guesses) for place in places]
            strips.append((row.attack, _standing(row), shown))
    return strips


def _strip_places(run: RunFolder, rows: Sequence[Row], places: list[Place]) -> list[Place]:
    """The examples that are shown, in batch order: those that attacks came closest to, else the first ones."""

    def closest(place: Place) -> tuple[float, float]:
        found = [
            [run.scores.get((row.case, row.attack, *place, name)) for row in rows] for name in ("likeness", "psnr")
        ]
        by_likeness, by_psnr = (max((value for value in some if value is not None), default=-1.0) for some in found)
        return -by_likeness, -by_psnr

    return sorted(sorted(places, key=closest)[:STRIP_LENGTH])


def _pairs(run: RunFolder) -> list[tuple[Case | None, str, StripPicture, StripPicture]]:
    """The closest reconstructions of the run beside the private pictures, where both are in the folder.

    Returns:
        The case, where several are judged, the attack, what the client holds, and what the attack made of the update.
    """
    opened, pairs = dict[str, Examples](), list[tuple[Case | None, str, StripPicture, StripPicture]]()
    several = sum(not case.control for case in run.result.cases) > 1
    for case, attack, place in best_examples(run):
        if len(pairs) == MOST_PAIRS:
            break
        if case.name not in opened:
            opened[case.name] = open_examples(run, case)
        pictures, row = opened[case.name], _row(run, attack, case)
        held = pictures.kind == "pictures" and pictures.truth is not None and place in pictures.places
        if held and row is not None and attack in pictures.guesses:
            number = pictures.places.index(place) + 1
            private = _shown(pictures.private(place), f"Closest: private example {number} of {case.heading}", ())
            guess = _guess(run, row, number, place, pictures.guesses[attack])
            if guess.uri is not None:  # what was not returned is scored as mid-gray
                guess = replace(guess, alt=f"Closest: {guess.alt}")
                pairs.append((case if several else None, attack, private, guess))
    return pairs


def _standing(row: Row) -> str:
    """The line under an attack's name beside its pictures."""
    if not row.scored:
        return ", ".join(filter(None, (_proof(row), row.misfit_words)))
    share = row.mean("recovered")
    return f"{words.count_of(share, row.examples)} recovered" if share else row.phrase


def _proof(row: Row) -> str:
    """What an attack that was not scored proves of its guesses."""
    if row.identified_tokens:
        return row.certificate
    if row.certified is None:
        return "guesses that it cannot certify, not scored"
    if not row.certified_examples:
        return "no guess certified, not scored"
    return f"{row.certified_examples} of {plural(row.returned or row.certified_examples, 'guess')} certified"


PROOF = {
    True: ("certified", "proved, from what was sent alone, to be an exact copy"),
    False: ("not certified", "a guess that nothing proves"),
}
"""What stands under a picture without a truth, and what it means, by whether the attack certifies it."""


def _guess(run: RunFolder, row: Row, number: int, place: Place, guesses: Guesses) -> StripPicture:
    what, picture = f"{row.attack}, example {number}", guesses.at(place)
    if picture is None:
        return _shown(None, f"{what}: not returned", ())
    psnr, ssim = (run.scores.get((row.case, row.attack, *place, metric)) for metric in ("psnr", "ssim"))
    caption = [f"{words.number(psnr)} dB"] if psnr is not None else []
    caption += [f"SSIM {words.number(ssim, 2)}"] if ssim is not None else []
    sure = None if row.scored else guesses.is_certified(place)
    proof = [] if sure is None else [PROOF[sure][0]]
    meaning = [] if sure is None else [f"{PROOF[sure][0]}: {PROOF[sure][1]}"]
    return _shown(picture, ", ".join([what, *caption, *meaning]), tuple(caption + proof))


def _shown(picture: Tensor | None, alt: str, caption: tuple[str, ...]) -> StripPicture:
    return StripPicture(alt, None if picture is None else data_uri(picture), caption)


def _remark(pictures: Examples, kind: Kind) -> str:
    total, size = len(pictures.places), pictures.size
    if size is None:
        other = {"pictures": "the data are no pictures, or ", "records": "the data are no rows of a table, or "}
        other["texts"] = "no vocabulary is at hand that has words for their tokens, or "
        return f"There are no {kind} to show: {other.get(kind, '')}no attack returned any."
    which = ("first ", "") if pictures.truth is None else ("", " that attacks came closest to")
    some = f"The {which[0]}{STRIP_LENGTH} of {total:,} examples{which[1]}, in batch order"
    parts = [f"{some}; {total - STRIP_LENGTH:,} more are not shown."]
    parts = parts if total > STRIP_LENGTH else [f"All {plural(total, 'example')}." if total > 1 else "The one example."]
    parts += ["The private pictures are not in this folder."] * (pictures.truth is None)
    if pictures.truth is None and any(guess.certified for guess in pictures.guesses.values()):
        parts += [f"{word.capitalize()}: {meaning}." for word, meaning in PROOF.values()]
    if max(size) > LARGEST_SIDE:
        parts.append(f"Reduced from {size[1]} \N{MULTIPLICATION SIGN} {size[0]} pixels.")
    return " ".join(parts)


# --- cautions ----------------------------------------------------------------------------------------------------


def _diagnostics(run: RunFolder) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """The diagnostics grouped by kind, warnings first: the severity, and each message once with all of its places."""
    titles, groups = run.result.titles, dict[tuple[str, str], list[tuple[str, str]]]()
    for flag in sorted(run.flags, key=lambda flag: flag.severity != "warning"):
        severity = "warning" if flag.severity == "warning" else "note"
        groups.setdefault((severity, flag.name), []).append((_where(flag, titles), flag.message))
    return [(severity, list(places_of(dict.fromkeys(said)).items())) for (severity, _), said in groups.items()]


def _where(flag: Finding, titles: dict[str, str]) -> str:
    parts = [titles.get(flag.case, flag.case)] if flag.case else []
    parts += [flag.attack] if flag.attack else []
    return ": ".join(parts) or "the whole run"
