"""The audit from code: folders, names, tasks, and what a worker is given."""

import hashlib
import json
import multiprocessing
import os
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seepage.audit import run as audit
from seepage.audit.attack import attack_cases, attack_names, check_reconstruction, own_source, ready_for
from seepage.audit.capture import Capture
from seepage.audit.captured import attack_captured
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.audit.recorded import AttackRequest, attack_only, fingerprint
from seepage.base.executor import LocalExecutor, threads_for
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Reconstruction

TABLES: dict[str, Any] = {
    "data": {"use": "faces", "size": 8},
    "model": {"use": "fc2", "hidden": 8},
    "attack": [{"use": "linear"}],
}


def test_a_run_writes_the_folder_of_the_design(tmp_path: Path) -> None:
    shown: list[tuple[float, float, str]] = []
    show = lambda done, total, doing: shown.append((done, total, str(doing)))  # noqa: E731
    run = audit.run(TABLES, out=tmp_path / "run", jobs=1, show=show, command="seepage audit x.toml")
    assert run.fresh
    files = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    assert files == {
        "recipe.toml", "env.json", "result.json", "flags.json", "scores.jsonl", "exposure.json",
            "manifest.json", "manifest.key", "owner.mac",
        "observed/knowledge.json", "observed/model.safetensors", "observed/rounds/000000.safetensors",
        "private/truth.safetensors", "private/case.json",
        "attacks/case/linear/000000.json", "attacks/case/linear/000000.safetensors",
        "reconstructions/case/linear.safetensors",
    }  # fmt: skip
    assert run.result.record() == json.loads((run.folder / "result.json").read_text())
    environment = json.loads((run.folder / "env.json").read_text())
    assert environment["command"] == "seepage audit x.toml"
    assert (environment["jobs"], environment["device"]) == (1, "cpu")
    assert tomllib.loads((run.folder / "recipe.toml").read_text())["data"] == {"use": "faces", "size": 8}
    assert any("recording" in what for _, _, what in shown)
    assert not any("case" in what for _, _, what in shown), "a single case has no name to tell"
    assert any("linear" in what or done == total for done, total, what in shown)


def test_a_finished_run_is_returned_and_not_touched(tmp_path: Path) -> None:
    first = audit.run(TABLES, out=tmp_path / "run", jobs=1)
    times = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    again = audit.run(TABLES, out=tmp_path / "run", jobs=1)
    assert (again.fresh, again.result) == (False, first.result)
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == times


def test_a_run_without_a_recipe_is_not_taken_for_this_one(tmp_path: Path) -> None:
    audit.run(TABLES, out=tmp_path / "run", jobs=1)
    (tmp_path / "run" / "recipe.toml").unlink()
    with pytest.raises(SeepageError, match="holds no run of this"):
        audit.run(TABLES, out=tmp_path / "run", jobs=1)


def test_recording_again_records_nothing_and_a_missing_case_alone_is_made(tmp_path: Path) -> None:
    tables = {**TABLES, "grid": {"seed": [0, 1]}}
    folder = audit.record_only(tables, out=tmp_path / "run")
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}
    (folder / "observed/seed-1/knowledge.json").unlink()
    audit.record_only(tables, out=tmp_path / "run")
    changed = {path for path in times if path.stat().st_mtime_ns != times[path]}
    assert folder / "observed/seed-1/knowledge.json" in changed
    assert not [path for path in changed if "seed-0" in str(path)]
    assert len(open_transcript(folder / "observed/seed-1")) == 1


def test_private_examples_are_not_trained_on_and_not_drawn_twice(tmp_path: Path) -> None:
    from seepage.federation import data
    from seepage.federation.transcript.truth import open_truth

    tables = {**TABLES, "batch": {"size": 7, "count": 4}, "training": {"steps": 1}}
    folder = audit.record_only(tables, out=tmp_path / "run")
    faces = data.load("faces", size=8, seed=0)
    drawn = [int(i) for batch in open_truth(folder / "private") for i in batch.indices]  # type: ignore[union-attr]
    assert len(drawn) == len(set(drawn)) == 28
    assert set(drawn) <= set(faces.private.tolist())
    assert not set(drawn) & set(faces.train.tolist())


def test_what_an_attacker_reads_works_without_the_private_side(tmp_path: Path) -> None:
    whole = audit.run(TABLES, out=tmp_path / "run", jobs=1)
    (tmp_path / "run/observed").rename(tmp_path / "sent")
    blind = attack_only(tmp_path / "sent", AttackRequest(attacks=[{"use": "linear"}], out=tmp_path / "blind", jobs=1))
    one, two = (folder / "attacks" for folder in (whole.folder, blind.folder))
    assert (two / "sent/linear/000000.safetensors").read_bytes() == (
        one / "case/linear/000000.safetensors"
    ).read_bytes()


def test_a_fingerprint_changes_with_every_file_and_not_with_the_place(tmp_path: Path) -> None:
    folder = audit.record_only(TABLES, out=tmp_path / "one") / "observed"
    other = audit.record_only(TABLES, out=tmp_path / "two") / "observed"
    before = fingerprint([folder])
    assert fingerprint([other]) == before
    for name in ("knowledge.json", "model.safetensors", "rounds/000000.safetensors"):
        whole = (other / name).read_bytes()
        (other / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert fingerprint([other]) != before
        (other / name).write_bytes(whole)
    assert fingerprint([folder, other]) != before


@pytest.fixture
def nothing_large_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hashlib.file_digest

    def digest(file: Any, kind: Any) -> Any:
        assert os.fstat(file.fileno()).st_size < 2**30, "hashed to its end, which takes hours"
        return whole(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", digest)


@pytest.mark.usefixtures("nothing_large_is_hashed")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("junk.safetensors", None),
        ("rounds/x", None),
        ("rounds/000009.safetensors", None),
        ("auxiliary.safetensors", "larger than"),
        ("model.safetensors", "larger than"),
        ("rounds/000000.safetensors", "larger than"),
        ("knowledge.json", "larger than"),
    ],
)
def test_a_terabyte_of_nothing_is_not_hashed(tmp_path: Path, name: str, words: str | None) -> None:
    """What a recording does not have is passed over, and what it has is looked at before it is read to its end."""
    observed = audit.record_only(TABLES, out=tmp_path / "one") / "observed"
    with (observed / name).open("ab") as file:
        file.truncate(2**40)
    request = AttackRequest(attacks=[{"use": "linear"}], out=tmp_path / "blind", jobs=1)
    with nullcontext() if words is None else pytest.raises(SeepageError, match=words):
        attack_only(observed, request)
    assert (tmp_path / "blind").exists() == (words is None)


@pytest.mark.usefixtures("nothing_large_is_hashed")
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("size", [2**40, 2**33])
def test_a_captured_file_is_looked_at_before_it_is_hashed(tmp_path: Path, suffix: str, size: int) -> None:
    files = [tmp_path / f"{name}.{suffix}" for name in ("before", "after")]
    for path in files:
        with path.open("wb") as file:
            file.truncate(size)
    capture = Capture(before=files[0], after=files[1], lr=0.1, architecture=Spec("fc2"))
    with pytest.raises(SeepageError, match="larger than" if size == 2**40 else "is not a whole"):
        attack_captured(capture, AttackRequest(attacks=[{"use": "linear"}], out=tmp_path / "run", jobs=1))
    assert not (tmp_path / "run").exists()


uses = st.lists(st.sampled_from(["dlg", "linear", "sapag", "mine:Attack", "mine.deep:Attack"]), max_size=8)


@given(uses=uses)
def test_each_attack_has_a_name_and_a_folder_of_its_own(uses: list[str]) -> None:
    names = attack_names([Spec(use) for use in uses])
    assert len(set(names)) == len(uses)
    assert all(Path(name).name == name and ":" not in name for name in names)
    assert all(name.startswith(use.replace(":", ".")) for name, use in zip(names, uses, strict=True))


def test_the_cores_are_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [threads_for(jobs, "cpu") for jobs in (1, 2, 3, 8, 16)] == [8, 4, 2, 1, 1]
    assert threads_for(2, "cuda") == 1


def test_attacks_that_have_an_outcome_are_not_run_again(tmp_path: Path) -> None:
    recipes = resolve_cases(TABLES)
    record_cases(recipes, tmp_path)
    sources = [own_source(recipe, recipes, tmp_path) for recipe in recipes]
    assert sources[0].trust
    attack_cases(sources, tmp_path, 1)
    (path,) = tmp_path.glob("attacks/case/linear/000000.safetensors")
    before = path.stat().st_mtime_ns
    attack_cases(sources, tmp_path, 1)
    assert path.stat().st_mtime_ns == before
    path.with_suffix(".json").unlink()
    attack_cases(sources, tmp_path, 1)
    assert path.stat().st_mtime_ns != before


@pytest.mark.parametrize(
    ("jobs", "begun"),
    [
        (1, ["linear 1", "idlg 1", "linear 8", "idlg 8"]),
        (2, ["idlg 8", "idlg 1", "linear 8", "linear 1"]),
    ],
)
def test_side_by_side_the_dearest_attacks_begin(
    jobs: int, begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacks = [{"use": use} for use in ("linear", "idlg")]
    recipes = resolve_cases({**TABLES, "all_attacks": True, "attack": attacks, "grid": {"batch.size": [1, 8]}})
    record_cases(recipes, tmp_path)
    given: list[str] = []
    monkeypatch.setattr(
        LocalExecutor, "run", lambda _, works, *__: given.extend(f"{work.name} {work.case[-1]}" for work in works)
    )
    attack_cases([own_source(recipe, recipes, tmp_path) for recipe in recipes], tmp_path, jobs)
    assert given == begun


def test_a_mistake_while_recording_leaves_no_folder_and_no_worker(tmp_path: Path) -> None:
    two = {**TABLES, "training": {"lr": 1e30}, "grid": {"training.steps": [0, 20]}}
    workers: list[int] = []
    with pytest.raises(SeepageError, match="the training loss is"):
        audit.run(
            two, out=tmp_path / "run", jobs=2, show=lambda *_: workers.append(len(multiprocessing.active_children()))
        )
    assert set(workers) == {1}, "it was made ready from the first case on"
    assert multiprocessing.active_children() == []
    assert not (tmp_path / "run").exists()


@pytest.mark.full  # two processes
def test_what_is_recorded_takes_no_worker_ahead(tmp_path: Path) -> None:
    recipes = resolve_cases({**TABLES, "batch": {"count": 2}})
    with ready_for(recipes, tmp_path, 2, None) as ready:
        assert ready != LocalExecutor()
        record_cases(recipes, tmp_path)
    with ready_for(recipes, tmp_path, 2, None) as ready:
        assert ready == LocalExecutor()


def test_a_guess_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    import torch

    recipes = resolve_cases(TABLES)
    record_cases(recipes, tmp_path)
    seen = open_transcript(tmp_path / "observed")
    check_reconstruction(Reconstruction(torch.zeros(3, 1, 8, 8)), seen)
    check_reconstruction(Reconstruction(torch.zeros(3, 99), space="feature"), seen)
    for bad, words in (
        (None, "NoneType"),
        (Reconstruction(torch.zeros(3, 8, 8)), r"\(8, 8\)"),
        (Reconstruction(torch.full((3, 1, 8, 8), torch.inf)), "NaN or infinite"),
    ):
        with pytest.raises(ValueError, match=words):
            check_reconstruction(bad, seen)


@pytest.mark.parametrize(
    ("table", "wrong", "reason"),
    [
        (
            {"client": {"use": "fedavg", "lr": 0.1, "steps": 3, "batch_size": 4}}, {"client": {"lr": 1e30}},
            "holds NaN or infinite values",
        ),
        (
            {"federation": {"clients": 4, "share": 1.0, "examples": 8, "rounds": 2, "lr": 0.1}},
            {"federation": {"lr": 1e45}}, "not finite after",
        ),
    ],
    ids=["client", "federation"],
)  # fmt: skip
def test_a_training_that_overflows_leaves_out_its_case_alone(
    tmp_path: Path, table: dict[str, Any], wrong: dict[str, Any], reason: str
) -> None:
    tables = {
        "data": {"use": "digits", "size": 8}, "model": {"use": "fc2", "hidden": 8}, "batch": {"size": 4},
        "attack": [{"use": "linear"}], "case": [{"name": "overflows", **wrong}], **table,
    }  # fmt: skip
    found = {row["case"]: row for row in audit.run(tables, out=tmp_path / "run", jobs=1).result.record()["rows"]}
    assert found["overflows"]["outcome"] == "not_recorded"
    assert reason in found["overflows"]["reason"]
    assert "psnr" in found["case"]["scores"]
