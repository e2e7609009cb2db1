"""The numbers that the repository keeps: a cheap one, another every day and with every commit, is measured again."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from seepage.audit.attack import attack_cases, attack_names, own_source
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.audit.summary import summarize
from seepage.base.progress import no_progress
from seepage.federation.data import is_packaged
from seepage.papers import (
    Item,
    Record,
    Value,
    find_item,
    list_items,
    plan,
    read_records,
    reproduce,
    write_book,
)
from seepage.papers.book import PROSE
from seepage.papers.records import keep_records
from seepage.papers.run import over_seeds
from seepage.papers.used import USED
from seepage.papers.verdicts import Verdict

RESULTS = Path(__file__).parents[2] / "results" / "reproduce"
BOOK = Path(__file__).parents[2] / "docs" / "results"
CHEAP = 12.0
"""Seconds of one core."""
SLACK = {"psnr": 1.5}
"""Another torch, or another processor, rounds in another way, in dB. Shares of recovered examples of these rows are by
the rule before, which their pages say."""


def changed(record: Record, **values: Any) -> Record:
    return record.model_copy(update=values)


def cheap() -> Iterator[tuple[Item, Record]]:
    for item in list_items().values():
        for record in read_records(RESULTS, item.id):
            packaged = is_packaged(record.data)
            if packaged and "attack" in record.facts and record.facts.get("cpu_seconds", CHEAP) < CHEAP:
                yield item, record


@pytest.mark.docs
def test_the_book_is_what_the_numbers_say(tmp_path: Path) -> None:
    for page in write_book(RESULTS, tmp_path):
        kept = BOOK / page.name
        assert kept.read_text("utf-8") == page.read_text("utf-8"), f"write it again: --book docs/results ({page.name})"


def key_of_today() -> str:
    """The commit that is tested, where a runner says it, or the day: who repeats the test gets the same row."""
    return os.environ.get("GITHUB_SHA") or datetime.now(UTC).date().isoformat()


def chosen(key: str, count: int) -> int:
    """A number below `count` that follows from the key alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % count


def test_the_row_that_is_measured_again_follows_from_the_key() -> None:
    rows = list(cheap())
    assert len(rows) > 30
    keys = [f"2026-11-{day:02d}" for day in range(1, 31)]
    assert [chosen(key, len(rows)) for key in keys] == [chosen(key, len(rows)) for key in keys]
    assert len({chosen(key, len(rows)) for key in keys}) > 12, "another row on most days"


@pytest.mark.slow
def test_a_random_cheap_number_comes_out_again(tmp_path: Path) -> None:
    """`GITHUB_SHA=KEY pytest -k cheap_number` measures the row of another key."""
    rows = list(cheap())
    item, record = rows[chosen(key_of_today(), len(rows))]
    seed = int(next(iter(record.seeds)))
    kept = record.facts | record.facts.get("by_seed", {}).get(str(seed), {})
    found = next(
        recipe
        for recipe in resolve_cases(
            item.at(record.size, record.data if record.paper_data else "", seed, record.paper_data)
        )
        if recipe.case == record.facts["case"]
    )
    part = next(
        part
        for name, part in zip(attack_names(found.attack), found.attack, strict=True)
        if name == record.facts["attack"]
    )
    recipe = replace(found, attack=(part,))
    record_cases([recipe], tmp_path, no_progress)
    source = own_source(recipe, [recipe], tmp_path)
    attack_cases([source], tmp_path, 1)
    row = summarize([source], tmp_path).rows[0]
    for key, slack in SLACK.items():
        before = kept.get(key)
        if before is not None:
            exact = (
                key == "psnr" and min(before, row.numbers()[key]) > 60
            )  # rounding alone decides between 80 and 140 dB
            assert exact or row.numbers()[key] == pytest.approx(before, abs=slack), (
                item.id,
                record.row,
                record.column,
                key,
            )
    assert row.examples == record.facts["examples"] / len(record.facts.get("by_seed", [seed]))


def test_one_packaged_set_may_stand_in_for_two_of_the_papers(tmp_path: Path) -> None:
    first = Record(
        item="cpa/table-1", size="small", row="CPA", column=0, paper_data="cifar10", data="photos", metric="psnr",
        paper=1.0, value=1.0,
    )  # fmt: skip
    second = changed(first, paper_data="tiny_imagenet", value=2.0)
    keep_records(tmp_path, first.item, [first, second])
    keep_records(tmp_path, first.item, [changed(first, value=3.0)])
    assert sorted((r.paper_data, r.value) for r in read_records(tmp_path, first.item)) == [
        ("cifar10", 3.0),
        ("tiny_imagenet", 2.0),
    ]


@pytest.mark.docs
def test_constants_that_the_code_has_are_the_papers() -> None:
    """They are read from the code, and no claim is judged by them."""
    item = find_item("cafe/table-9")
    assert not item.claims
    records = read_records(RESULTS, item.id)
    assert records
    assert all(record.value == record.paper for record in records)


def test_seeds_give_means_of_the_scores_beside_the_number_too() -> None:
    """The baseline and the share of recovered examples are of all seeds, not of the first."""
    parts = [
        [
            Record(
                item="cpa/table-1", size="small", row="CPA", metric="lpips", value=None, seeds={str(seed): None},
                facts={"ssim": ssim, "mean_color_psnr": 10.0 + seed, "recovered": 0.5, "examples": 8, "attack": "a",
                       "intervals": {"ssim": (0.0, 1.0)}},
                command="seepage reproduce cpa/table-1",
            )
        ]
        for seed, ssim in enumerate((0.1, 0.2, 0.6))
    ]  # fmt: skip
    (joined,) = over_seeds(parts)
    assert joined.facts["ssim"] == pytest.approx(0.3)
    assert (joined.facts["mean_color_psnr"], joined.facts["recovered"], joined.facts["examples"]) == (11.0, 0.5, 24)
    assert [scores["ssim"] for scores in joined.facts["by_seed"].values()] == [0.1, 0.2, 0.6]
    assert "intervals" not in joined.facts, "the first seed's are not those of all"
    assert joined.facts["attack"] == "a"


@pytest.mark.docs
def test_the_papers_digits_are_printed_as_the_paper_has_them() -> None:
    page = (BOOK / "cpa.md").read_text(encoding="utf-8")
    assert "| paper | 0.491 | 0.569 | 0.610 | 0.614 | 0.468 | 0.553 | 0.622 | 0.634 |" in page
    assert "| paper | 0.0082 | 0.474 | 0.721 | 0.723 |" in page
    page = (BOOK / "fedleak.md").read_text(encoding="utf-8")
    assert "| paper | 0.4736 | 0.3447 |" in page
    assert "| paper | 10.70 | 9.39 | 9.27 |" in page


@pytest.mark.docs
def test_the_book_says_what_every_data_set_is() -> None:
    used = {record.data for item in list_items() for record in read_records(RESULTS, item)}
    assert used - {"no data"} == set(USED)
    page = (BOOK / "fedleak.md").read_text(encoding="utf-8")
    assert page.count("lung alone: three of the five classes") >= 9, "wherever the paper has lung and colon"


def test_the_legend_explains_every_word() -> None:
    plain = " ".join((PROSE / "legend.md").read_text("utf-8").replace("**", "").split()).lower()
    small = {"holds": "seen in small", "does not hold": "not seen in small"}
    words = [word for verdict in get_args(Verdict) for word in (verdict, small.get(verdict, f"{verdict} in small"))]
    assert [word for word in words if word not in plain] == []


def test_numbers_of_a_function_are_kept_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = find_item("fedleak/figure-10")

    def broken(tables: object, **given: object) -> Iterator[Value]:
        yield Value(row=item.lines[0].name, column=0, ours=1.5)
        raise KeyboardInterrupt

    monkeypatch.setattr("seepage.papers.run.import_dotted", lambda name: broken)
    work, _ = plan([item], "small", {}, [0])
    with pytest.raises(KeyboardInterrupt):
        list(reproduce(work, "small", out=tmp_path / "runs", results=tmp_path / "results"))
    (kept,) = read_records(tmp_path / "results", item.id)
    assert (kept.value, kept.seeds, kept.column) == (1.5, {"0": 1.5}, 0)
    keep_records(tmp_path / "results", item.id, [changed(kept, value=9.0, seeds={"0": 8.0, "1": 10.0})])
    with pytest.raises(KeyboardInterrupt):
        list(reproduce(work, "small", out=tmp_path / "runs", results=tmp_path / "results"))
    assert [one.value for one in read_records(tmp_path / "results", item.id)] == [9.0]  # of more seeds, from earlier
    assert not list((tmp_path / "runs").rglob("values.json"))
