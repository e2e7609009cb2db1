"""The contract of every registered attack, and that a folder without the truth is all it needs."""

import gc
import json
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage import (
    ATTACKS,
    Architecture,
    Attack,
    Batch,
    FedAvg,
    FedSGD,
    Transcript,
    build,
    record,
    save_transcript,
)
from seepage.recipe.plans import Rounds
from seepage.testing import ATTACK_CHECKS, AttackCase, planted_inputs
from seepage.testing.watch import Killed


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
    own = replace(seen.knowledge, auxiliary=planted_inputs(200, (1, 8, 8), seed=7), told=frozenset({"auxiliary"}))
    return replace(seen, knowledge=own), planted


SETTLED = Architecture("convnet", {"width": 8, "batch_norm": True, "activation": "gelu"})
FC2 = Architecture("fc2", {"hidden": 32})
VERTICAL = Architecture("vertical", {"channels": 32, "hidden": 48})
ALL_CONV, NO_BIAS, SMOOTH = (Architecture(f"odd_models:{name}") for name in ("all_conv", "no_bias", "smooth"))


def made(name: str, **options: object) -> Attack:
    return ATTACKS[name].make(**options)


CASES: dict[str, list[AttackCase]] = {
    "linear": [
        AttackCase(attack=made("linear"), planted_db=150, refuses=(Architecture("convnet"), NO_BIAS)),
        AttackCase(
            attack=made("linear"), planted_db=150, model=Architecture("fc2", {"hidden": 64}), batch_size=4, found=3
        ),
    ],
    "rgap": [
        AttackCase(
            attack=made("rgap"),
            planted_db=100,
            model=Architecture("lenet"),
            refuses=(ALL_CONV, Architecture("convnet", {"batch_norm": True})),
        ),
        AttackCase(attack=made("rgap"), planted_db=120, model=Architecture("mlp3", {"hidden": 16})),
    ],
    "spear": [
        AttackCase(
            attack=made("spear"),
            planted_db=110,
            model=Architecture("fc2", {"hidden": 64}),
            batch_size=4,
            needs_batch_size=False,
            refuses=(ALL_CONV, NO_BIAS, SMOOTH, Architecture("fc2", {"hidden": 4})),
        ),
        AttackCase(
            attack=made("spear", mode="published", samples=2**15),
            planted_db=110,
            model=Architecture("fc2", {"hidden": 64}),
            batch_size=4,
            needs_batch_size=False,
        ),
    ],
    "cocktail_party": [
        AttackCase(
            attack=made("cocktail_party"),
            planted_db=100,
            model=Architecture("fc2", {"hidden": 64}),
            needs_batch_size=False,
            refuses=(ALL_CONV,),
        ),
        AttackCase(
            attack=made("cocktail_party"),
            planted_db=80,
            input_shape=(3, 16, 16),
            model=Architecture("fc2", {"hidden": 64}),
            batch_size=6,
            needs_batch_size=False,
        ),
        AttackCase(
            attack=made("cocktail_party", mode="published", steps=50),
            planted_db=5,
            input_shape=(3, 16, 16),
            model=Architecture("fc2", {"hidden": 64}),
            batch_size=4,
        ),
    ],
    "cpa_fia": [
        AttackCase(
            attack=made("cpa_fia", steps=300, tv=0.03, matching=matching),
            planted_db=least,
            model=Architecture("convnet", {"width": 32}),
            batch_size=3,
            brief=made("cpa_fia", steps=4, matching=matching),
            needs_batch_size=matching > 0,
            refuses=(FC2, ALL_CONV),
        )
        for matching, least in ((0.0, 12), (1.0, 15))
    ],
    "cafe": [
        AttackCase(
            attack=made("cafe"),
            planted_db=100,
            model=VERTICAL,
            batch_size=4,
            rounds=Rounds(design=design, count=count, samples=12),
            needs_batch_size=False,
            refuses=(ALL_CONV, NO_BIAS),
        )
        for design, count in (("partitions", 9), ("random", 24))
    ],
    "cafe_published": [
        AttackCase(
            attack=made("cafe_published", iterations=(1000, 1000, 400), alpha=0.0),
            planted_db=18,
            model=VERTICAL,
            batch_size=4,
            rounds=Rounds(design="random", count=200, samples=8),
            found=6,
            brief=made("cafe_published", iterations=(150, 150, 100), alpha=0.0),
            needs_batch_size=False,
            refuses=(ALL_CONV,),
        )
    ],
    "averaged": [
        AttackCase(
            attack=made("averaged", attack="linear"),
            planted_db=150,
            rounds=Rounds(design="whole", count=3, samples=1),
            refuses=(Architecture("convnet"), NO_BIAS),
        ),
        AttackCase(
            attack=made("averaged", attack="cocktail_party"),
            planted_db=80,
            input_shape=(3, 16, 16),
            model=Architecture("fc2", {"hidden": 64}),
            batch_size=6,
            rounds=Rounds(design="whole", count=2, samples=6),
            needs_batch_size=False,
            refuses=(ALL_CONV,),
        ),
    ],
    "idlg": [
        AttackCase(
            attack=made("idlg", steps=30, line_search=True),
            planted_db=85,
            model=SMOOTH,
            brief=made("idlg", steps=6),
            refuses=(ALL_CONV,),
        )
    ],
    "dlg": [
        AttackCase(
            attack=made("dlg", steps=30, line_search=True),
            planted_db=90,
            model=SMOOTH,
            brief=made("dlg", steps=6, restarts=2),
        ),
        AttackCase(
            attack=made("dlg", steps=30, line_search=True),
            planted_db=80,
            model=Architecture("lenet"),
            brief=made("dlg", steps=4, line_search=True),
        ),
    ],
    "sapag": [
        AttackCase(
            attack=made("sapag", steps=300),
            planted_db=60,
            model=FC2,
            brief=made("sapag", steps=12, restarts=2),
        )
    ],
    "cpl": [
        # The label term pulls away from the truth, whose prediction is not its label: with weight 1 it ends at 21 dB.
        AttackCase(
            attack=made("cpl", steps=30, line_search=True, label_weight=0.01),
            planted_db=55,
            model=SMOOTH,
            brief=made("cpl", steps=6, restarts=2),
        )
    ],
    "bayes": [
        AttackCase(attack=made("bayes", steps=300), planted_db=70, model=FC2, brief=made("bayes", steps=12, restarts=2))
    ],
    "fedleak": [
        AttackCase(
            attack=made("fedleak", steps=200, lr=0.02, schedule="cosine"),
            planted_db=45,
            model=FC2,
            brief=made("fedleak", steps=12, by="tensor", l1="sum", sample=50),
            refuses=(ALL_CONV,),
        )
    ],
    "fedleak_released": [
        AttackCase(
            attack=made("fedleak_released", steps=150, width=8),
            planted_db=33,
            model=FC2,
            brief=made("fedleak_released", steps=5, width=2, restarts=2, labels="joint"),
        )
    ],
    "rogs": [
        AttackCase(
            attack=made("rogs", steps=150, scale=2, width=4, training=20),
            planted_db=22,
            victim=with_images,
            brief=made("rogs", steps=8, width=4, training=20),
            refuses=(FC2, ALL_CONV),
        )
    ],
    "gias": [
        AttackCase(
            attack=made("gias", steps=300, latent_steps=100, latent=16, width=4, training=200),
            planted_db=21,
            victim=with_images,
            brief=made("gias", steps=12, latent_steps=4, latent=16, width=4, training=20, restarts=2),
            refuses=(FC2, ALL_CONV),
        )
    ],
    "ggl": [
        AttackCase(
            attack=made("ggl", steps=40, population=16, reach=None, latent=16, width=4, training=200),
            planted_db=15,
            victim=with_images,
            brief=made("ggl", steps=8, population=6, latent=16, width=4, training=20),
            refuses=(FC2, ALL_CONV),
        ),
        AttackCase(
            attack=made("ggl", search="adam", steps=150, reach=3.0, latent=16, width=4, training=200),
            planted_db=15,
            victim=with_images,
            brief=made("ggl", search="adam", steps=8, latent=16, width=4, training=20),
            refuses=(FC2, ALL_CONV),
        ),
    ],
    "grad_inversion": [
        AttackCase(
            attack=made("grad_inversion", steps=200, match=1.0, batch_norm=1e-3, group=1e-3, restarts=2),
            planted_db=90,
            batch_size=2,
            victim=settled,
            brief=made("grad_inversion", steps=12),
            refuses=(FC2, ALL_CONV),
        )
    ],
    "inverting_gradients": [
        AttackCase(
            attack=made("inverting_gradients", steps=300),
            planted_db=70,
            model=FC2,
            brief=made("inverting_gradients", steps=12, labels="joint"),
        ),
        # Two local epochs, matched through both.
        AttackCase(
            attack=made("inverting_gradients", steps=300),
            planted_db=57,
            model=FC2,
            batch_size=2,
            client=FedAvg(lr=0.05, epochs=2, batch_size=2),
            brief=made("inverting_gradients", steps=12, local="averaged"),
        ),
    ],
}
"""At least one case for each name in `ATTACKS`. PSNRs are about 5 dB below what was measured."""

ALL = [pytest.param(case, id=f"{name}-{i}") for name, cases in CASES.items() for i, case in enumerate(cases)]


def test_every_attack_has_a_case() -> None:
    assert set(CASES) == set(ATTACKS)


@pytest.mark.parametrize("check", ATTACK_CHECKS.values(), ids=ATTACK_CHECKS)
@pytest.mark.parametrize("case", ALL)
def test_it_keeps(case: AttackCase, check: Callable[[AttackCase], None]) -> None:
    check(case)


@pytest.mark.parametrize(
    "name", ["bayes", "cpl", "dlg", "fedleak", "ggl", "gias", "grad_inversion", "idlg", "inverting_gradients", "sapag"]
)
def test_iterative_attacks_keep_checkpoints(name: str) -> None:
    case = CASES[name][0]
    counted = Killed(None, after=0)
    case.run(case.plant()[0], counted)
    assert counted.saves >= 3


READ_ALONE = """
import sys, types
from pathlib import Path
import torch
torch.set_num_threads(1)
from safetensors.torch import save_file
from seepage import *
from seepage.attacks import *
from seepage.attacks.cpa.feature_inversion import *
from seepage.attacks.generative import *
from seepage.attacks.matching.adaptive import *
from seepage.attacks.matching.distances import *
from seepage.attacks.matching.directions import *
from seepage.attacks.matching.generator import *
from seepage.attacks.matching.labels import *
from seepage.attacks.matching.layers import *
from seepage.attacks.matching.optimizers import *
from seepage.attacks.matching.parameters import *
from seepage.attacks.matching.partial import *
from seepage.attacks.matching.priors import *
here = Path(sys.argv[1])
for folder in sorted(here.iterdir()):
    chosen = eval((folder / "attack.txt").read_text())
    found = attack(folder / "observed", chosen, seed=0)
    save_file({"inputs": found.inputs}, folder / "found.safetensors")
"""


def test_another_process_with_the_observed_folder_alone_finds_the_same(tmp_path: Path) -> None:
    """Nothing can leak through memory that this process does not share."""
    from safetensors.torch import load_file

    expected = {}
    for name, (case, *_) in CASES.items():
        if ":" in case.model.use:
            case = replace(case, model=Architecture("lenet"))  # another process cannot import this file's networks
        transcript, _truth = case.plant()
        save_transcript(transcript, tmp_path / name / "observed")
        (tmp_path / name / "attack.txt").write_text(repr(case.brief or case.attack))
        expected[name] = case.run(transcript).inputs
    subprocess.run([sys.executable, "-c", READ_ALONE, str(tmp_path)], check=True, timeout=120)
    for name, inputs in expected.items():
        assert torch.equal(load_file(tmp_path / name / "found.safetensors")["inputs"], inputs), name


def test_a_recorded_folder_holds_no_true_input(tmp_path: Path) -> None:
    transcript, truth = CASES["linear"][1].plant()
    save_transcript(transcript, tmp_path)
    wanted = [row.numpy().tobytes() for row in truth]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert not any(row in path.read_bytes() for row in wanted), path.name
    facts = json.loads((tmp_path / "knowledge.json").read_text())
    assert facts["told"] == []


def test_a_simulated_transcript_leads_to_no_true_input_but_through_its_closure() -> None:
    """An attack could dig a batch out of `make_round`'s closure, but finds none in what it is handed."""
    transcript, truth = CASES["linear"][1].plant()
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
