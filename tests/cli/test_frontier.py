"""`seepage frontier` on a tiny recipe: files, table, advice; what is there is not made again."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

TINY = """
name = "tiny"
[data]
use = "digits"
size = 6
[model]
use = "fc2"
hidden = 8
[federation]
clients = 4
share = 0.5
examples = 8
[batch]
size = 1
count = 2
[knowledge]
known = ["labels"]
[utility]
rounds = 3
[[attack]]
use = "linear"
[[attack]]
use = "inverting_gradients"
steps = 5
[[frontier]]
use = "gaussian_noise"
clip = 1.0
sigma = [10.0]
[[frontier]]
use = "soteria"
ratio = 0.5
"""


@pytest.fixture
def swept(cli: Cli, home: Path) -> Path:
    (home / "frontier.toml").write_text(TINY)
    found = cli("frontier", "frontier.toml", "--out=run", "--jobs=1")
    assert "gaussian_noise(clip=1.0, sigma=10.0)" in found.out
    assert "attacker knows it" in found.out
    return Path("run")


@pytest.mark.slow
def test_it_writes_rows_a_page_and_a_plot_and_goes_on_from_what_is_there(swept: Path, cli: Cli) -> None:
    rows = [json.loads(line) for line in (swept / "frontier.jsonl").read_text().splitlines()]
    assert [(row["defense"].partition("(")[0], row["attacker"]) for row in rows] == [
        ("no defense", "oblivious"),
        ("gaussian_noise", "oblivious"),
        ("soteria", "oblivious"),
        ("soteria", "knows"),
    ]
    assert all(0 <= row["accuracy"] <= 1 and row["seconds"] > 0 and row["bytes"] > 0 for row in rows)
    bare, noise = rows[0], rows[1]
    assert bare["recovered"] == 2, "single digits come back from an undefended first layer"
    assert (noise["recovered"], noise["promise"]["unit"]) == (0, "update")
    assert 0 < noise["epsilon"] < 5
    page = (swept / "frontier.html").read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert (swept / "frontier.png").read_bytes().startswith(b"\x89PNG")
    kept = {path: path.stat().st_mtime_ns for path in (swept / "attacks").rglob("*") if path.is_file()}
    for lost in ("result.json", "frontier.jsonl", "utility/soteria-ratio-0.5.json"):
        (swept / lost).unlink()
    again = cli("frontier", "frontier.toml", "--out=run", "--jobs=1", "--json")
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    timed = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in timed} for row in again.json["rows"]] == [
        {k: v for k, v in row.items() if k not in timed} for row in rows
    ]
    assert "with the steps they were given" in again.json["advice"]


OWN = """
from dataclasses import dataclass
from seepage import Attack, Reconstruction

@dataclass(frozen=True, kw_only=True)
class Fragile(Attack):
    def run(self, transcript, *, seed, progress):
        seen, shape = transcript[0], transcript.knowledge.input_shape
        if all((tensor != 0).all() for tensor in seen.update.tensors.values()):  # as behind noise, and not without
            return {}["nothing"]
        return Reconstruction(next(iter(seen.params.values())).new_ones(1, *shape))
"""


@pytest.mark.slow
def test_the_advice_names_what_could_not_be_tried_and_says_where_accuracy_means_little(cli: Cli, home: Path) -> None:
    (home / "fragile.py").write_text(OWN)
    (home / "frontier.toml").write_text(TINY + '[[attack]]\nuse = "fragile:Fragile"\n')
    found = cli("frontier", "frontier.toml", "--out=run", "--jobs=1", "--defense=gaussian_noise")
    fault = "fragile.Fragile could not be tried behind gaussian_noise(clip=1.0, sigma=10.0): KeyError: 'nothing'"
    assert f"{fault} (fragile.py line 10)." in found.out
    assert "costs in accuracy mean little here: raise utility.rounds or training.steps." in found.out
    assert "0/2 found: the 95 % interval goes up to 84 %." in found.out
    page = (home / "run/frontier.html").read_text()
    assert "What could not be tried" in page
    rows = [json.loads(line) for line in (home / "run/frontier.jsonl").read_text().splitlines()]
    assert [list(row["untried"]) for row in rows] == [[], ["fragile.Fragile"]]


@pytest.mark.slow
def test_texts_have_neither_psnr_nor_ssim(cli: Cli, home: Path) -> None:
    (home / "notes.txt").write_text("\n".join(f"abc {i} def {i * i} g" for i in range(80)))
    (home / "frontier.toml").write_text(TINY.replace('use = "digits"\nsize = 6', 'use = "notes.txt"\ntokens = 8'))
    found = cli("frontier", "frontier.toml", "--out=run", "--jobs=1", "--model=gpt:width=64", "--rounds=1",
                "--attack=token_sequences", "--defense=gaussian_noise:clip=1.0,sigma=0.5")  # fmt: skip
    page = (home / "run/frontier.html").read_text()
    for words in (found.out, page):
        assert "ext-token accuracy" in words
        assert not [word for word in ("SSIM", "PSNR", "mean color") if word in words]
    rows = [json.loads(line) for line in (home / "run/frontier.jsonl").read_text().splitlines()]
    assert rows[0]["recovered"] == 2, "the attacker who knows the next tokens is no worse for it"


def test_mistakes_are_one_sentence(refused: "object", home: Path) -> None:
    assert callable(refused)
    (home / "frontier.toml").write_text(TINY)
    assert "one setting" in refused("frontier", "default")
    assert "sweeps no" in refused("frontier", "frontier.toml", "--defense=jacobian_damping")
    assert "rounds must be a whole number >= 1" in refused("frontier", "frontier.toml", "--set=utility.rounds=0")
