"""`seepage probe`: the outlook of gradient matching, and what batch norm gives away, before any attack."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Cli

from seepage.leakage import landscape
from seepage.leakage.landscape import EXPECTED_FROM, OPEN_FROM, outlook


def test_a_smooth_network_is_expected_to_leak_and_the_cosine_is_the_library_s(cli: Cli, home: Path) -> None:
    options = ("--data=digits", "--model=convnet", "--batch-size=1", "--set=training.steps=0", "--seed=3")
    found = cli("probe", *options, "--set=model.activation=sigmoid", "--set=batch.count=1", "--json")
    assert found.code == 0, found.err
    (one,) = found.json["cells"]
    assert one["outlook"] == "expected"
    assert one["batch_norm"] is None
    again = cli("record", *options, "--set=model.activation=sigmoid", "--set=batch.count=1", "--out=run", "--quiet")
    assert again.code == 0, again.err
    from seepage.attacks.matching.distances import Cosine
    from seepage.attacks.matching.problem import Problem
    from seepage.transcript.recorded import open_transcript
    from seepage.transcript.truth import open_truth

    seen, truth = open_transcript(home / "run/observed"), open_truth(home / "run/private").of_round(0)
    problem = Problem.of(seen[0], seen.knowledge, Cosine(), None)
    means = landscape(problem, truth.inputs, truth.labels, draws=6, seed=3).means
    assert [at["cosine"] for at in one["cosines"]] == pytest.approx(means, abs=2e-4)
    assert not list(home.glob("runs*"))


def test_batch_norm_is_read_and_a_cell_that_cannot_be_probed_says_why(cli: Cli) -> None:
    settings = ("--set=model.batch_norm=true", "--set=training.steps=0", "--set=batch.count=1")
    found = cli("probe", "--data=digits", "--model=convnet", "--batch-size=4", *settings)
    assert found.code == 0, found.err
    assert "gradient matching" in found.out
    assert "train" in found.out
    local = ("--client=fedavg", "--set=client.epochs=1", "--set=client.batch_size=2", "--set=client.lr=1e-6")
    (blurred,) = cli("probe", "--data=digits", "--model=convnet", "--batch-size=4", *settings, *local, "--json").json[
        "cells"
    ]
    assert (blurred["batch_norm"], blurred["channels"]) == (None, 0)
    assert "No outlook says that data are safe" in found.out
    whole = cli("probe", "cafe/few-rounds", "--quiet", "--set=rounds.count=2")
    assert whole.code == 0, whole.err
    assert "not probed, since its parties hold parts of an example" in whole.out


def test_noise_hides_the_way_back(cli: Cli) -> None:
    plain = ("probe", "--data=digits", "--model=fc2", "--batch-size=2", "--set=training.steps=0", "--json")
    noise = ("--defense=gaussian_noise", "--set=defense.sigma=1", "--set=defense.clip=1")
    clear, hidden = (cli(*plain, *more).json["cells"][0] for more in ((), noise))
    assert clear["outlook"] == "expected"
    assert hidden["outlook"] == "not expected"
    assert abs(hidden["cosines"][0]["cosine"]) < 10 * hidden["chance"]


def test_mistakes_are_one_sentence(refused: Callable[..., str]) -> None:
    assert "nosuch" in refused("probe", "--model=nosuch")


def test_the_outlook_rises_with_the_cosine() -> None:
    words = [outlook(value) for value in torch.linspace(-1, 1, 41).tolist()]
    assert words == sorted(words, key=["not expected", "open", "expected"].index)
    assert (outlook(OPEN_FROM), outlook(EXPECTED_FROM)) == ("open", "expected")
