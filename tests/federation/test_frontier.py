"""The sweep of a frontier, its rows, its line and its sentence; epsilon; bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy.stats import binomtest
from tests.helpers.rows import result_of, row_of
from tests.helpers.sentences import assert_as_read

from seepage import GaussianNoise, SeepageError
from seepage.audit.case import Measure
from seepage.audit.row import Case, Result, Row
from seepage.base.registry import Spec
from seepage.federation.clients import Aggregate, FedSGD
from seepage.federation.defenses import (
    DPSGD,
    Compose,
    DecayingNoise,
    JacobianDamping,
    Quantize,
    SelectiveEncryption,
    Soteria,
    Sparsify,
)
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Update
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.guarantee import guarantee_of
from seepage.report.frontier.advising import advice, untried
from seepage.report.frontier.page import _draw_points, _groups, write_page
from seepage.report.frontier.rows import DefenseRow, Point, pareto, points_of, rows_of
from seepage.report.frontier.run import run_frontier
from seepage.report.frontier.sweep import DEFAULT_STRENGTHS, Sweep, sweep_of

TABLES: dict[str, Any] = {
    "name": "small",
    "data": {"use": "digits", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "attack": [{"use": "linear"}, {"use": "inverting_gradients", "steps": 5}, {"use": "bayes", "steps": 5}],
    "knowledge": {"known": ["labels"]},
}


def test_each_defense_has_a_case_and_one_for_attackers_who_know() -> None:
    unharmed = {"use": "fake_gradients", "order": "magnitude"}
    sweep = sweep_of({**TABLES, "frontier": [{"use": "sparsify", "keep": [0.5, 0.1]}, unharmed]})
    assert [entry.name for entry in sweep.entries] == [
        "no defense",
        "sparsify(keep=0.5)",
        "sparsify(keep=0.1)",
        "fake_gradients(order='magnitude')",
    ]
    bare, half, _, forged = sweep.entries
    assert bare.known is None
    assert forged.known is None, "no attack makes anything of it"
    assert half.known.knowledge.known == ("labels", "defense")
    assert [part.use for part in half.known.attack] == ["inverting_gradients"]
    assert [part.use for part in half.recipe.attack] == ["linear", "inverting_gradients", "bayes"]
    assert half.known.make_defense() == half.recipe.make_defense() == Sparsify(keep=0.5)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({"use": "gaussian_noise", "sigma": 0.1, "clip": 1.0}, ["bayes"]),  # which weighs it
        ({"use": "dp_sgd", "sigma": 0.1}, ["inverting_gradients", "bayes"]),
        ({"use": "jacobian_damping", "beta": 1.0}, ["inverting_gradients", "bayes"]),
    ],
)
def test_a_defense_is_known_to_the_attacks_that_make_something_of_it(table: dict[str, Any], wanted: list[str]) -> None:
    known = sweep_of({**TABLES, "frontier": [table]}).entries[1].known
    assert [part.use for part in known.attack] == wanted


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
    assert {entry.name.partition("(")[0] for entry in sweep.entries[1:]} == {
        table["use"] for table in DEFAULT_STRENGTHS
    }
    only = sweep_of(TABLES, only=[Spec("quantize")])
    assert [entry.name for entry in only.entries] == ["no defense", "quantize(bits=4)", "quantize(bits=1)"]


def test_strengths_of_ones_own_stand_in_place_of_the_recipes() -> None:
    own = Spec("gaussian_noise", {"clip": 1, "sigma": [0.5, 2]})
    assert [entry.name for entry in sweep_of(TABLES, only=[own, Spec("soteria")]).entries] == [
        "no defense",
        "soteria(ratio=0.9)",
        "gaussian_noise(clip=1, sigma=0.5)",
        "gaussian_noise(clip=1, sigma=2)",
    ]
    assert len(sweep_of(TABLES, only=[Spec("jacobian_damping", {"beta": 1.0})]).entries) == 2, "not in the recipe"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": {"batch.size": [1, 2]}}, "one setting"),
        ({"defense": [{"use": "soteria", "ratio": 0.5}]}, "frontier"),
        ({"utility": {"rounds": 0}}, "rounds must be a whole number >= 1"),
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
    with pytest.raises(SeepageError, match="'jacobian_damping'"):
        sweep_of(TABLES, only=[Spec("jacobian_damping")])


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


def row(
    defense: str, accuracy: float | None, recovered: int | None, attacker: str = "oblivious", **found: int
) -> DefenseRow:
    """A row with the examples each attack found; where none is named, one found all that was."""
    best = None if recovered is None else result(defense, "linear", 9.0, examples=10, recovered=recovered / 10)
    return DefenseRow(
        defense=defense,
        attacker=attacker,
        case=defense,
        best=best,
        found=found or ({} if recovered is None else {"linear": recovered}),
        accuracy=accuracy,
        accuracy_examples=200,
    )


def result(case: str, attack: str, psnr: float | None, **changes: Any) -> Row:
    """A row of an audit."""
    base = {"ssim": 0.1, "psnr_median": 9.0, "gain_db": -3.0, "reason": None, "examples": 4, "recovered": 0.0}
    found = {"case": case, "attack": attack, "psnr": psnr, "status": "ok", "outcome": "partial", **base, **changes}
    return row_of(**found)


BARE = row("no defense", 0.9, 9)


def test_an_attacker_who_knows_decides() -> None:
    found = points_of([row("mask(r=1)", 0.9, 0), row("mask(r=1)", 0.9, 8, "knows")])
    assert found == [Point("mask(r=1)", 0.9, 0.8, True)]


IDLE = row("a", 0.9, 0, linear=0, inverting_gradients=0)
KNOWN = row("a", 0.9, 0, "knows", inverting_gradients=0)
ZERO = DefenseRow(defense="z", attacker="oblivious", case="z", zero=True, reason="zero", accuracy=0.9)
ALONE = DefenseRow(defense="b", attacker="knows", case="b", reason="too few examples; lower batch.size", accuracy=0.9)
GAPS = [
    *(replace(row(name, 0.9, 5), untried={"dlg": "no memory."}) for name in ("no defense", *"bcdef")),
    replace(row("a", 0.9, 0), untried={"linear": "why", "spear": "why not"}),
    replace(row("g", None, 3), failed="the weights are not finite"),
]
ADVICE: dict[str, list[DefenseRow]] = {
    "the cheapest that stops every attack, known to the attacker or not": [
        BARE, row("dp(s=1)", 0.5, 0), row("dp(s=0.1)", 0.88, 0), row("dp(s=0.1)", 0.88, 0, "knows"),
        row("dp(s=0.01)", 0.9, 5), row("mask(r=1)", 0.9, 0), row("mask(r=1)", 0.9, 8, "knows"),
    ],
    "none stops every attack": [BARE, row("a", 0.9, 3), row("b", 0.7, 2)],
    "none at any strength": [BARE, row("gaussian_noise(sigma=0.1)", 0.8, 4)],
    "no attacker knew": [BARE, row("a", 0.9, 0)],
    "an attacker knew": [BARE, row("a", 0.9, 0, "knows")],
    "an attack that is idle without a defense is no evidence": [row("no defense", 0.9, 4, linear=4, idlg=0), IDLE],
    "nor is one that knows": [row("no defense", 0.9, 4, linear=4, idlg=0), IDLE, KNOWN],
    "one that is able and knows is": [row("no defense", 0.9, 4, linear=4), IDLE, replace(KNOWN, found={"linear": 0})],
    "attacks find nothing without a defense": [row("no defense", 0.9, 0, dlg=0), row("a", 0.9, 0), row("b", 0.9, 1)],
    "the able attack was tried behind none": [BARE, row("a", 0.9, 0, dlg=0)],
    "the able attack was tried behind one": [BARE, row("a", 0.9, 0, dlg=0), row("b", 0.8, 1)],
    "the able attack is stopped by one": [BARE, row("a", 0.9, 2, dlg=2), row("b", 0.5, 0)],
    "no score without a defense": [row("no defense", 0.9, None), row("a", 0.9, 0)],
    "no row without a defense": [row("a", 0.5, 0), row("b", 0.5, 0)],
    "no accuracy": [BARE, row("a", None, 0)],
    "values that hardly any model explains": [
        replace(one, accuracy_of="value") for one in (row("no defense", 0.03, 4), row("a", 0.0, 0))
    ],
    "nothing but zeros": [BARE, row("a", 0.8, 0), replace(ZERO, accuracy_examples=200)],
    "zeros, but not to all": [BARE, ZERO, row("z", 0.9, 1, "knows")],
    "an attack that knows was not scored": [BARE, row("b", 0.9, 0), ALONE],
    "gaps, those that flatter a defense first": GAPS,
}  # fmt: skip


def test_the_advice_is_as_it_was_read() -> None:
    said = {name: advice(rows) for name, rows in ADVICE.items()}
    assert not [name for name, words in said.items() if " safe" in words]
    assert_as_read((f"{name}\n  {words}\n" for name, words in said.items()), Path(__file__).with_name("advice.txt"))
    assert untried(GAPS)[3] not in said["gaps, those that flatter a defense first"], "it stands on the page"


@pytest.mark.parametrize(
    ("accuracy", "classes", "examples", "near"),
    [
        (0.14, 10, 200, True),  # of 200: 0.099 to 0.195, with chance in it
        (0.155, 10, 200, False),
        (0.14, 10, 10000, True),  # 4.4 % of the way from 10 % to 100 %
        (0.15, 10, 10000, False),
        (0.55, 2, 200, True),  # of 200: 0.481 to 0.617
        (0.6, 2, 200, False),
        (0.52, 2, 10000, True),
        (0.53, 2, 10000, False),
        (0.35, 3, 200, True),
        (0.9, 2, 200, False),
        (0.9, None, 200, False),
    ],
)
def test_a_model_that_hardly_learned_has_no_accuracy_to_lose(
    accuracy: float, classes: int | None, examples: int, near: bool
) -> None:
    bare = replace(row("no defense", accuracy, 9), accuracy_examples=examples)
    words = advice([bare, row("a", accuracy - 0.02, 0)], classes=classes)
    assert words.startswith("a costs 2.0 points of accuracy")
    assert ("mean little here: raise utility.rounds or training.steps." in words) is near
    assert not near or f"{accuracy:.1%} of {examples:,} test examples, where guessing one of {classes}" in words


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("class", "costs 10.0 points of accuracy (90.0% to 80.0% of 200 test examples)"),
        ("value", "costs 10.0 points of explained variance (90.0% to 80.0% of the variance of 200 test targets)"),
        ("map", "costs 10.0 points of pixel accuracy (90.0% to 80.0% of the pixels of 200 test examples)"),
        ("token", "costs 10.0 points of next-token accuracy (90.0% to 80.0% of the next tokens in 200 test texts)"),
    ],
)
def test_what_is_measured_is_called_what_it_is(measure: Measure, words: str, tmp_path: Path) -> None:
    rows = [replace(one, accuracy_of=measure) for one in (BARE, row("a", 0.8, 0))]
    assert words in advice(rows)
    assert [one.record()["accuracy_of"] for one in rows] == [measure] * 2
    page = write_page(tmp_path, rows, "advice", Case(name="a"), 20).read_text()
    assert f'<th scope="col" class="number">{rows[0].measure.capitalize()}</th>' in page
    assert ("ccuracy" in page) is ("accuracy" in words)


def test_the_measure_is_that_of_the_audited_case() -> None:
    text = {"frequent": {"rouge_1": 0.1}}
    cases = [Case(name="a"), Case(name="a", target="value"), Case(name="a", target="map", classes=["0", "1"])]
    cases += [Case(name="a", baselines=text), Case(name="a", baselines=text, classes=["x", "y"])]
    assert [case.measure for case in cases] == ["class", "value", "map", "token", "class"]


PRICE = dict.fromkeys(("accuracy", "accuracy_examples", "seconds", "bytes", "bytes_plain", "promise", "reason"))


def of_all(sweep: Sweep, rows: list[Row]) -> Result:
    """The result of an audit with these rows, which has a case for each kind of attacker."""
    recipes = [recipe for entry in sweep.entries for recipe in (entry.recipe, entry.known) if recipe is not None]
    return result_of(rows, [Case(name=recipe.case) for recipe in recipes])


def test_the_best_attack_is_the_one_that_recovers_most() -> None:
    sweep = sweep_of({**TABLES, "frontier": [{"use": "fake_gradients", "order": "magnitude"}]})
    results = [
        result(entry.recipe.case, attack, psnr, recovered=share)
        for entry in sweep.entries
        for attack, psnr, share in (("linear", 30.0, 0.25), ("bayes", 20.0, 0.75), ("dlg", None, None))
    ]
    found = rows_of(sweep.entries, [PRICE, PRICE], of_all(sweep, results))
    assert [(one.best.attack, one.recovered.hits, one.recovered.of) for one in found] == [("bayes", 3, 4)] * 2
    assert [dict(one.found) for one in found] == [{"linear": 1, "bayes": 3}] * 2
    unscored = [one.model_copy(update={"scores": {}, "reason": "why"}) for one in results]
    silent = rows_of(sweep.entries, [PRICE, PRICE], of_all(sweep, unscored))
    assert [(one.best, one.recovered, one.reason) for one in silent] == [(None, None, "why")] * 2


def test_an_attack_counts_as_untried_where_the_defense_or_a_fault_is_why() -> None:
    sweep = sweep_of({**TABLES, "frontier": [{"use": "sparsify", "keep": 0.5}]})
    bare, half = sweep.entries
    assert half.known is not None
    never = {"status": "inapplicable", "outcome": "does not apply", "reason": "too many examples"}
    results = [
        result(bare.recipe.case, "linear", 30.0),
        result(bare.recipe.case, "inverting_gradients", 20.0),
        result(bare.recipe.case, "bayes", None, **never),
        result(half.recipe.case, "linear", None, **{**never, "reason": "no bias is left"}),
        result(half.recipe.case, "inverting_gradients", 20.0, reason="on 1 of 3 batches: why"),
        result(half.recipe.case, "bayes", None, **never),
        result(half.known.case, "inverting_gradients", None, status="error", outcome="failed", reason="no memory"),
    ]
    found = rows_of(sweep.entries, [PRICE, PRICE], of_all(sweep, results))
    assert [dict(one.untried) for one in found] == [
        {},
        {"linear": "no bias is left", "inverting_gradients": "on 1 of 3 batches: why"},
        {"inverting_gradients": "no memory"},
    ]
    assert [one.reason for one in found] == [None, None, "no memory"]


def test_attackers_whom_the_recipe_itself_tells_know() -> None:
    known = {"known": ["labels", "defense"]}
    sweep = sweep_of({**TABLES, "knowledge": known, "frontier": [{"use": "sparsify", "keep": 0.5}]})
    results = [result(entry.recipe.case, "linear", 30.0) for entry in sweep.entries]
    found = rows_of(sweep.entries, [{**PRICE, "reason": "why"}] * 2, of_all(sweep, results))
    assert [(one.defense, one.attacker) for one in found] == [
        ("no defense", "oblivious"),
        ("sparsify(keep=0.5)", "knows"),
    ]
    (said,) = untried(found)
    assert "without a defense and behind sparsify(keep=0.5)" in said


def test_a_zero_update_is_said_to_be_one_and_not_what_an_attack_makes_of_it() -> None:
    sweep = sweep_of({**TABLES, "frontier": [{"use": "fake_gradients", "order": "magnitude"}]})
    bare, forged = (entry.recipe.case for entry in sweep.entries)
    zero = {"status": "inapplicable", "outcome": "zero update", "reason": "divide by zero"}
    rows = [result(bare, "linear", 30.0), result(forged, "linear", None, **zero), result(forged, "bayes", None, **zero)]
    _, found = rows_of(sweep.entries, [PRICE, {**PRICE, "reason": "the weights are not finite"}], of_all(sweep, rows))
    assert (found.zero, dict(found.untried), found.failed) == (True, {}, "the weights are not finite")
    assert "zero everywhere" in str(found.reason)


def test_bytes_are_those_of_the_shortest_form() -> None:
    rng = np.random.default_rng(0)
    dense = Update({"w": torch.from_numpy(rng.normal(size=1000)).float()})
    thin, sparse = torch.zeros(1000), torch.zeros(1000)
    thin[:3], sparse[:100] = 1.0, 1.0
    assert dense.encoded_bytes() == 4000
    assert Update({"w": sparse}).encoded_bytes() == 400 + 125
    assert Update({"w": thin}).encoded_bytes() == 3 * 8
    assert Quantize(bits=8).wire_bytes(dense) == 1004
    assert SelectiveEncryption(share=0.9).wire_bytes(Update({"w": thin})) == 4000


def test_an_epsilon_is_that_of_the_accountant() -> None:
    found = guarantee_of(GaussianNoise(sigma=2.0, clip=0.1), range(4))
    assert found.epsilon == epsilon(sigma=2.0, rounds=4)
    assert (found.unit, found.rounds, found.caveats) == ("update", 4, ())
    example = guarantee_of(Compose((DPSGD(sigma=0.01), Sparsify(keep=0.5))))
    assert example.unit == "example"
    assert "vacuous" in example.caveats[0]


def test_where_no_epsilon_holds_it_says_so() -> None:
    assert guarantee_of(Sparsify(keep=0.5)) is None
    assert guarantee_of(None) is None
    for defense, words in (
        (GaussianNoise(sigma=1.0), "no clip"),
        (GaussianNoise(sigma=0.0, clip=1.0), "no noise"),
        (DecayingNoise(sigma=0.0, clip=1.0), "no noise"),
        (Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5))), "Soteria looks at the private examples again"),
        (Compose((GaussianNoise(sigma=1.0, clip=1.0), JacobianDamping(beta=1.0))), "JacobianDamping looks at"),
    ):
        found = guarantee_of(defense)
        assert found.epsilon is None
        assert words in found.caveats[0]


TOY = '''
from dataclasses import dataclass, replace
from seepage.federation.types import Defense, DefenseModel


@dataclass(frozen=True)
class Half(DefenseModel):
    def __call__(self, dummy, target):
        return {name: tensor / 2 for name, tensor in dummy.items()}


@dataclass(frozen=True, kw_only=True)
class Halved(Defense):
    """Send half of the update, in half of its bytes."""

    key: int = 0
    secrets = ("key",)

    def __call__(self, update, client, *, generator):
        return replace(update, tensors={name: tensor / 2 for name, tensor in update.tensors.items()})

    def attacker_models(self, model):
        return (Half(),)

    def wire_bytes(self, update):
        return update.nbytes // 2
'''


@pytest.mark.slow
def test_a_defense_of_one_file_has_its_own_row_for_who_knows_its_bytes_and_no_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_defense.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    tables = {
        "data": {"use": "digits", "size": 8},
        "model": {"use": "fc2", "hidden": 8},
        "attack": [{"use": "linear"}, {"use": "dlg", "steps": 2}, {"use": "inverting_gradients", "steps": 2}],
        "federation": {"clients": 2, "examples": 8},
        "utility": {"rounds": 1},
        "frontier": [{"use": "toy_defense:Halved", "key": 7}],
    }
    found = run_frontier(tables, out=tmp_path / "run", jobs=1)
    rows = [(row.defense, row.attacker) for row in found.rows]
    assert rows == [("no defense", "oblivious"), ("toy_defense:Halved(key=7)", "oblivious"), (rows[2][0], "knows")]
    bare, own, known = found.rows
    assert own.bytes == known.bytes == (bare.bytes_plain or 0) // 2
    assert own.epsilon is None
    (facts,) = (tmp_path / "run").glob("**/*known*/**/knowledge.json")
    assert json.loads(facts.read_text())["defense"] == [{"use": "toy_defense:Halved"}]
    with pytest.raises(SeepageError, match="somebody's own code"):
        open_transcript(facts.parent)


@pytest.mark.slow
def test_members_named_stand_beside_what_was_recovered(tmp_path: Path) -> None:
    """With `[membership]` each row has its best test; who knows of the noise is tested apart; too few are said."""
    tables = {
        **TABLES,
        "attack": [{"use": "linear"}],
        "batch": {"size": 4, "count": 2},
        "federation": {"clients": 4, "examples": 8},
        "utility": {"rounds": 1},
        "membership": {"level": 0.02, "tests": ["gradient_cosine", "matched_filter"]},
        "frontier": [{"use": "gaussian_noise", "clip": 1.0, "sigma": 0.01}],
    }
    found = run_frontier(tables, out=tmp_path / "run", jobs=1)
    assert [row.attacker for row in found.rows] == ["oblivious", "oblivious", "knows"]
    bare, _, known = found.rows
    assert (bare.identified.of, bare.test.others_identified.of, bare.test.level) == (8, 8, 0.02)
    for row in found.rows:
        hits, of = row.identified.hits, row.identified.of
        assert row.identified.low == pytest.approx(binomtest(hits, of).proportion_ci().low, abs=1e-4)
    lines = [json.loads(line) for line in (tmp_path / "run" / "frontier.jsonl").read_text().splitlines()]
    assert [(line["identified"], line["members"]) for line in lines] == [(row.identified.hits, 8) for row in found.rows]
    page = (tmp_path / "run" / "frontier.html").read_text()
    assert "Members identified" in page
    assert f"{known.identified.hits}/8<small>" in page
    price = {"promise": None, "reason": None, "accuracy": None, "accuracy_examples": None, "seconds": None}
    entry, price = sweep_of(tables).entries[0], {**price, "bytes": None, "bytes_plain": None}
    case = Case(name=entry.recipe.case, membership_skipped="too few examples")
    (few,) = rows_of([entry], [price], result_of([], [case]))
    assert (few.untested, few.identified) == ("too few examples", None)


def test_points_of_the_plot_are_where_they_were_measured_with_the_numbers_of_the_table() -> None:
    rows = [row("bare", 0.9, 8), row("unmeasured", None, 2), row("a", 0.6, 3, "knows"), row("b", 0.7, 0)]
    axes = Figure().add_subplot()
    _draw_points(axes, rows)
    drawn = [place for points in axes.collections for place in np.asarray(points.get_offsets()).tolist()]
    assert drawn == [pytest.approx(place) for place in ([60, 30], [90, 80], [70, 0])]
    numbers = {group["defense"]: str(group["number"]) for group in _groups(rows, set())}
    labels = {text.get_text(): text.xy for text in axes.texts}
    assert labels == {
        numbers["bare"]: pytest.approx((90, 80)),
        numbers["a"]: pytest.approx((60, 30)),
        numbers["b"]: pytest.approx((70, 0)),
    }
