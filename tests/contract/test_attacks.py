"""The contract of every registered attack, and that a folder without the truth is all it needs."""

import gc
import json
import os
import subprocess
import sys
import tomllib
import types
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import pretended
from torch import Tensor, nn

import seepage.federation.data
from seepage import (
    ATTACKS,
    Architecture,
    Attack,
    Batch,
    FedSGD,
    Transcript,
    build,
    record,
    save_transcript,
)
from seepage.audit.recipe.plans import Rounds
from seepage.base.registry import Spec
from seepage.federation.clients import make_client
from seepage.testing import ATTACK_CHECKS, AttackCase, planted_inputs


def all_conv(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network without a fully connected layer, so without one to read labels or inputs from."""
    return nn.Sequential(nn.Conv2d(input_shape[0], num_classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def no_bias(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, num_classes))


def smooth(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Sigmoids and one hidden layer: the kind of network the first attacks were shown on, made tiny."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, num_classes))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.2, 0.2)
    return model


# A dotted path must name an importable module, and test files are none.
odd = types.ModuleType("odd_models")
for factory in (all_conv, no_bias, smooth):
    setattr(odd, factory.__name__, factory)
sys.modules["odd_models"] = odd


def settled() -> tuple[Transcript, Tensor]:
    """Two inputs in a network with BatchNorm whose running statistics are those of other inputs, in eval mode."""
    model = build(SETTLED, (1, 8, 8), 4)
    for _ in range(40):
        model(planted_inputs(64, (1, 8, 8), seed=7))
    batch = Batch(planted_inputs(2, (1, 8, 8)), torch.arange(2))
    return record(model, batch, client=FedSGD(mode="eval"), architecture=SETTLED), batch.inputs


def with_images() -> tuple[Transcript, Tensor]:
    """One smooth input, and 200 like it that the attacker has and that are not private."""
    model, planted = build(FC2, (1, 8, 8), 4), planted_inputs(1, (1, 8, 8))
    seen = record(model, Batch(planted, torch.tensor([2])), architecture=FC2)
    own = replace(seen.knowledge, auxiliary=planted_inputs(200, (1, 8, 8), seed=7), known=frozenset({"auxiliary"}))
    return replace(seen, knowledge=own), planted


def photographs() -> tuple[Transcript, Tensor]:
    """Two tiles of photographs in a transformer of four patches: nothing smoother has independent patches."""
    data = seepage.federation.data.load("photos", size=64)
    batch = data.batch(data.private[:2])
    return record(build(PATCHES, (3, 64, 64), 13), batch, architecture=PATCHES), batch.inputs


PATCHES = Architecture("vit", {"patch": 32, "width": 32, "depth": 1, "heads": 2, "hidden": 32})
SETTLED = Architecture("convnet", {"width": 8, "batch_norm": True, "activation": "gelu"})
FC2 = Architecture("fc2", {"hidden": 32})
VICTIMS = {"settled": settled, "with_images": with_images, "photographs": photographs}
HELPERS = Path(__file__).parents[1] / "helpers"
DATA = Path(__file__).parents[1] / "attacks"
"""A file for each name in `ATTACKS`: what is planted for it. PSNRs are about 5 dB below what was measured."""


def tables_of(use: str) -> list[dict[str, Any]]:
    return list(tomllib.loads((DATA / f"{use}.toml").read_text())["planted"])


@cache
def case_of(use: str, number: int) -> AttackCase:
    """A planted case, whose runs all of its checks share."""
    return stated(use, tables_of(use)[number])


AS_STATED = {
    "input_shape", "num_classes", "batch_size", "brief_rounds", "found", "needs_batch_size", "device", "seed", "target",
}  # fmt: skip


def stated(use: str, table: Mapping[str, Any]) -> AttackCase:
    """A case as a table of TOML states it, under the names of the attributes, where parts are tables with `use`.

    `db` is the least PSNR; `options` and `brief` are options of the attack, in which `"None"` is None.
    """

    def made(options: Mapping[str, Any]) -> Attack:
        plain = {name: None if value == "None" else value for name, value in options.items()}
        attack: Attack = ATTACKS.build(Spec(use, plain))
        return attack

    given: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in table.items() if name in AS_STATED
    }
    return AttackCase(
        attack=made(table.get("options", {})),
        planted_db=table["db"],
        brief=made(table["brief"]) if "brief" in table else None,
        model=Spec.of(table["model"]) if "model" in table else AttackCase.model,
        client=make_client(Spec.of(table.get("client", {"use": "fedsgd"}))),
        rounds=Rounds(**table["rounds"]) if "rounds" in table else None,
        refuses=tuple(Spec.of(one) for one in table.get("refuses", ())),
        victim=VICTIMS[table["victim"]] if "victim" in table else None,
        other_device=pretended,
        **given,
    )


NAMES = [use for use in ATTACKS if (DATA / f"{use}.toml").exists()]
DEVICE = "works_on_another_device"
OF_ANY_CASE = ("output_is_well_formed", "recorded_equals_simulated", "refuses_models_it_cannot_handle",
               "planted_inputs_come_back")  # fmt: skip
"""What depends on the case. The other checks ask for the attack alone: its first case has them all, and those whose
table says `checks = "all"`, since they go another way through it."""


def whole_cases() -> list[Any]:
    """Every case, in a group of its own, so that one worker has all that it shares."""
    found = []
    for use in NAMES:
        for number, table in enumerate(tables_of(use)):
            names = [name for name in ATTACK_CHECKS if name != DEVICE]
            if number and table.get("checks") != "all":
                names = [name for name in names if name in OF_ANY_CASE]
            marks = [pytest.mark.slow] if table.get("slow") else []
            found.append(pytest.param(use, number, names, id=f"{use}-{number}", marks=marks))
    return found


def test_every_attack_has_its_file_of_cases() -> None:
    assert {path.stem for path in DATA.glob("*.toml")} == set(ATTACKS)


@pytest.mark.parametrize(("use", "number", "names"), whole_cases())
def test_it_keeps(use: str, number: int, names: list[str], subtests: pytest.Subtests) -> None:
    for name in names:
        with subtests.test(name):
            ATTACK_CHECKS[name](case_of(use, number))


@pytest.mark.full
@pytest.mark.parametrize("use", NAMES)
def test_it_works_on_another_device(use: str) -> None:
    """The first case of each attack alone, for a few steps: where tensors lie does not depend on what is planted."""
    case = case_of(use, 0)
    ATTACK_CHECKS[DEVICE](replace(case, brief=cut_short(case.brief or case.attack)))


def cut_short(attack: Attack) -> Attack:
    """The attack with two steps, of which the second goes on from what the first left."""
    steps = getattr(attack, "steps", None)
    if isinstance(steps, int):
        return replace(attack, steps=min(steps, 2))  # type: ignore[call-arg]
    if hasattr(attack, "iterations"):
        return replace(attack, iterations=(2, 2, 2))  # type: ignore[call-arg]
    return attack


ITERATIVE = ("bayes", "dlg", "fedleak", "fedleak_guided", "ggl", "grad_inversion", "gradient_matching",
             "idlg", "inverting_gradients", "sapag")  # fmt: skip


@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_attacks_keep_checkpoints(name: str) -> None:
    assert case_of(name, 0).plain.saves >= 3


READ_ALONE = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from seepage import attack
from seepage.federation.transcript.recorded import open_transcript
here = Path(sys.argv[1])
for folder in sorted(here.iterdir()):
    asked = json.loads((folder / "attack.json").read_text())
    seen = open_transcript(folder / "observed", trust=True)
    found = attack(seen, asked["use"], options=asked["options"], seed=0)
    save_file({"inputs": found.inputs}, folder / "found.safetensors")
"""


@pytest.mark.slow
def test_another_process_with_the_observed_folder_alone_finds_the_same(tmp_path: Path) -> None:
    """Nothing can leak through memory that this process does not share."""
    from safetensors.torch import load_file

    expected = {}
    for name in ("linear", "cocktail_party", "inverting_gradients", "gauss_newton", "cafe"):  # one of each engine
        case, table = case_of(name, 0), tables_of(name)[0]
        save_transcript(case.plain.transcript, tmp_path / name / "observed")
        asked = {"use": name, "options": table.get("brief", table.get("options", {}))}
        (tmp_path / name / "attack.json").write_text(json.dumps(asked))
        expected[name] = case.plain.found.inputs
    paths = os.pathsep.join([str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])])
    alone = [sys.executable, "-c", READ_ALONE, str(tmp_path)]
    subprocess.run(alone, check=True, timeout=240, env={**os.environ, "PYTHONPATH": paths})
    for name, inputs in expected.items():
        assert torch.equal(load_file(tmp_path / name / "found.safetensors")["inputs"], inputs), name


def test_a_recorded_folder_holds_no_true_input(tmp_path: Path) -> None:
    transcript, truth = case_of("linear", 1).plant()
    save_transcript(transcript, tmp_path)
    wanted = [row.numpy().tobytes() for row in truth]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert not any(row in path.read_bytes() for row in wanted), path.name
    facts = json.loads((tmp_path / "knowledge.json").read_text())
    assert facts["known"] == []


def test_a_simulated_transcript_leads_to_no_true_input_but_through_its_closure() -> None:
    """An attack could dig a batch out of `make_round`'s closure, but finds none in what it is handed."""
    transcript, truth = case_of("linear", 1).plant()
    seen, todo = {id(transcript.make_round)}, [transcript, transcript[0]]  # type: ignore[attr-defined]
    tensors = []
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | types.ModuleType | types.FunctionType):
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            tensors.append(thing)
        todo += gc.get_referents(thing)
    assert len(tensors) >= 8
    assert not any(tensor.shape == truth.shape and torch.equal(tensor, truth) for tensor in tensors)
