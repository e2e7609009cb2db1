"""`seepage reproduce`: from a recipe with a paper's numbers to records, to the terminal and to the book."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Cli

from seepage.papers import Value

RECIPE = """
# Batch sizes of a closed form.
name = "t"
[data]
use = "mnist"
size = 8
channels = 1
[model]
use = "fc2"
hidden = 16
[batch]
size = 32
count = 2
[[attack]]
use = "linear"
[[case]]
name = "one"
batch = { size = 1 }
[expect]
paper = "cpa"
item = "Table 7"
title = "Two batch sizes | of a closed form"
setting = "as nowhere"
kind = "lines"
columns = ["32", "1"]
x = [32, 1]
x_label = "batch size"
y_label = "PSNR in dB"
needs = { hours = 3, gpu = true }
note = "Made up."
[[expect.rows]]
name = "closed form, MNIST"
data = "mnist"
attack = "linear"
case = ["case", "one"]
metric = "psnr_nearest"
paper = [10.0, nan]
[[expect.rows]]
name = "nowhere"
data = "nowhere"
attack = "linear"
[small]
needs = { minutes = 1 }
stand_in = { mnist = "digits" }
columns = ["4", "1"]
batch = { size = 4, count = 1 }
"""
OWN = """
name = "own"
[expect]
paper = "fedleak"
item = "Figure 9"
title = "No audit"
setting = "a parabola"
columns = ["0", "1", "2"]
by = "tests.cli.test_reproduce:squares"
[[expect.rows]]
name = "x^2"
paper = [0.0, 1.0, 4.0]
metric = "value"
[[expect.claims]]
text = "The square grows."
where = "figure 9"
relation = "monotone"
gets = "better"
[small]
needs = { minutes = 1 }
"""
CALLS: list[int] = []


def squares(tables: Mapping[str, Any], *, data: str, seed: int, show: Any) -> list[Value]:
    """What an item that is no audit gives."""
    CALLS.append(seed)
    assert (data, tables["name"]) == ("", "own")
    return [Value(row="x^2", column=x, ours=float(x**2 + seed), facts={"x": x}) for x in range(3)]


@pytest.fixture(autouse=True)
def recipes(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / "recipes"
    for paper, text in (("cpa", RECIPE), ("fedleak", OWN)):
        (folder / paper).mkdir(parents=True)
        (folder / paper / "item.toml").write_text(text)
    monkeypatch.setattr("seepage.audit.recipe.files.BUILT_IN", folder)
    CALLS.clear()
    return folder


def records(item: str = "cpa-table-7", folder: str = "results/reproduce") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / f"{item}.jsonl").read_text().splitlines()]


def test_the_list_says_what_each_takes(cli: Cli) -> None:
    found = cli("reproduce")
    assert "cpa/table-7" in found.out
    assert "about 3 h, 2 GiB, a GPU" in found.out
    assert "no numbers lie in results/reproduce" in found.out
    assert "source repository" in found.out
    assert [entry["item"] for entry in cli("reproduce", "--json").json["items"]] == ["cpa/table-7", "fedleak/figure-9"]


def test_ours_stand_beside_the_papers(cli: Cli, home: Path) -> None:
    found = cli("reproduce", "cpa/table-7", "--jobs=1", "--book=book")
    assert "about 1 min, 2 GiB; on digits" in found.out
    assert "left out, as its data are not here: cpa/table-7: nowhere" in found.out
    kept = records()
    assert [(r["column"], r["paper"], r["data"], r["size"]) for r in kept] == [
        (0, 10.0, "digits", "small"),
        (1, None, "digits", "small"),
    ]
    assert kept[1]["value"] > 60, "a batch of one is read exactly"
    assert kept[1]["facts"]["batch_size"] == 1
    assert kept[1]["facts"]["mean_color_psnr"] < 30
    assert kept[0]["made"]["torch"]
    assert kept[0]["command"] == "seepage reproduce cpa/table-7 --size small"
    page = (home / "book" / "cpa.md").read_text()
    assert f"| {kept[0]['value']:.2f} | {kept[1]['value']:.2f} |" in page
    assert "one guess per image, dB" in page
    assert "| paper | 10.00 | - |" in page
    assert "Made up." in page
    assert "the paper's column | 32 | 1 |" in page, "the small size has another batch"
    assert (home / "book" / "figures" / "cpa-table-7-small.png").read_bytes().startswith(b"\x89PNG")
    index = (home / "book" / "index.md").read_text()
    assert "[Table 7](cpa.md#table-7-two-batch-sizes-of-a-closed-form)" in index
    assert "Not run yet" in (home / "book" / "fedleak.md").read_text()


def test_a_second_run_computes_nothing_and_other_data_stand_beside(cli: Cli, home: Path) -> None:
    cli("reproduce", "cpa/table-7", "--jobs=1", "--quiet")
    run = next((home / "runs").glob("cpa-table-7-small-*/result.json"))
    before = run.stat().st_mtime_ns
    cli("reproduce", "cpa/table-7", "--jobs=1", "--quiet")
    assert run.stat().st_mtime_ns == before
    assert len(records()) == 2
    generator = np.random.default_rng(0)
    np.savez(home / "mine.npz", x=generator.integers(0, 255, (60, 8, 8, 1), dtype=np.uint8), y=np.arange(60) % 10)
    found = cli("reproduce", "cpa/table-7", "--jobs=1", "--json", f"--data=mnist={home / 'mine.npz'}")
    assert {r["data"] for r in records()} == {"digits", "mine.npz"}
    assert records()[-1]["command"] == "seepage reproduce cpa/table-7 --size small --data mnist=mine.npz"
    assert str(home) not in json.dumps(records()), "no folder of this machine is kept"
    assert len(found.json["items"][0]["records"]) == 2


@pytest.mark.slow
def test_pictures_of_packaged_data_stand_in_the_book_and_no_others(cli: Cli, home: Path, recipes: Path) -> None:
    (recipes / "cpa/item.toml").write_text(RECIPE.replace('"lines"', '"pictures"'))
    generator = np.random.default_rng(0)
    np.savez(home / "mine.npz", x=generator.integers(0, 255, (60, 8, 8, 1), dtype=np.uint8), y=np.arange(60) % 10)
    for given in ([f"--data=mnist={home / 'mine.npz'}"], []):
        cli("reproduce", "cpa/table-7", "--jobs=1", "--quiet", "--seeds=2", "--book=book", *given)
        kept = sorted(path.name for path in (home / "results/reproduce").glob("*.png"))
        assert kept == ([] if given else ["cpa-table-7-small-digits.png"])
        page = (home / "book/cpa.md").read_text()
        assert ("](figures/cpa-table-7-small-digits.png)" in page) is not bool(given)
    drawn = {path.read_bytes() for path in (home / "runs").glob("*/grid.png")}
    assert (home / "book/figures/cpa-table-7-small-digits.png").read_bytes() in drawn
    assert len(drawn) == 1, "of the first seed"


def test_seeds_give_a_mean_between_the_least_and_the_most(cli: Cli) -> None:
    cli("reproduce", "fedleak/figure-9", "--seeds=3", "--seed=1", "--quiet")
    assert CALLS == [1, 2, 3]
    first = records("fedleak-figure-9")[0]
    assert (first["value"], first["interval"]) == (2.0, [1.0, 3.0])
    assert first["seeds"] == {"1": 1.0, "2": 2.0, "3": 3.0}
    assert first["command"] == "seepage reproduce fedleak/figure-9 --size small --seed 1 --seeds 3"
    assert first["made"]["device"] == "cpu"
    seen = "seen in small (2 yes): The square grows."
    assert cli("reproduce", "fedleak/figure-9", "--seeds=3", "--quiet").out == f"fedleak/figure-9: {seen}\n"
    cli("reproduce", "fedleak/figure-9", "--quiet")
    assert CALLS == [1, 2, 3, 0], "what is there is not made again"


def test_claims_are_judged_on_the_screen_in_the_book_and_for_programs(cli: Cli, home: Path, recipes: Path) -> None:
    claims = """
[[expect.claims]]
text = "A batch of one is read."
where = "nowhere"
printed = false
relation = "level"
rows = ["closed*"]
side = "better"
level = 60.0
only = [1]
[[expect.claims]]
text = "It is not exact."
where = "nowhere"
printed = false
relation = "level"
rows = ["closed*"]
side = "worse"
level = 50.0
only = [1]
differs = "One equation has one unknown."
[small]
"""
    (recipes / "cpa/item.toml").write_text(RECIPE.replace("\n[small]\n", claims))
    found = cli("reproduce", "cpa/table-7", "--jobs=1", "--seeds=2", "--book=book", "--quiet")
    assert "cpa/table-7: not seen in small (1 no): It is not exact." in found.out
    known = cli("reproduce", "cpa/table-7", "--jobs=1", "--seeds=2", "--json").json["items"][0]["claims"]
    assert [(one["verdict"], one["size"], one["measured"], one["fail"]) for one in known] == [
        ("holds", "small", 1, 0),
        ("does not hold", "small", 1, 1),
    ]
    assert known[0]["data"] == ["digits"]
    shown = " ".join(cli("reproduce", "cpa/table-7", "--jobs=1", "--seeds=2").out.split())
    assert "It is not exact. (nowhere) not seen in small (1 no): closed form, MNIST, 1:" in shown
    page = (home / "book/cpa.md").read_text()
    assert "In a smaller experiment, on digits: **not seen in small (1 no)**" in page
    assert "One equation has one unknown." in page
    assert "| A batch of one is read. | not run | seen in small (1 yes) |" in (home / "book/index.md").read_text()


def test_a_folder_of_data_is_searched_by_name(cli: Cli, home: Path) -> None:
    (home / "data").mkdir()
    np.savez(home / "data" / "mnist_small.npz", x=np.full((40, 8, 8, 1), 9, np.uint8), y=np.arange(40) % 10)
    np.savez(home / "data" / "mnistlike.npz", x=np.zeros((40, 8, 8, 1), np.uint8), y=np.arange(40) % 10)
    cli("reproduce", "cpa/table-7", "--jobs=1", "--quiet", "--data=data")
    assert {r["data"] for r in records()} == {"mnist_small.npz"}


def test_one_that_fails_does_not_stop_the_others(cli: Cli, recipes: Path) -> None:
    text = (recipes / "cpa" / "item.toml").read_text().replace('case = ["case", "one"]', 'case = ["case", "two"]')
    (recipes / "cpa" / "item.toml").write_text(text)
    found = cli("reproduce", "all", "--jobs=1", "--quiet", code=2)
    assert "has no linear on two" in found.err
    assert records("fedleak-figure-9")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cpa/table-8"], "did you mean 'cpa/table-7'"),
        (["cpa/table-7", "--data=mnits=x.npz"], "did you mean 'mnist'"),
        (["cpa/table-7", "--data=mnist=gone.npz"], "gone.npz is neither"),
        (["cpa/table-7", "--size=paper"], "needs a GPU and there is none; use --size small, or --device cpu"),
    ],
)
def test_mistakes_are_one_sentence(refused: Any, arguments: list[str], words: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert words in refused("reproduce", *arguments)


def test_a_damaged_file_of_records_is_not_overwritten(cli: Cli, home: Path) -> None:
    place = home / "results" / "reproduce" / "fedleak-figure-9.jsonl"
    place.parent.mkdir(parents=True)
    place.write_text('{"item": 3}\n{"item": "x"}\n')
    found = cli("reproduce", "fedleak/figure-9", "--quiet", code=2)
    assert "cannot be read" in found.err
    assert place.read_text().startswith('{"item": 3}')
