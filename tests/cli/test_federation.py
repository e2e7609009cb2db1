"""Federations and FedAvg clients from the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

RECIPE = """
name = "fed"
[data]
use = "digits"
[model]
use = "fc2"
hidden = 24
[federation]
clients = 10
share = 0.3
[partition]
use = "dirichlet"
alpha = 0.5
least = 8
[client]
use = "fedavg"
lr = 0.1
batch_size = 8
[batch]
size = 4
count = 2
[[attack]]
use = "linear"
[[attack]]
use = "cocktail_party"
[grid]
"federation.rounds" = [0, 6]
"""


@pytest.fixture
def recipe(home: Path) -> Path:
    path = home / "fed.toml"
    path.write_text(RECIPE)
    return path


def test_clients_are_trained_attacked_and_scored(cli: Cli, recipe: Path, home: Path) -> None:
    found = cli("audit", recipe, "--json", "--out=run", "--jobs=1")
    cases = {case["name"]: case for case in found.json["cases"]}
    assert set(cases) == {"rounds-0", "rounds-6"}
    title = cases["rounds-6"]["title"]
    assert all(fact in title for fact in ("6 rounds", "10 clients", "alpha=0.5, least=8", "lr 0.1, batch size 8"))
    assert cases["rounds-0"]["accuracy"] < cases["rounds-6"]["accuracy"], "six rounds teach something"
    assert cases["rounds-6"]["federation"]["accuracies"][-1] == [6, cases["rounds-6"]["accuracy"]]
    best = {row["attack"]: row["scores"]["psnr"]["mean"] for row in found.json["rows"] if row["case"] == "rounds-0"}
    assert best["cocktail_party"] > 60, "a difference of weights of one local step is a gradient"
    page = (home / "run" / "report.html").read_text()
    assert "10 clients of" in page
    assert "FedAvg(lr=0.1" in page


def test_a_sum_of_clients_is_attacked_as_one(cli: Cli, home: Path) -> None:
    common = ("--data=digits", "--model=fc2", "--attack=cocktail_party", "--batch-size=6", "--set", "batch.count=1")
    summed = ("--set", "client.clients=3", "--client=fedsgd", "--set", "training.steps=0", "--json", "--jobs=1")
    found = cli("audit", *common, *summed, "--out=sum")
    (row,) = found.json["rows"]
    assert row["scores"]["recovered"]["mean"] == 1.0
    assert "sum of 3 clients" in found.json["cases"][0]["title"]


def test_impossible_federations_are_refused(refused: Callable[..., str], recipe: Path) -> None:
    impossible = {
        "federation.clients=5000": "cannot share",
        "federation.share=0": "share must be a number > 0",
        "partition.alpha=0": "alpha > 0",
        "client.lr=0": "lr > 0",
        "client.steps=0": "steps from 1",
        "client.clients=0": "whole number from 1",
        "partition.use=even": "'even'",
        "partition.beta=1": "beta",
        "batch.size=900": "to be audited",
    }
    for setting, words in impossible.items():
        assert words in refused("audit", recipe, "--set", setting, "--quiet"), setting


def test_a_partition_needs_a_federation(refused: Callable[..., str], home: Path) -> None:
    text = (home / "tiny.toml").read_text() + '[partition]\nuse = "iid"\n'
    (home / "bad.toml").write_text(text)
    assert "add that table" in refused("audit", "bad.toml")
