"""The sweep of a frontier, its rows, its line and its sentence; epsilon; bytes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage import GaussianNoise, SeepageError
from seepage.accounting import epsilon
from seepage.clients import Aggregate, FedSGD
from seepage.defenses import DPSGD, Compose, DecayingNoise, Guardian, Quantize, SelectiveEncryption, Soteria, Sparsify
from seepage.frontier.rows import Point, Row, advice, pareto, points_of, rows_of, wilson
from seepage.frontier.sweep import STRENGTHS, sweep_of
from seepage.frontier.utility import sent_bytes
from seepage.promise import promise_of
from seepage.types import Update

TABLES: dict[str, Any] = {
    "name": "small",
    "data": {"use": "digits", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "attack": [{"use": "linear"}, {"use": "inverting_gradients", "steps": 5}, {"use": "bayes", "steps": 5}],
    "knowledge": {"told": ["labels"]},
}


def test_each_defense_has_a_cell_and_one_for_attackers_who_know() -> None:
    sweep = sweep_of(
        {**TABLES, "frontier": [{"use": "sparsify", "keep": [0.5, 0.1]}, {"use": "fake_gradients", "candidates": 9}]}
    )
    assert [entry.name for entry in sweep.entries] == [
        "no defense",
        "sparsify(keep=0.5)",
        "sparsify(keep=0.1)",
        "fake_gradients(candidates=9)",
    ]
    bare, half, _, forged = sweep.entries
    assert bare.known is None
    assert forged.known is None, "no attack makes anything of it"
    assert half.known is not None
    assert half.known.knowledge.told == ("labels", "defense")
    assert [part.use for part in half.known.attack] == ["inverting_gradients"]
    assert [part.use for part in half.recipe.attack] == ["linear", "inverting_gradients", "bayes"]
    assert half.known.make_defense() == half.recipe.make_defense() == Sparsify(keep=0.5)


def test_noise_is_known_to_the_attack_that_weighs_it() -> None:
    table = {"use": "gaussian_noise", "sigma": 0.1, "clip": 1.0}
    known = sweep_of({**TABLES, "frontier": [table]}).entries[1].known
    assert known is not None
    assert [part.use for part in known.attack] == ["bayes"]


def test_the_clip_of_examples_is_known_to_every_matching_attack() -> None:
    known = sweep_of({**TABLES, "frontier": [{"use": "dp_sgd", "sigma": 0.1}]}).entries[1].known
    assert known is not None
    assert [part.use for part in known.attack] == ["inverting_gradients", "bayes"]


def test_guardian_is_known_to_every_matching_attack() -> None:
    known = sweep_of({**TABLES, "frontier": [{"use": "guardian", "beta": 1.0}]}).entries[1].known
    assert known is not None
    assert [part.use for part in known.attack] == ["inverting_gradients", "bayes"]


def test_who_knows_of_zero_sum_noise_attacks_the_sum_of_the_group() -> None:
    table = {"use": "zero_sum_noise", "sigma": 0.1}
    federation = {"clients": 6, "share": 0.5}
    entry = sweep_of(
        {**TABLES, "federation": federation, "batch": {"size": 2, "count": 3}, "frontier": [table]}
    ).entries[1]
    assert entry.known is not None
    assert entry.recipe.make_client() == FedSGD()
    assert entry.known.make_client() == Aggregate(rule=FedSGD(), clients=3)
    assert (entry.known.batch.size, entry.known.batch.count) == (6, 3)
    assert [part.use for part in entry.known.attack] == ["linear", "inverting_gradients", "bayes"]
    assert (
        sweep_of({**TABLES, "federation": {"clients": 6, "share": 0.1}, "frontier": [table]}).entries[1].known is None
    )


def test_defenses_can_be_composed() -> None:
    parts = [{"use": "dp_sgd", "sigma": 0.5}, {"use": "soteria", "ratio": 0.5}]
    entry = sweep_of({**TABLES, "frontier": [{"parts": parts}]}).entries[1]
    assert entry.name == "dp_sgd(sigma=0.5) + soteria(ratio=0.5)"
    assert isinstance(entry.recipe.make_defense(), Compose)
    assert entry.known is not None


def test_the_built_in_list_is_swept_where_a_recipe_has_none() -> None:
    sweep = sweep_of(TABLES)
    assert {entry.name.partition("(")[0] for entry in sweep.entries[1:]} == {table["use"] for table in STRENGTHS}
    only = sweep_of(TABLES, only=["quantize"])
    assert [entry.name for entry in only.entries] == ["no defense", "quantize(bits=4)", "quantize(bits=1)"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": {"batch.size": [1, 2]}}, "one setting"),
        ({"defense": [{"use": "soteria", "ratio": 0.5}]}, "frontier"),
        ({"utility": {"rounds": 0}}, "at least 1"),
        ({"utility": {"round": 3}}, "no option 'round'"),
        ({"frontier": [{"sigma": 1.0}]}, 'use = "NAME"'),
        ({"frontier": [{"parts": []}]}, "parts"),
        ({"frontier": {"use": "soteria"}}, "[[frontier]]"),
        ({"frontier": [{"use": "sparsify", "keep": [0.5, 2.0]}]}, "(0, 1]"),
        ({"frontier": [{"use": "sparsfy", "keep": 0.5}]}, "sparsify"),
        ({"frontier": [{"use": "sparsify", "keep": []}]}, "1 to 200"),
    ],
)
def test_a_mistake_is_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SeepageError) as error:
        sweep_of({**TABLES, **change})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_defense_that_is_not_swept_is_refused() -> None:
    with pytest.raises(SeepageError, match="sweeps no 'guardian'"):
        sweep_of(TABLES, only=["guardian"])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_line_is_what_nothing_beats(pairs: list[tuple[int, int]]) -> None:
    points = [Point(str(i), a / 5, s / 5, True) for i, (a, s) in enumerate(pairs)]
    slow = set()
    for i, (a, s) in enumerate(pairs):
        if not any(b >= a and r <= s and (b, r) != (a, s) for b, r in pairs):
            slow.add(str(i))
    line = pareto(points)
    assert {point.defense for point in line} == slow
    assert [point.accuracy for point in line] == sorted(point.accuracy for point in line)


def row(defense: str, accuracy: float | None, recovered: int | None, attacker: str = "oblivious") -> Row:
    return Row(
        defense=defense,
        attacker=attacker,
        cell=defense,
        recovered=recovered,
        examples=10,
        accuracy=accuracy,
        accuracy_examples=200,
    )


BARE = row("no defense", 0.9, 9)


def test_the_advice_is_the_cheapest_defense_that_stops_every_attack_and_names_one_that_does_not() -> None:
    rows = [
        BARE,
        row("dp(s=1)", 0.5, 0),
        row("dp(s=0.1)", 0.88, 0),
        row("dp(s=0.1)", 0.88, 0, "knows"),
        row("dp(s=0.01)", 0.9, 5),
        row("mask(r=1)", 0.9, 0),
        row("mask(r=1)", 0.9, 8, "knows"),
    ]
    assert advice(rows) == (
        "dp(s=0.1) costs 2.0 points of accuracy (90.0% to 88.0% of 200 test examples) and stops every attack tried, "
        "with the steps they were given; mask, at any strength tried, does not."
    )


def test_an_attacker_who_knows_decides() -> None:
    found = points_of([row("mask(r=1)", 0.9, 0), row("mask(r=1)", 0.9, 8, "knows")])
    assert found == [Point("mask(r=1)", 0.9, 0.8, True)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([BARE, row("a", 0.9, 3), row("b", 0.7, 2)], "No defense tried stops every attack tried: behind b"),
        ([BARE, row("a", 0.9, 0)], "a costs no accuracy"),
        ([BARE, row("a", 0.95, 0)], "a costs no accuracy"),
        ([BARE, row("a", 0.9, 0)], "none of which adapts to it"),
        ([row("no defense", 0.9, 0), row("a", 0.9, 0)], "cannot tell defenses apart"),
        ([row("no defense", 0.9, None), row("a", 0.9, 0)], "nothing can be compared"),
        ([BARE, row("a", None, 0)], "nothing can be compared"),
    ],
)
def test_the_advice_in_other_cases(rows: list[Row], words: str) -> None:
    assert words in advice(rows)
    assert " safe" not in advice(rows)


def test_the_best_attack_is_the_one_that_recovers_most() -> None:
    sweep = sweep_of({**TABLES, "frontier": [{"use": "fake_gradients", "candidates": 9}]})
    blank = {"ssim": 0.1, "psnr_median": 9.0, "gain_db": -3.0, "reason": None, "examples": 4}
    price = dict.fromkeys(("accuracy", "accuracy_examples", "seconds", "bytes", "bytes_plain", "promise", "reason"))
    results = [
        {"cell": entry.recipe.cell, "attack": attack, "psnr": psnr, "recovered": share, **blank}
        for entry in sweep.entries
        for attack, psnr, share in (("linear", 30.0, 0.25), ("bayes", 20.0, 0.75), ("dlg", None, None))
    ]
    found = rows_of(sweep.entries, [price, price], results)
    assert [(one.attack, one.recovered, one.examples) for one in found] == [("bayes", 3, 4)] * 2
    silent = rows_of(sweep.entries, [price, price], [{**one, "psnr": None, "reason": "why"} for one in results])
    assert [(one.attack, one.recovered, one.reason) for one in silent] == [(None, None, "why")] * 2


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_interval_is_wilsons(count: int, more: int) -> None:
    total = count + more
    z, p = 1.959963984540054, count / total
    middle, half = p + z * z / (2 * total), z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    expected = (middle - half) / (1 + z * z / total), (middle + half) / (1 + z * z / total)
    assert wilson(count, total) == pytest.approx(expected, abs=1e-4)


def test_bytes_are_those_of_the_shortest_form() -> None:
    rng = np.random.default_rng(0)
    dense = Update({"w": torch.from_numpy(rng.normal(size=1000)).float()})
    thin, sparse = torch.zeros(1000), torch.zeros(1000)
    thin[:3], sparse[:100] = 1.0, 1.0
    assert sent_bytes(dense, None) == 4000
    assert sent_bytes(Update({"w": sparse}), None) == 400 + 125
    assert sent_bytes(Update({"w": thin}), None) == 3 * 8
    assert sent_bytes(dense, Quantize(bits=8)) == 1004
    assert sent_bytes(Update({"w": thin}), SelectiveEncryption(share=0.9)) == 4000


def test_an_epsilon_is_that_of_the_accountant() -> None:
    found = promise_of(GaussianNoise(sigma=2.0, clip=0.1), range(4))
    assert found is not None
    assert found.epsilon == epsilon(sigma=2.0, rounds=4)
    assert (found.unit, found.rounds, found.doubts) == ("update", 4, ())
    example = promise_of(Compose((DPSGD(sigma=0.01), Sparsify(keep=0.5))))
    assert example is not None
    assert example.unit == "example"
    assert "vacuous" in example.doubts[0]


def test_where_no_epsilon_holds_it_says_so() -> None:
    assert promise_of(Sparsify(keep=0.5)) is None
    assert promise_of(None) is None
    for defense, words in (
        (GaussianNoise(sigma=1.0), "no clip"),
        (GaussianNoise(sigma=0.0, clip=1.0), "no noise"),
        (DecayingNoise(sigma=0.0, clip=1.0), "no noise"),
        (Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5))), "Soteria looks at the private examples again"),
        (Compose((GaussianNoise(sigma=1.0, clip=1.0), Guardian(beta=1.0))), "Guardian looks at"),
    ):
        found = promise_of(defense)
        assert found is not None
        assert found.epsilon is None
        assert words in found.doubts[0]
