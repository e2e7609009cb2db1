"""Whole audits on a GPU, or a pretended one, say what they say on the CPU: nothing on the way mixes the two."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import pretended

from seepage.audit import run as audit

FACES = """
data = { use = "faces", size = 8 }
model = { use = "fc2", hidden = 24 }
batch = { size = 2 }
"""
DIGITS = """
data = { use = "digits", size = 8 }
model = { use = "convnet", width = 3, batch_norm = true }
batch = { size = 4 }
attack = [
    { use = "inverting_gradients", steps = 2 },
    { use = "grad_inversion", steps = 2 },
    { use = "fedleak", steps = 2 },
]
"""
AUDITS = {
    "closed forms, trained": FACES
    + """
training = { steps = 3 }
attack = [{ use = "linear" }, { use = "cocktail_party" }, { use = "dlg", steps = 3 }, { use = "spear" }]
""",
    "batch norm": DIGITS,
    "local epochs of two clients": DIGITS
    + 'client = { use = "fedavg", lr = 0.05, epochs = 2, batch_size = 2, clients = 2 }',
    "DP-SGD in each step": FACES
    + """
client = { use = "fedavg", lr = 0.05, epochs = 1, batch_size = 1 }
defense = [{ use = "dp_sgd", clip = 1.0, sigma = 0.1 }]
attack = [{ use = "linear" }, { use = "bayes", steps = 3 }]
""",
    "a federation": FACES
    + """
federation = { rounds = 3, clients = 4, share = 0.5 }
partition = { use = "dirichlet", alpha = 0.5 }
attack = [{ use = "linear" }]
""",
    "told of a defense": FACES
    + """
knowledge = { known = ["defense", "labels"] }
attack = [{ use = "inverting_gradients", steps = 4 }]
[grid]
defense = [
    [{ use = "sparsify", keep = 0.3 }],
    [{ use = "quantize", bits = 4 }],
    [{ use = "gaussian_noise", sigma = 0.01, clip = 1.0 }],
    [{ use = "soteria", ratio = 0.3 }],
    [{ use = "dp_sgd", sigma = 0.1, clip = 1.0 }],
]
""",
    "vertical, trained meanwhile": """
data = { use = "digits", size = 8 }
model = { use = "vertical", channels = 8 }
batch = { size = 4 }
rounds = { design = "partitions", count = 9, samples = 12, optimizer = "adam", lr = 1e-4 }
knowledge = { known = ["indices"] }
attack = [
    { use = "cafe", steps = [2], polish = 1 },
    { use = "cafe_published", loop = "single_loop", lr_one = 0.1, iterations = [20] },
]
""",
    "fake gradients": """
data = { use = "digits", size = 8 }
model = { use = "vertical", channels = 8 }
batch = { size = 4 }
rounds = { count = 20, samples = 8 }
knowledge = { known = ["indices"] }
defense = [{ use = "fake_gradients", candidates = 10 }]
attack = [{ use = "cafe", entries = "unforged", steps = [2], polish = 1 }]
""",
    "auxiliary images": """
data = { use = "digits", size = 8 }
model = { use = "convnet", width = 3 }
batch = { size = 1 }
auxiliary = { count = 20 }
attack = [
    { use = "ggl", steps = 2, population = 4, latent = 8, width = 4, training = 2 },
]
""",
}


def rows_of(tables: dict[str, Any], folder: Path, device: str) -> list[dict[str, Any]]:
    run = audit.run({"device": device} | tables, out=folder, jobs=1)
    found: list[dict[str, Any]] = run.result.record()["rows"]
    assert json.loads((run.folder / "env.json").read_text())["device"] == device
    return found


@pytest.mark.full
@pytest.mark.parametrize("recipe", AUDITS.values(), ids=AUDITS)
def test_an_audit_on_another_device_says_the_same(recipe: str, tmp_path: Path) -> None:
    tables = tomllib.loads(recipe)
    near = rows_of(tables, tmp_path / "near", "cpu")
    with pretended() as device:
        far = rows_of(tables, tmp_path / "far", str(device))
    for a, b in zip(near, far, strict=True):
        assert (b["status"], b["reason"]) == (a["status"], a["reason"]), b
        assert b["status"] != "error"
        if "psnr" in a["scores"]:
            assert b["scores"]["psnr"]["mean"] == pytest.approx(a["scores"]["psnr"]["mean"], abs=1.0), (
                a["attack"],
                a["scores"]["psnr"]["mean"],
                b["scores"]["psnr"]["mean"],
            )
    assert any("psnr" in row["scores"] for row in near)


@pytest.mark.parametrize("order", [["cpu", "cuda:0"], ["cuda:0", "cpu"]], ids="-".join)
@pytest.mark.slow
def test_a_grid_over_devices_says_the_same_on_each(order: list[str], tmp_path: Path) -> None:
    # Each case draws its own numbers, so these attacks are those that draw none.
    plan = 'training = { steps = 3 }\nattack = [{ use = "linear" }, { use = "spear" }]'
    tables = tomllib.loads(FACES + plan) | {"grid": {"device": order}}
    with pretended():
        run = audit.run(tables, out=tmp_path / "run", jobs=1)
    rows = run.result.rows
    assert json.loads((run.folder / "env.json").read_text())["device"] == order[0]
    cases = list(dict.fromkeys(row.case for row in rows))
    assert len(cases) == 2
    one, two = ([row for row in rows if row.case == case] for case in cases)
    for a, b in zip(one, two, strict=True):
        assert (a.attack, a.status, a.reason) == (b.attack, b.status, b.reason)
        assert a.status != "error"
        for metric, found in a.scores.items():
            assert b.scores[metric].mean == pytest.approx(found.mean, rel=0.05, abs=0.05)


def test_indices_may_lie_on_the_cpu_and_nothing_else_may() -> None:
    near, places = torch.arange(6.0), torch.tensor([1, 4])
    with pretended() as device:
        far = near.to(device)
        assert far[places].tolist() == far[places.to(device)].tolist() == [1.0, 4.0]
        for mixed in (
            lambda: near[places.to(device)],
            lambda: near[far > 2],
            lambda: far.index_put_((places,), near[:2]),
        ):
            with pytest.raises(RuntimeError):
                mixed()
