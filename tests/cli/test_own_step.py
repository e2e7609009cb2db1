"""`--client mine:train_step`: a training step of one's own in audits, recordings and recipes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Cli = Callable[..., Any]
Refused = Callable[..., str]

CODE = """
import torch
import torch.nn.functional as F

def train_step(model, batch):
    inputs, labels = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()

def adam(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    def step(inputs, labels):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return step

def nothing(a, b, c, d):
    pass
"""


@pytest.fixture
def code(home: Path) -> Path:
    (home / "loops.py").write_text(CODE)
    return home


CHEAP = ("--attack", "dlg", "--set", "attack.steps=2", "--jobs", 1, "--set", "training.steps=0", "--set", "data.size=8")
TINY = ("audit", "tiny.toml", "--attack", "linear", "--jobs", 1, "--set", "training.steps=0")
SEEN = ("--data", "digits", "--model", "convnet", "--set", "batch.size=2", "--set", "batch.count=1")
"""Classes that are in no example move alike there, which tells the learning rate."""


def test_an_audit_runs_the_code_reads_it_off_its_update_and_says_the_difference(code: Path, cli: Cli) -> None:
    done = cli("audit", *SEEN, *CHEAP, "--client", "loops:train_step", "--out", "run")
    assert "the client's own code was run; attacks read it as 1 epoch of SGD at a learning rate of" in done.out
    assert "% of the update" in done.out
    assert "inferred, not stated: learning rate: about" in done.out
    observed = "".join(path.read_text() for path in (code / "run" / "observed").rglob("*.json"))
    assert "loops" not in observed
    assert "difference" not in observed
    page = (code / "run" / "report.html").read_text()
    assert "the client&#39;s own code was run" in page or "the client's own code was run" in page
    # What was recorded is attacked without the code, and without trust.
    (code / "loops.py").unlink()
    cli("attack", "run/observed", "--attack", "linear", "--out", "later", "--allow-inconclusive")


def test_options_state_what_attackers_are_told_and_a_recipe_says_the_same(code: Path, cli: Cli) -> None:
    cli("record", "tiny.toml", "--client", "loops:adam:lr=0.001,optimizer=adam,steps=2", "--out", "typed")
    (code / "own.toml").write_text(
        (code / "tiny.toml").read_text() + '[client]\nuse = "loops:adam"\nlr = 0.001\noptimizer = "adam"\nsteps = 2\n'
    )
    cli("record", "own.toml", "--trust", "--out", "written")
    one, two = (code / name / "observed" / "rounds" / "000000.safetensors" for name in ("typed", "written"))
    assert one.read_bytes() == two.read_bytes()
    assert '"adam"' in (code / "typed" / "observed" / "knowledge.json").read_text()


def test_code_that_cannot_be_a_training_step_is_refused_before_anything_is_computed(
    code: Path, cli: Cli, refused: Refused
) -> None:
    assert "takes 4 arguments; write train_step(model, batch)" in refused(*TINY, "--client", "loops:nothing")
    assert "no option 'rate'" in refused(*TINY, "--client", "loops:train_step:rate=0.1")
    assert "has no 'train_stop'; did you mean train_step?" in refused(*TINY, "--client", "loops:train_stop")
    for name in ("a.pt", "b.pt"):
        torch.save({"weight": torch.zeros(2)}, code / name)
    stopped = refused("attack", "a.pt", "b.pt", "--model", "fc2", "--client", "loops:train_step")
    assert "is run to record, and these files hold what a client sent" in stopped


def test_masks_and_rounding_are_said_with_the_difference_that_they_make(code: Path, cli: Cli) -> None:
    rounded = "fedavg:lr=0.1,dropout=true,precision=bfloat16"
    cli("record", "tiny.toml", *SEEN, "--set", "training.steps=0", "--client", rounded, "--out", "run")
    said = json.loads((code / "run" / "private" / "case.json").read_text())["read_as"]
    start, _, share = said.partition("; difference ")
    assert start == (
        "the client draws or rounds what attacks cannot follow; "
        "attacks read it as 1 epoch of SGD at a learning rate of 0.1, on the loss cross_entropy"
    )
    assert 0.01 < float(share.removesuffix(" % of the update")) < 5
