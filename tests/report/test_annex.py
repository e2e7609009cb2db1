"""The printed annex says what was certified: examples, or inner features alone."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.rows import put

from seepage.report import write_report
from seepage.report.evidence.annex import annex
from seepage.report.evidence.junit import junit
from seepage.report.evidence.markdown import summary
from seepage.report.evidence.statement import evidence_of
from seepage.report.run import open_run
from seepage.report.table import case_words

Build = Callable[..., Path]
Change = Callable[..., None]


@pytest.mark.parametrize(
    ("space", "words", "found"),
    [
        ("feature", "1 inner feature certified, which is no example", False),
        ("input", "1 guess certified", True),
    ],
)
def test_the_evidence_tells_certified_features_from_certified_examples(
    space: str, words: str, found: bool, tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, truth=False)
    change(run, lambda result: put(result["rows"][0], certified_guesses=1, space=space, returned=1))
    opened = open_run(run)
    evidence = evidence_of(opened)
    assert any(one.state == "leaks" for one in evidence.findings) == found
    assert ("failure" in junit(evidence).replace("failures", "")) == found
    page = annex(evidence, digest="0")
    assert words in page
    assert "1 guesses" not in page


def test_the_annex_tells_the_time_of_the_attacks_from_that_of_the_run(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("linear",))
    page = annex(evidence_of(open_run(run)), digest="0")
    assert re.search(r"1 min 15 s, .*1\.2 s", page)  # of env.json and of the row
    assert "updates of fc2 on album</title>" in page


def test_a_page_without_the_private_examples_does_not_say_that_it_shows_them(tmp_path: Path, build_run: Build) -> None:
    for truth, shows in (
        (True, "private examples and what could be"),
        (False, "what could be reconstructed of private"),
    ):
        run = build_run(tmp_path / str(truth), truth=truth)
        assert shows in write_report(run).read_text(encoding="utf-8")


def test_the_subject_names_every_model_of_the_run(tmp_path: Path, build_run: Build, change: Change) -> None:
    run = build_run(tmp_path, cases=("one", "two"))
    change(run, lambda result: [case.update(model=name) for case, name in zip(result["cases"], "ab", strict=True)])
    assert evidence_of(open_run(run)).subject == "updates of a on album, b on album"


SUMMARY = {"words": "not tried: said", "case": None}


@pytest.mark.parametrize(
    ("level", "edit", "said"),
    [
        ("exact", {}, "Not that these updates may be sent: they reveal private data."),
        ("inconclusive", {}, "Nothing yet: this run does not decide"),
        ("nothing", {}, "Only that these attacks, with these steps, recovered nothing."),
        ("nothing", {"summary": [{"name": "upper_bound", "tried": False, **SUMMARY}]}, "upper bound (--bounds)"),
        (
            "partial",
            {"summary": [{"name": "upper_bound", "tried": True, **SUMMARY}]},
            "The upper bound above, together",
        ),
    ],
)
def test_the_annex_says_what_may_be_signed(
    level: str, edit: dict[str, Any], said: str, tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, level=level)
    change(run, lambda result: result.update(edit))
    evidence = evidence_of(open_run(run))
    assert said in (evidence.may_sign or "")
    assert ("Look at the pictures" in (evidence.may_sign or "")) is (level in ("nothing", "partial"))
    for page in (annex(evidence, digest="0"), summary(evidence)):
        assert "What may be signed?" in page


def test_a_captured_model_is_on_no_data_that_anybody_knows(tmp_path: Path, build_run: Build) -> None:
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("linear",), truth=False)
    assert evidence_of(open_run(run)).subject == "updates of fc2"


def test_labels_that_were_read_off_an_update_are_counted_as_inferred_and_not_printed(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("linear",), truth=False)
    inferred = {"batch size": "3, from the rank of 1.weight", "labels": "classes 0 (2), 1 (1), from the last bias"}
    change(run, lambda result: result["cases"][0].update(inferred=inferred))
    page = annex(evidence_of(open_run(run)), digest="0")
    assert re.search(r"inferred .* did not know: batch size, labels", page)
    assert "classes 0 (2)" not in page  # the labels themselves are private
    assert ">not known<" in page  # the defense of an update that somebody captured


def test_attacks_that_cannot_apply_are_told_from_those_that_were_not_tried(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path)
    before = evidence_of(open_run(run)).not_tried
    assert any("that this run did not ask for: " in item and "lora" in item for item in before)  # nobody looked
    assert not any("apply to no case" in item for item in before)
    refused = {"lora": "the model has no low-rank adapter", "cafe": "the indices are not known"}
    change(run, lambda result: result["cases"][0].update(refusals=refused))
    assert evidence_of(open_run(run)).not_tried == before  # the other case was not looked at
    change(run, lambda result: result["cases"][1].update(refusals={"lora": "the model has no low-rank adapter"}))
    (asked,) = [item for item in evidence_of(open_run(run)).not_tried if "did not ask for" in item]
    (barred,) = [item for item in evidence_of(open_run(run)).not_tried if "apply to no case" in item]
    assert barred.endswith(": lora")
    assert "cafe" in asked
    assert "lora" not in asked


def test_the_annex_names_the_files_that_were_judged(tmp_path: Path, build_run: Build, change: Change) -> None:
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("linear",), truth=False)
    files = [
        {"case": "fc2_size-3", "what": "weights that were sent out", "name": "BEFORE", "sha256": "ab" * 32},
        {"case": "fc2_size-3", "what": "returned weights", "name": "AFTER", "sha256": "cd" * 32},
        {"case": "another", "what": "returned weights", "name": "OTHER", "sha256": "ef" * 32},
    ]
    change(run, lambda env: env.update(files=files), "env.json")
    evidence = evidence_of(open_run(run))
    assert [one.sha256 for one in evidence.judged_files] == ["ab" * 32, "cd" * 32]
    page = annex(evidence, digest="0")
    assert "(<b>BEFORE</b>) <code>abababababababab</code>" in page
    assert "(<b>AFTER</b>) <code>cdcdcdcdcdcdcdcd</code>" in page
    assert "OTHER" not in page


def test_guesses_that_nobody_could_score_were_tried_all_the_same(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("linear",), truth=False)
    side = {"name": "reconstruction", "tried": False, "words": "not known: no guess could be scored"}
    change(run, lambda result: result.update(summary=[side]))
    assert not any(item.startswith("reconstruction: ") for item in evidence_of(open_run(run)).not_tried)
    change(run, lambda result: put(result["rows"][0], status="inapplicable", outcome="does not apply"))
    assert any(item.startswith("reconstruction: ") for item in evidence_of(open_run(run)).not_tried)


def test_what_a_closed_form_gives_is_told_from_what_attacks_brought_back(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    """An undefended case had 4 of 4 examples beside the verdict's 8 of 8: the closed form of the first update alone."""
    run = build_run(tmp_path, cases=("fc2_size-3",), attacks=("dlg",))
    assert "in closed form" not in annex(evidence_of(open_run(run)), digest="0")
    side = {"name": "upper_bound", "tried": False, "words": "no bound: no stage of the defense is a mechanism"}
    change(run, lambda result: result["cases"][0].update(exposed_examples=3, exposed_of=3))
    change(run, lambda result: result.update(summary=[side]))
    evidence = evidence_of(open_run(run))
    assert case_words(evidence.result, evidence.result.cases[0], "exact").startswith("3 of 3 [")
    page = annex(evidence, digest="0")
    assert page.count("of the first update, in closed form") >= 2  # recovered, exactly
    assert not any("no bound" in item for item in evidence.not_tried), "one was looked for"


def test_what_is_doubted_of_what_was_told_stands_in_the_evidence(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path, truth=False)
    wrong, ask = (
        "Contradicted: a batch of 2.",
        "No attack here explains the update with the client settings that were stated.",
    )
    ask = f"{ask} The options that change it: {'the loss: --loss; ' * 20}."

    def doubt(result: dict[str, Any]) -> None:
        result["cases"][0].update(caveats=[wrong])
        for case in result["cases"]:
            case["caveats"] = [*case.get("caveats", []), ask]

    change(run, doubt)
    opened = open_run(run)
    evidence = evidence_of(opened)
    page = annex(evidence, digest="0")
    assert f"{wrong} ({evidence.result.cases[0].title}) 1 more" in page
    change(run, lambda result: [case.update(caveats=[ask]) for case in result["cases"]])
    page = annex(evidence_of(open_run(run)), digest="0")
    assert page.count("No attack here explains") == 1  # of every case, so said once and of none
    assert "--loss" not in page, "what to do about it is not for print"
    text = summary(evidence)
    assert text.count("\n\nContradicted: a batch of 2.") == 1
    assert text.count(f"\n\n{ask}\n\n") == 1
    change(run, lambda result: result["cases"][0].update(caveats=[wrong, "Contradicted: b.", "Contradicted: c."]))
    page = annex(evidence_of(open_run(run)), digest="0")
    assert ("Contradicted: c." in page, "3 more" in page) == (False, True)


PROMISE = {"epsilon": 3.0, "delta": 1e-5, "unit": "update", "rounds": 2, "accountant": "the accountant",
           "caveats": ["it is vacuous"]}  # fmt: skip


def test_what_one_signs_stands_in_print(tmp_path: Path, build_run: Build, change: Change) -> None:
    run = build_run(tmp_path)

    def claim(result: dict[str, Any]) -> None:
        result["cases"][0].update(promise=PROMISE, defense="noise")

    change(run, claim)
    evidence = evidence_of(open_run(run))
    page = " ".join(re.sub(r"<[^>]+>", " ", unescape(annex(evidence, digest="0"))).split())
    for line in (
        "unit of privacy: one update, which joins or leaves", "accountant and composition: the accountant",
        "caveats: it is vacuous", "secure", "floating-point", "attribute inference", "Who receives single updates",
        "kept until", "Threshold for acceptance", "not measured", "public software only",
        "complements, and does not replace", "EDPB Opinion 28/2024, 58(e)", "NIST SP 800-226", "Art. 35(7)(a)",
        "Art. 35(7)(b)", "Art. 35(7)(c)", "Art. 35(7)(d)", "Art. 35(2)", "Art. 35(9)", "Art. 36(1)",
    ):  # fmt: skip
        assert line in page, line
    assert evidence.threshold is None
    assert "public software only" in evidence.cost
    assert not any("floating-point" in one for one in evidence_of(open_run(build_run(tmp_path / "bare"))).not_tried)


def test_the_annex_says_what_a_bound_rests_on_and_whom_it_binds(
    tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path)

    def bound(result: dict[str, Any]) -> None:
        case = result["cases"][0]["name"]
        row = {"case": case, "assumption": "it is noised; and drawn alike.", "value": 0.3}
        result["bounds"] = [
            {**row, "measure": "tpr", "words": "members: 3 %", "binds": "all"},
            {**row, "measure": "exact_share", "words": "copies: 4 %", "binds": "some"},
        ]
        words = "copies: 4 %; members: 3 %, on it"
        result["summary"] = [{"name": "upper_bound", "tried": True, "case": case, "value": 0.3, "words": words}]

    change(run, bound)
    page = unescape(annex(evidence_of(open_run(run)), digest="0"))
    assert page.count("it is noised; and drawn alike") == 1
    assert "of members all; of exact copies some" in page


@pytest.mark.parametrize(
    ("gate", "answer"),
    [
        ("--fail-if 'recovered>0'", "recovered > 0 is not accepted: it holds of 3 rows"),
        ("--fail-if=psnr>1000", "psnr > 1000 is not accepted: it holds of no row"),
        ("--fail-if nonsense", "nonsense is not accepted: cannot be judged"),
        ("--fail-if 'recovered>0", None),
    ],
)
def test_the_threshold_of_the_command_is_answered(
    gate: str, answer: str | None, tmp_path: Path, build_run: Build, change: Change
) -> None:
    run = build_run(tmp_path)
    change(run, lambda env: env.update(command=f"seepage audit {gate}"), "env.json")
    said = evidence_of(open_run(run)).threshold
    assert (said or "").startswith(answer or "")
    assert (said is None) is (answer is None)
