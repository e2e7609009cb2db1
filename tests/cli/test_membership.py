"""Membership tests from the command line: run, report, gate, and what is said where they cannot be run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Cli

from seepage import Batch, build, record
from seepage.base.registry import Spec
from seepage.federation.transcript.recorded import save_transcript

RECIPE = """
name = "members"
[data]
use = "digits"
size = 12
[model]
use = "resnet"
depth = 10
width = 4
[batch]
size = 6
count = 2
[membership]
tests = ["matched_filter", "gradient_cosine"]
public = 240
level = 0.05
[[attack]]
use = "linear"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("membership") / "members.toml"
    path.write_text(RECIPE)
    return path


@pytest.mark.full
def test_members_are_named_in_result_terminal_and_report(cli: Cli, made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = cli("audit", made, "--out", run, "--jobs", "1", "--json", code=2).json
    rows = {row["test"]: row for row in found["membership"]}
    best = rows["matched_filter"]
    assert (best["members"], best["others"], best["calibration"]) == (12, 12, 120)
    assert best["members_identified"]["hits"] >= 8
    assert best["auc"] > 0.9
    assert best["auc_low"] <= best["auc"] <= best["auc_high"]
    assert "MEMBERS IDENTIFIED. " in found["verdict"]
    page = (run / "report.html").read_text()
    assert "Who was in it" in page
    assert "members identified" in page
    assert f"<b>{best['members_identified']['hits']}/12</b>" in page
    shown = cli("report", run, "--details", code=2).out
    assert "membership test" in shown
    # The truth lies in private/ alone: what a test is given does not say who is a member.
    seen = (run / "observed" / "membership.safetensors").read_bytes()
    assert b"member" not in seen[:4096].replace(b"membership", b"")
    # The gate takes the scores of the tests.
    cli("audit", made, "--out", run, "--fail-if", "members_identified>0.5", code=1)
    cli("audit", made, "--out", run, "--fail-if", "auc>1", "--allow-inconclusive")
    # The same recipe gives the same numbers.
    again = cli("audit", made, "--out", tmp_path / "again", "--jobs", "1", "--json", code=2).json
    own = [{k: v for k, v in row.items() if "seconds" not in k} for row in found["membership"]]
    assert own == [{k: v for k, v in row.items() if "seconds" not in k} for row in again["membership"]]


def test_too_few_examples_are_said_and_the_gate_does_not_pass(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = tmp_path / "few.toml"
    table = 'name = "few"\n[data]\nsize = 8\n[training]\nsteps = 0\n[batch]\nsize = 8\n[[attack]]\nuse = "linear"\n'
    few.write_text(table)
    found = cli("audit", few, "--membership", "--out", run, "--jobs", 1, "--json").json
    assert found.get("membership", []) == []
    assert "needs 8 non-members and 198 public examples" in json.dumps(found["cases"])
    assert "Membership was not tested" in found["verdict"]
    assert "not tested" in (run / "report.html").read_text()
    gated = cli("audit", few, "--membership", "--out", run, "--fail-if", "members_identified>0", code=2)
    assert "there is no 'members_identified'" in gated.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('tests = ["matched_filt"]', "did you mean"),
        ('tests = ["x"]', "module:Test"),
        ("tests = []", "must be a list"),
        ('tests = ["matched_filter", "matched_filter"]', "twice"),
        ("level = 0", "level must be a number > 0 and < 1"),
        ("public = 1", "public must be a whole number >= 4"),
        ("publik = 1", "publik"),
    ],
)
def test_mistakes_in_the_table_are_one_sentence(cli: Cli, tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(f'name = "x"\n[membership]\n{line}\n[[attack]]\nuse = "linear"\n')
    found = cli("audit", path, "--dry-run", code=2)
    assert words in found.err
    assert "Traceback" not in found.err


def npz(path: Path, inputs: torch.Tensor, labels: torch.Tensor) -> Path:
    np.savez(path, x=(inputs * 255).round().byte().permute(0, 2, 3, 1).numpy(), y=labels.numpy())
    return path


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An observed/ folder, its members and as many others as one file, and public examples."""
    folder, draw = tmp_path_factory.mktemp("captured"), torch.Generator().manual_seed(0)
    inputs = (torch.rand(112, 1, 6, 6, generator=draw) * 255).round() / 255
    labels = torch.arange(112) % 3
    private = Batch(inputs[:3], labels[:3])
    seen = record(build(Spec("fc2", {"hidden": 8}), (1, 6, 6), 3), private, architecture=Spec("fc2", {"hidden": 8}))
    save_transcript(seen, folder / "observed")
    npz(folder / "candidates.npz", inputs[:12], labels[:12])
    npz(folder / "public.npz", inputs[12:], labels[12:])
    npz(folder / "two.npz", inputs[12:14], labels[12:14])
    return folder


def test_candidates_of_a_captured_update_get_p_values(cli: Cli, captured: Path) -> None:
    given = ("attack", captured / "observed", "--candidates", captured / "candidates.npz", "--public")
    found = cli(*given, captured / "public.npz", "--level", "0.05", "--json").json
    assert [row["candidate"] for row in found["candidates"] if row["identified"]][:3] == [0, 1, 2]
    assert found["calibration"] == 50
    assert all(0 < row["p_value"] <= 1 for row in found["candidates"])
    assert "identifies" in cli(*given, captured / "public.npz", "--level", "0.05").out
    assert found["resized"] is None
    large = captured / "large.npz"
    with np.load(captured / "candidates.npz") as held:
        np.savez(large, x=held["x"].repeat(2, 1).repeat(2, 2), y=held["y"])
    given_large = ("attack", captured / "observed", "--candidates", large, "--public", captured / "public.npz")
    said = cli(*given_large, "--level", "0.05")
    assert "brought from 1 x 12 x 12 to 1 x 6 x 6" in said.out
    assert "smallest p-value that 50 calibration examples allow is 0.02" in said.out
    twice = cli(*given, captured / "public.npz", "--level", "0.05", "--round", "0", "--round", "0", "--json").json
    assert [row["p_value"] for row in twice["candidates"]] == [row["p_value"] for row in found["candidates"]]
    few = cli(*given, captured / "two.npz", code=2)
    assert "2 classes and the model 3" in few.err
    low = cli(*given, captured / "public.npz", "--level", "0.001", code=2)
    assert "nobody can be identified at 0.001" in low.err
    late = cli(*given, captured / "public.npz", "--round", "7", code=2)
    assert "has 1 round," in late.err


def test_of_several_clients_of_a_round_it_is_said_whose_a_candidate_is(
    cli: Cli, captured: Path, tmp_path: Path
) -> None:
    """Folders as a recorder writes them: members of the second client are its own, and nobody's are nobody's."""
    with np.load(captured / "candidates.npz") as held:
        x, y = (torch.from_numpy(held[name]) for name in ("x", "y"))
    inputs, network = x.permute(0, 3, 1, 2).float() / 255, Spec("fc2", {"hidden": 8})
    model = build(network, (1, 6, 6), 3)
    for k, name in enumerate(("anna", "7")):
        own = Batch(inputs[3 * k : 3 * k + 3], y[3 * k : 3 * k + 3])
        save_transcript(record(model, own, architecture=network), tmp_path / f"000004-client-{name}")
    given = ("attack", tmp_path, "--candidates", captured / "candidates.npz", "--public", captured / "public.npz")
    found = cli(*given, "--level", "0.05", "--json").json
    assert [row["client"] for row in found["candidates"]][:6] == ["anna"] * 3 + ["7"] * 3
    assert [row["client"] for row in found["candidates"] if not row["identified"]] == [None] * 6
    assert "in client anna" in cli(*given, "--level", "0.05").out
    assert "name one of them with --round" in cli(*given, "--round", "3", code=2).err
