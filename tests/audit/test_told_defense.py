"""A defense that the attacker knows of: in memory, in a folder, and in a stranger's folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seepage import Architecture, Batch, ClientUpdate, FedAvg, FedSGD, attack, build, record
from seepage.attacks import fedleak
from seepage.audit.recipe.resolve import resolve_cases
from seepage.base.nn import forward
from seepage.errors import SeepageError
from seepage.federation.defenses import (
    DEFENSES,
    DPSGD,
    Compose,
    GaussianNoise,
    Quantize,
    Soteria,
    Sparsify,
    defense_tables,
    joined,
)
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.types import Defense

NET = Architecture("fc2", {"hidden": 8})


def transcript(defense: Defense | None, *known: Any) -> SimulatedTranscript:
    batch = Batch(torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]))
    return record(build(NET, (1, 4, 4), 3), batch, defense=defense, known=known, architecture=NET)


@pytest.mark.parametrize(
    "defense",
    [None, Sparsify(keep=0.5), Compose((GaussianNoise(sigma=0.1, clip=1.0), Soteria(ratio=0.5), Quantize(bits=8)))],
)
def test_a_folder_tells_of_it_only_where_it_is_told(defense: Defense | None, tmp_path: Path) -> None:
    save_transcript(transcript(defense, "labels"), tmp_path / "blind")
    assert json.loads((tmp_path / "blind" / "knowledge.json").read_text())["defense"] is None
    assert open_transcript(tmp_path / "blind").knowledge.defense is None
    save_transcript(transcript(defense, "defense"), tmp_path / "known")
    opened = open_transcript(tmp_path / "known").knowledge
    assert opened.defense == defense
    assert opened.known == {"defense"}


def test_an_attack_gets_the_same_from_the_folder_as_from_the_simulation(tmp_path: Path) -> None:
    simulated = transcript(Sparsify(keep=0.3), "labels", "defense")
    save_transcript(simulated, tmp_path)
    options = {"steps": 4, "signed": False}
    found = [attack(one, "inverting_gradients", options=options) for one in (simulated, open_transcript(tmp_path))]
    assert torch.equal(found[0].inputs, found[1].inputs)
    blind = attack(transcript(Sparsify(keep=0.3), "labels"), "inverting_gradients", options=options)
    assert not torch.equal(found[0].inputs, blind.inputs)


@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1, epochs=1, batch_size=1)], ids=["one gradient", "steps"])
@pytest.mark.parametrize("microbatch", [None, 1])
def test_layer_priors_see_the_batch_behind_the_clip_of_each_example(
    client: ClientUpdate, microbatch: int | None
) -> None:
    batch = Batch(torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1]))
    net = Architecture("mlp3", {"hidden": 8})
    seen = record(
        build(net, (1, 4, 4), 3),
        batch,
        client=client,
        defense=DPSGD(sigma=1e-6, clip=0.1),
        known=["defense", "labels"],
        architecture=net,
    )
    observed = seen[0]
    values, slopes = [], []
    for weight in (0.0, 1.0):
        made = fedleak(activation=weight, tv=0.0, microbatch=microbatch)
        objective = made._objective(observed, seen.knowledge)
        values.append(objective.value_at(batch.inputs, batch.labels))
        slopes.append(objective.at(batch.inputs, batch.labels)[0].by_inputs)
    outputs: list[Tensor] = []
    x = batch.inputs.clone().requires_grad_()
    for module in seen.knowledge.model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(lambda *call: outputs.append(call[2].abs().mean()))
    forward(seen.knowledge.model, observed.params, x)
    penalty = torch.stack(outputs).sum()
    assert values[1] - values[0] == pytest.approx(penalty.item(), rel=1e-4)
    assert torch.allclose(slopes[1] - slopes[0], torch.autograd.grad(penalty, x)[0], atol=1e-4)


OPTIONS: dict[str, dict[str, Any]] = {
    "adaptive_dp": {"sigma": 0.1, "clip": 1.0},
    "jacobian_damping": {"beta": 1.0},
    "laplace_noise": {"scale": 0.1},
    "partial_access": {"share": 0.5},
    "quantize": {"bits": 4},
    "soteria": {"ratio": 0.5},
    "sparsify": {"keep": 0.5},
    "withhold": {"tensors": ["head.*"]},
}


@pytest.mark.parametrize("use", DEFENSES)
def test_every_defense_is_written_and_made_again(use: str) -> None:
    noisy = {} if use in ("outpost", "fake_gradients", "selective_encryption") else {"sigma": 0.1}
    defense = DEFENSES[use](**OPTIONS.get(use, noisy))
    tables = json.loads(json.dumps(defense_tables(defense)))
    assert [table["use"] for table in tables] == [use]
    again = joined([DEFENSES[table.pop("use")](**table) for table in tables])
    assert again == defense


def test_a_defense_without_a_name_stays_in_memory(tmp_path: Path) -> None:
    class Own(Sparsify):
        """Somebody's own, which no dotted path leads to."""

    with pytest.raises(SeepageError, match="Own"):
        save_transcript(transcript(Own(keep=0.5), "defense"), tmp_path)
    save_transcript(transcript(Own(keep=0.5)), tmp_path)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ([{"use": "os:system"}], "unknown defense"),
        ([{"keep": 0.5}], "unknown defense"),
        ([{"use": "sparsify", "keep": 0.5, "more": 1}], "no option 'more'"),
        ([{"use": "sparsify", "keep": 7.0}], "correct the recipe"),
        ("Sparsify(keep=0.5)", "damaged"),
    ],
)
def test_a_strangers_folder_is_read_with_suspicion(written: Any, words: str, tmp_path: Path) -> None:
    save_transcript(transcript(Sparsify(keep=0.5), "defense"), tmp_path)
    path = tmp_path / "knowledge.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "defense": written}))
    with pytest.raises(SeepageError, match=words):
        open_transcript(tmp_path)


def test_a_recipe_tells_of_it() -> None:
    tables = {"attack": [{"use": "linear"}], "knowledge": {"known": ["defense"]}}
    assert resolve_cases(tables)[0].knowledge.known == ("defense",)
    with pytest.raises(SeepageError, match="defense"):
        resolve_cases({**tables, "knowledge": {"known": ["defence"]}})
