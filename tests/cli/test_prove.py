"""`seepage prove` in a terminal, as JSON, as a gate, and on somebody's own function."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from seepage.cli import main

OWN = """
import torch

def honest(update):
    norm = torch.cat([t.flatten() for t in update.values()]).norm()
    return {name: t / max(1.0, norm) + torch.randn(t.shape) for name, t in update.items()}

class Forgets:
    def __init__(self, clip):
        self.clip = clip
    def __call__(self, update):
        norm = torch.cat([t.flatten() for t in update.values()]).norm()
        return {name: t / max(1.0, norm / self.clip) for name, t in update.items()}

def server(updates, weights):
    shares = [weight / sum(weights) for weight in weights]
    clipped = [update["weight"] / max(1.0, update["weight"].norm()) for update in updates]
    mean = sum(share * each for share, each in zip(shares, clipped))
    return {"weight": mean + torch.randn(mean.shape) / len(updates)}  # of equal weights

def numbers(update):
    return {name: t if t.ndim == 0 else t + torch.randn(t.shape) for name, t in update.items()}
"""


def ran(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of `seepage prove`."""
    monkeypatch.setattr(sys, "argv", ["seepage", "prove", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert ran(monkeypatch, *words, "--json") == 0
    table: dict[str, Any] = json.loads(capsys.readouterr().out)
    return table


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_filters.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_filters", raising=False)


@pytest.mark.slow
def test_a_defense_is_measured_beside_what_is_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--of", "defense:gaussian_noise:sigma=1,clip=1", "--epsilon", "1", "--calls", "3000")
    assert ran(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    assert "4.377" in shown
    assert "computed: not contradicted" in shown
    assert "Stated: contradicted" in shown
    assert ran(monkeypatch, *words, "--quiet", "--fail-if", "contradicted") == 1
    said = capsys.readouterr()
    assert said.out.startswith("Stated: contradicted")
    assert "contradicted > 0" in said.err


def test_a_claim_that_the_calls_could_not_contradict_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = ("--of", "defense:gaussian_noise:sigma=1,clip=1", "--calls", "1500")
    assert ran(monkeypatch, *noise, "--epsilon", "10") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "warning: The stated epsilon is 10 and 1,500 calls could show" in shown
    assert "lower bound" in shown
    assert ran(monkeypatch, *noise, "--epsilon", "2", "--quiet") == 0
    assert "warning" not in capsys.readouterr().out


def test_the_gate_measures_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--of", "defense:gaussian_noise:sigma=3,clip=1", "--calls", "1500", "--quiet")
    assert ran(monkeypatch, *words, "--fail-if", "contradicted") == 0
    assert ran(monkeypatch, *words, "--fail-if", "empirical_epsilon>5") == 0
    bare = ("--of", "defense:gaussian_noise:sigma=0,clip=1", *words[2:])
    assert ran(monkeypatch, *bare, "--fail-if", "empirical_epsilon>3") == 1


@pytest.mark.usefixtures("own")
def test_code_is_called_where_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, "--of", "function:own_filters:honest") == 2
    assert "add --trust" in capsys.readouterr().err
    options = ("--trust", "--calls", "2000", "--epsilon", "5")
    assert (
        found(monkeypatch, capsys, "--of", "function:own_filters:honest", *options)["stated_verdict"]
        == "not contradicted"
    )
    broken = found(monkeypatch, capsys, "--of", "function:own_filters:Forgets:clip=1", *options)
    assert broken["stated_verdict"] == "contradicted"
    assert broken["deterministic"] is True
    assert broken["schema"] == 1
    shapes = ("--shapes", "temperature=1")
    single = found(monkeypatch, capsys, "--of", "function:own_filters:numbers", *options, *shapes)
    assert (single["canary"], single["stated_verdict"]) == ("a single number", "contradicted")
    noted = found(monkeypatch, capsys, "--of", "function:own_filters:numbers", *options)
    assert "single number leaves as it is" in noted["notes"][0]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--of", "defense:gaussian_noise:sigma=1", "--of", "function:a:b"),
        ("--of", "defense:gaussian_noise:sigma"),
        ("--of", "defense:gaussian_noise:sigma=1", "--fail-if", "epsilon<3"),
        ("--of", "defense:gaussian_noise:sigma=1", "--calls", "3"),
        ("--of", "defense:gaussian_noise:sigma=1", "--fail-if", "contradicted", "--calls", "1000"),
        ("--of", "defense:soteria:ratio=0.5"),
        ("--of", "function:own:f", "--shapes", "w=ax2"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said


BROKEN = """
import torch

thing = 3
def nothing(update): return {}
def same(update): return {name: torch.zeros(2) for name in update}
def words(update): return {name: "x" for name in update}
def raises(update): raise ValueError("my own error")
def other(update): return {"w": update["fc.weight"]}
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "cannot be judged"),
        ("same", "cannot be judged"),
        ("words", "in place of a tensor"),
        ("raises", "ValueError: my own error (broken.py line 8)"),
        ("other", "--shapes names others"),
        ("thing", "no function"),
    ],
)
def test_a_filter_that_cannot_work_does_not_pass(
    name: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--of", f"function:broken:{name}", "--trust", "--epsilon", "4", "--calls", "1000", "--quiet")
    assert ran(monkeypatch, *words, "--fail-if", "contradicted") == 2
    assert said in capsys.readouterr().err
