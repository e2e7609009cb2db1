"""The report: what stands on it, and what does not."""

import base64
import io
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.helpers.rows import put

from seepage.base.images import LARGEST_SIDE
from seepage.errors import SeepageError
from seepage.federation.transcript.truth import open_truth
from seepage.report import write_grid, write_report

Build = Callable[..., Path]
Change = Callable[..., None]
Read = Callable[[Path], Any]
Picture = Callable[[Path], Image.Image]


def decode(attributes: dict[str, str | None]) -> np.ndarray[Any, Any]:
    kind, _, data = str(attributes["src"]).partition(",")
    assert kind == "data:image/png;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    image.load()
    assert image.format == "PNG"
    return np.asarray(image)


def test_the_page_stands_alone(tmp_path: Path, build_run: Build, report: Read) -> None:
    run = build_run(tmp_path)
    page, text = report(run), (run / "report.html").read_text(encoding="utf-8")
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href", "srcset", "action", "poster", "background"):
            assert str(attributes.get(name) or "#").startswith(("data:image/png;base64,", "#")), (tag, name)
    css = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    policies = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'; img-src data:;")


def test_the_page_can_be_found_ones_way_in(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(build_run(tmp_path))
    assert page.all("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    counts = Counter(tag for tag, _ in page.tags)
    assert (counts["main"], counts["h1"], counts["title"]) == (1, 1, 1)
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))
    identities = [str(attributes["id"]) for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    assert {str(link["href"])[1:] for link in page.all("a")} <= set(identities)
    assert all(attributes["aria-labelledby"] in identities for attributes in page.all("section"))


def test_pictures_are_the_private_ones_and_the_guesses(tmp_path: Path, build_run: Build, report: Read) -> None:
    run = build_run(tmp_path, cases=("a", "b"), attacks=("dlg",))
    images = [image for image in report(run).all("img") if not str(image["alt"]).startswith("Closest")]
    shown = {str(image["alt"]): decode(image) for image in reversed(images)}  # the first case's overwrite the last's
    wanted = (open_truth(run / "private" / "a")[0].inputs * 255).round().numpy().transpose(0, 2, 3, 1)
    for i in range(3):
        np.testing.assert_array_equal(shown[f"Private example {i + 1}"], wanted[i])
    brighter = np.clip(wanted[2] / 255 + 0.1, 0, 1) * 255
    guess = next(levels for alt, levels in shown.items() if alt.startswith("dlg, example 3"))
    assert np.abs(guess - brighter).max() <= 1
    assert all(image["alt"] for image in images)
    # 2 cases x 3 private, and 3 guesses of which one was not returned; the attack does not apply to the other case.
    assert len(images) == 6 + 2


def test_what_was_not_returned_is_marked_and_not_shown(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(build_run(tmp_path, cases=("a",), attacks=("linear",)))
    marks = [attributes for attributes in page.all("div") if attributes.get("class") == "missing"]
    assert [mark["aria-label"] for mark in marks] == ["linear, example 2: not returned"]
    assert "not returned" in page.words
    assert "20.5 dB" in page.words
    assert "22.5 dB" in page.words
    assert "21.5 dB" not in page.words  # the score of the mid-gray stand-in


def test_numbers_reach_the_table(tmp_path: Path, build_run: Build, report: Read) -> None:
    text = report(build_run(tmp_path)).words
    for wanted in ("41.2", "39.8", "38.0 to 44.0", "0.90", "+24.0", "2/3", "1/3", "100 %", "1.2 s"):
        assert wanted in text, wanted
    assert re.search(r"mean color .*17\.1 dB, SSIM 0\.20", text)
    assert re.search(r"likeness of at least 0\.4", text)
    assert re.search(r"fc2\(hidden=8\), 97,290 parameters; .* accuracy 7 % on 120 ", text)


def test_rounds_over_one_data_set_say_how_much_they_drew_from(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, cases=("a",))
    rounds = {"design": "epochs", "count": 12, "samples": 24, "later": None}
    change(run, lambda result: result["cases"][0].update(rounds=rounds))
    assert re.search(r"12 batches of 3 examples, .* 24 examples from album", report(run).words)
    change(run, lambda result: result["cases"][0].update(rounds={"count": 12}))
    with pytest.raises(SeepageError, match="lacks 'samples'"):
        report(run)


UNSCORED = dict.fromkeys(
    ("psnr", "psnr_median", "psnr_low", "psnr_high", "recovered", "exact", "ssim", "gain_db", "label_accuracy")
)
NOTHING = {"outcome": "nothing recovered", "psnr": 39.0, "recovered": 0.0, "exact": 0.0}


def test_the_verdict_says_its_level_in_words(tmp_path: Path, build_run: Build, report: Read) -> None:
    levels = {"exact": "Exact copies", "recognizable": "Recognizable", "partial": "Partly recovered",
              "nothing": "Nothing", "a new word": "Not scored"}  # fmt: skip
    for level, wanted in levels.items():
        page = report(build_run(tmp_path / level, level=level))
        verdict = page.words[: page.words.index("The question.")]
        assert wanted in verdict
        assert "1 warning" in verdict
        assert "contains private data" in page.words


def test_nothing_recovered_is_said_whatever_the_psnr(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    assert "nothing recovered" not in report(run).words
    change(run, lambda result: put(result["rows"][0], **NOTHING))
    page = report(run)
    assert page.words.count("nothing recovered") == 3  # matrix, table, pictures
    assert "39.0" in page.words


def test_what_does_not_apply_is_one_line_with_its_reason(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(build_run(tmp_path))
    assert "dlg, does not apply (convnet_size-3 (title)): the batch is too large; use another attack" in page.words
    assert "dlg: does not apply (why)" in page.words
    assert "— does not apply" in page.words


def test_a_case_is_a_line_with_its_best_attack_and_the_matrix_is_folded(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    cases = tuple("abcde")
    run = build_run(tmp_path, cases=cases)

    def spread(result: dict[str, Any]) -> None:
        for place, case in enumerate(result["cases"]):
            case.update(model=f"net{place}")
        for row in result["rows"]:
            put(row, recovered=1.0 if row["attack"] == "dlg" and row["case"] == "b" else 0.0, exact=0.0)

    change(run, spread)
    page = report(run)
    text = write_report(run).read_text(encoding="utf-8")
    head, _, folded = text[: text.index('id="system"')].partition("Every attack on every case")
    table = head[head.index("Best attack") :]
    assert table.count('<tr class="muted"><th scope="row">') == 4
    (line,) = re.findall(r'<tr><th scope="row">.*?</tr>', table, re.DOTALL)
    assert "#case-2" in line
    assert "dlg" in line
    assert "3 of 3 [" in line
    assert 'class="matrix"' in folded
    assert 'class="matrix"' not in head
    assert re.search(r"Model net0[^;]*; net1[^;]*; net2[^;]*; net3[^;]*; net4", page.words), "each model is named"


SAID: list[tuple[dict[str, Any], dict[str, Any], str, bool]] = [
    ({"accuracy_examples": 29, "accuracy": 1.0}, {}, "unseen", False),
    ({"accuracy_examples": 30, "accuracy": 1.0}, {}, "unseen", True),
    ({"accuracy_examples": None, "accuracy": 1.0}, {}, "unseen", False),
    ({"training_steps": 100}, {}, "trained for 100 steps", True),
    ({"inferred": {"batch size": "3, from the rank"}}, {}, "Inferred, not stated batch size: 3, from the rank", True),
    ({}, UNSCORED | {"status": "error", "outcome": "failed", "reason": "it fell over"}, "failed: it fell over", True),
    ({}, UNSCORED | {"outcome": "features only"}, "\N{EM DASH} features only", True),
    ({}, UNSCORED | {"outcome": "zero update"}, "\N{EM DASH} zero update", True),
]


@pytest.mark.parametrize(("case", "row", "words", "said"), SAID)
def test_what_is_known_of_case_and_row_is_said(
    tmp_path: Path, build_run: Build, report: Read, change: Change, case: Any, row: Any, words: str, said: bool
) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    change(run, lambda result: (result["cases"][0].update(case), put(result["rows"][0], **row)))
    assert (words in report(run).words) is said


def test_what_all_cases_have_in_common_is_said_once(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, cases=("a", "b", "c"), attacks=("linear", "dlg", "cafe"))

    def spoil(result: dict[str, Any]) -> None:
        for row in result["rows"]:
            row["notes"] = ["said of all", f"true of {row['case']}"]
            if row["attack"] == "cafe":
                put(
                    row,
                    **UNSCORED | {"status": "inapplicable", "outcome": "does not apply", "reason": "there is no layer"},
                )

    change(run, spoil)
    text = report(run).words
    assert text.count("there is no layer") == 1
    assert "cafe, does not apply (3 of 3 cases): there is no layer" in text
    assert text.count("said of all") == 2, "once for each attack that was tried"
    assert [text.count(f"true of {case}") for case in "abc"] == [2, 2, 2]
    assert text.count("Attacker knows") == text.count("Attacker knows model, update The question.") == 1
    change(run, lambda result: [row["known"].append("indices") for row in result["rows"] if row["case"] == "b"])
    text = report(run).words
    assert text.count("Attacker knows model, update The question.") == 1
    assert text.count("Attacker knows model, update, indices") == 1


def test_what_an_attacker_was_told_is_a_column_only_where_it_was(
    tmp_path: Path, build_run: Build, report: Read
) -> None:
    assert "Knew more" not in report(build_run(tmp_path / "plain", attacks=("linear",))).words
    assert "Knew more" in report(build_run(tmp_path / "known", attacks=("linear", "dlg"))).words


def test_a_case_that_was_not_recorded_says_why_once(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    run = build_run(tmp_path, cases=("a", "b"))
    why = UNSCORED | {"status": "inapplicable", "outcome": "not recorded", "reason": "too few examples", "known": []}

    def skip(result: dict[str, Any]) -> None:
        result["cases"][1] = {"name": "b", "title": "case B", "baselines": None, "skipped": "too few examples"}
        for row in result["rows"]:
            if row["case"] == "b":
                put(row, **why)

    change(run, skip)
    text = report(run).words
    assert "linear, dlg, not recorded (case B): too few examples" in text
    assert text.count("too few examples") == 2
    assert "rule not recorded" not in text


def test_all_scores_may_be_null(tmp_path: Path, build_run: Build, report: Read, change: Change) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    bare: dict[str, Any] = {"case": "a", "attack": "dlg", "outcome": "not_scored", "known": []}
    change(run, lambda result: result.update(rows=[bare], cases=[{"name": "a", "batch_size": None}]))
    (run / "scores.jsonl").unlink()
    page = report(run)
    assert "not scored" in page.words
    assert "None" not in page.words
    assert "nan" not in page.words


def test_a_run_without_truth_shows_reconstructions_alone(
    tmp_path: Path, build_run: Build, report: Read, picture: Picture
) -> None:
    run = build_run(tmp_path, truth=False)
    page = report(run)
    assert "no score is possible" in page.words
    alts = [str(image["alt"]) for image in page.all("img")]
    assert alts
    assert not any(alt.startswith("Private") for alt in alts)
    assert " dB," not in page.words.split("How to read")[0]
    assert picture(write_grid(run)).format == "PNG"


def test_a_single_case_may_keep_its_truth_without_a_folder(tmp_path: Path, build_run: Build, report: Read) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",))
    (run / "private" / "a" / "truth.safetensors").rename(run / "private" / "truth.safetensors")
    assert "Private example 1" in [image["alt"] for image in report(run).all("img")]


def test_no_more_than_eight_examples_over_all_rounds_those_that_are_closest(
    tmp_path: Path, build_run: Build, report: Read
) -> None:
    run = build_run(tmp_path, cases=("a",), attacks=("dlg",), batches=(5, 6))
    lines = [json.loads(line) for line in (run / "scores.jsonl").read_text().splitlines()]
    psnr = {(one["round"], one["example"]): one["value"] for one in lines if one["metric"] == "psnr"}
    places = [(t, i) for t, size in enumerate((5, 6)) for i in range(size)]
    worst = sorted(places, key=lambda place: 1.0 if psnr.get(place) is None else -psnr[place])[8:]
    assert worst != places[8:]
    page = report(run)
    private = [str(image["alt"]) for image in page.all("img") if str(image["alt"]).startswith("Private")]
    assert private == [f"Private example {n}" for n, place in enumerate(places, 1) if place not in worst]
    assert "The 8 of 11 examples that attacks came closest to" in page.words


def test_data_that_are_no_pictures_give_numbers_only(
    tmp_path: Path, build_run: Build, report: Read, picture: Picture
) -> None:
    run = build_run(tmp_path, shape=(2, 3, 7))
    page = report(run)
    assert page.all("img") == []
    assert "41.2" in page.words
    assert "no pictures to show" in page.words
    assert picture(write_grid(run)).format == "PNG"


def test_records_without_names_stand_as_the_model_reads_them(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(build_run(tmp_path, cases=("a",), attacks=("dlg",), shape=(7,)))
    assert "Record 3: dlg" in page.words


def test_large_pictures_are_reduced_and_gray_ones_shown(tmp_path: Path, build_run: Build, report: Read) -> None:
    page = report(build_run(tmp_path, cases=("a",), attacks=("dlg",), shape=(1, 200, 300), batches=(1,)))
    assert {decode(image).shape for image in page.all("img")} == {(85, LARGEST_SIDE, 3)}
    assert "Reduced from 300 \N{MULTIPLICATION SIGN} 200 pixels." in page.words


def test_flags_come_warnings_first_and_each_message_once(tmp_path: Path, build_run: Build, report: Read) -> None:
    text = report(build_run(tmp_path)).words
    flags = text[text.index("Diagnostics Cautions") : text.index("How to read the numbers")]
    assert flags.index("Warning Mind the gap. (the whole run)") < flags.index("Note It was stated.")
    assert flags.count("It was stated.") == 1
    assert "raised in 4 places" in flags


def test_the_head_says_what_was_audited_and_when(tmp_path: Path, build_run: Build, report: Read) -> None:
    words = report(build_run(tmp_path)).words
    assert f"Leakage report: fc2 on album, 2026-01-02 Run {tmp_path.name} Exact copies" in words
    system = words[words.index("System under test") : words.index("The question.")]
    assert "Model fc2" in system
    assert "Data album" in system
    assert "Defense none" in system
    assert "Attacker knows model, update" in system


def test_the_closest_reconstructions_stand_with_the_verdict(
    tmp_path: Path, build_run: Build, report: Read, change: Change
) -> None:
    """Of each case the closest first, since its copies are exact; of a control none; none where none are to be seen."""
    page = report(build_run(tmp_path))
    first = page.text[: page.text.index("System under test")]
    assert first.index("Some of it leaks.") < first.index("Private above, closest reconstruction below")
    closest = [str(image["alt"]) for image in page.all("img") if str(image["alt"]).startswith("Closest")]
    assert len(closest) == 2 * 4
    assert ["private example" in alt for alt in closest] == [True, False] * 4
    change(tmp_path, lambda result: result["cases"][1].update(control=True))
    shown = [str(image["alt"]) for image in report(tmp_path).all("img")]
    assert not [alt for alt in shown if alt.startswith("Closest") and "convnet" in alt]
    hidden = write_report(tmp_path, pictures=False).read_text(encoding="utf-8")
    assert "<img" not in hidden
    assert "closest reconstruction" not in hidden


def test_how_the_run_was_made(tmp_path: Path, build_run: Build, report: Read) -> None:
    text = report(build_run(tmp_path / "my-run")).words
    made = text[text.index("How this run was made") :]
    for wanted in ("seepage audit r.toml", "Seed 7", "1 min 15 s", "PyTorch 2.8.0", "Device cpu", 'name = "r"'):
        assert wanted in made, wanted
    assert "my-run" in text
    assert str(tmp_path) not in text  # a path would tell about the machine


def test_a_page_without_the_truth_says_what_is_proved(
    tmp_path: Path, build_run: Build, change: Change, report: Read
) -> None:
    run = build_run(tmp_path, truth=False)
    assert "proved without" not in report(run).words
    change(run, lambda result: put(result["rows"][0], certified_guesses=1, space="input", returned=1))
    assert "proved without" in report(run).words
