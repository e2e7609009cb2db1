"""Decided is decided: what is certified already is not attacked again, whatever the number of jobs."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from seepage.attacks import ATTACKS, Attack
from seepage.audit import run as audit
from seepage.audit.decided import in_stages
from seepage.audit.findings import findings, reported
from seepage.audit.gate import met, parse_condition
from seepage.audit.recipe.files import BUILT_IN, read_recipe
from seepage.audit.recorded import AttackRequest, attack_only
from seepage.audit.row import Outcome, Result
from seepage.audit.verdict import false_certificates
from seepage.base.executor import Plan
from seepage.report.evidence.comparison import compare
from seepage.report.evidence.junit import _counts
from seepage.report.evidence.sarif import KINDS

TABLES: dict[str, Any] = {
    "data": {"use": "faces", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "attack": [{"use": "gradient_matching", "steps": 2}, {"use": "dlg", "steps": 1}, {"use": "linear"}],
    "grid": {"batch.size": [1, 3]},
}
"""One example, which `linear` certifies, and three, of which it certifies none or some."""


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audit.run(TABLES, out=tmp_path_factory.mktemp("decided") / "run", jobs=1).folder


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {**TABLES, "all_attacks": True}
    return audit.run(tables, out=tmp_path_factory.mktemp("everything") / "run", jobs=1).folder


def result_of(folder: Path) -> Result:
    return Result.model_validate(json.loads((folder / "result.json").read_text()))


def outcomes(folder: Path) -> dict[tuple[str, str], str]:
    return {(row.case, row.attack): row.outcome.value for row in result_of(folder).rows}


def test_no_attack_runs_where_a_cheaper_one_certified_every_example(decided: Path, everything: Path) -> None:
    found = outcomes(decided)
    assert found["size-1", "linear"] == "exact"
    assert {found["size-1", name] for name in ("gradient_matching", "dlg")} == {"not_needed"}
    assert "not_needed" not in {found["size-3", name] for name in ("gradient_matching", "dlg", "linear")}
    rows = [row for row in result_of(decided).rows if row.outcome is Outcome.NOT_NEEDED]
    assert {row.reason for row in rows} == {"the one example was certified by linear; --all runs every attack"}
    assert not any(row.gave_result or row.scored or row.cost.seconds for row in rows)
    assert "not_needed" not in outcomes(everything).values()
    assert result_of(decided).verdict == result_of(everything).verdict


def test_the_order_and_the_result_do_not_depend_on_the_jobs(decided: Path, tmp_path: Path) -> None:
    class Backwards:
        """Runs what does not wait for one another in the other order."""

        def plan(self, *_: Any) -> Plan:
            return Plan(2, 1)

        def ready(self, *_: Any) -> Any:
            return nullcontext(self)

        kept = ready

        def run(self, works: Any, plan: Any, folder: Path, done: Any) -> None:
            for work in reversed(works):
                work.run(1)
                done(work)

    other = audit.run(TABLES, out=tmp_path / "run", jobs=2, on=Backwards())
    assert outcomes(other.folder) == outcomes(decided)
    for path in decided.rglob("reconstructions/**/*.safetensors"):
        assert path.read_bytes() == (other.folder / path.relative_to(decided)).read_bytes()


def test_those_that_certify_go_first_from_the_cheapest_and_those_that_cannot_wait_for_nobody_else() -> None:
    names = ["inverting_gradients", "gauss_newton", "dlg", "linear", "mine"]

    class Mine(Attack):
        def run(self, seen: Any, /, **_: Any) -> Any: ...

    made: dict[str, Attack] = {name: ATTACKS[name]() if name != "mine" else Mine() for name in names}
    stages = in_stages({name: (name, attack) for name, attack in made.items()})
    assert stages == [["linear"], ["gauss_newton"], ["mine"], ["inverting_gradients", "dlg"]]


def test_it_is_neither_a_failure_nor_a_finding_of_nothing(decided: Path) -> None:
    result = result_of(decided)
    assert met(result, parse_condition("exact>0.99"))[0].name == "linear"
    found = [one for one in reported(findings(result)) if one.state == "unneeded"]
    assert {one.by for one in found} == {"gradient_matching", "dlg"}
    assert {one.severity for one in found} == {"note"}
    assert _counts(found)["skipped"] == str(len(found))
    assert KINDS["unneeded"] == "informational"


def test_a_baseline_of_all_attacks_is_no_worse_and_nothing_of_it_is_lost(decided: Path, everything: Path) -> None:
    for old, new in ((everything, decided), (decided, everything)):
        found = compare(result_of(old), result_of(new))
        assert not found.worse
        assert not found.lost
        assert not found.leaks_alone
        assert found.of("not needed")
        assert found.end[1].startswith("NOT WORSE")


def test_whoever_attacks_without_a_truth_decides_by_the_same_certificates(decided: Path, tmp_path: Path) -> None:
    request = AttackRequest(attacks=TABLES["attack"], jobs=1, out=tmp_path / "blind")
    found = outcomes(attack_only(decided / "observed/size-1", request).folder)
    assert [code for (_, name), code in found.items() if name != "linear"] == ["not_needed", "not_needed"]
    request = AttackRequest(attacks=TABLES["attack"], jobs=1, out=tmp_path / "all", all_attacks=True)
    assert "not_needed" not in outcomes(attack_only(decided / "observed/size-1", request).folder).values()


def test_a_false_certificate_says_what_did_not_run_for_its_sake(decided: Path) -> None:
    result = result_of(decided)
    rows = [
        row.model_copy(update={"certified": row.certified.model_copy(update={"wrong": 1})}) if row.certified else row
        for row in result.rows
        if row.case == "size-1"
    ]
    assert "For its sake gradient_matching and dlg did not run: run again with --all." in false_certificates(
        rows, result.cases
    )


def test_recipes_whose_point_is_a_row_of_each_attack_run_them_all() -> None:
    paths = list(BUILT_IN.rglob("*/*.toml"))
    assert len(paths) > 50
    assert all(read_recipe(path)["all_attacks"] is True for path in paths)
    assert "all_attacks" not in read_recipe(BUILT_IN / "default.toml")
