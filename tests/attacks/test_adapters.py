"""Low-rank adapters: what their two gradients say, by hand and by PyTorch's own backward pass."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from small_adapter import Adapted, block, network

from seepage import (
    Architecture,
    Batch,
    SeepageError,
    Update,
    attack,
    build,
    exposure,
    observe,
    record,
    score,
)
from seepage.attacks import LoraLeak
from seepage.attacks.adapters import AdapterInputs
from seepage.attacks.exposure import Exposure
from seepage.base.adapters import adapted_layers, inside_adapters, lifted
from seepage.base.nn import last_linear
from seepage.federation.clients import FedAvg
from seepage.federation.models.naming import in_own_names
from seepage.testing import planted_inputs

SHAPE, CLASSES = (1, 8, 8), 4


def private(n: int, shape: tuple[int, ...] = SHAPE) -> Batch:
    return Batch(planted_inputs(n, shape), torch.arange(n) % CLASSES)


def made(seed: int = 0, **options: float) -> torch.nn.Module:
    torch.manual_seed(seed)
    return network(SHAPE, CLASSES, **options)


def test_the_layers_with_an_adapter_are_found_by_their_form() -> None:
    (layer,) = adapted_layers(made())
    assert (layer.name, layer.base, layer.scale) == ("1", "1.base_layer.weight", 2.0)
    assert (layer.down, layer.up) == ("1.lora_A.default.weight", "1.lora_B.default.weight")
    assert adapted_layers(build(Architecture("fc2"), SHAPE, CLASSES)) == []
    assert inside_adapters(made()) == {"1.lora_A.default", "1.lora_B.default"}
    # A's rank may be the number of classes: it is the head of nothing.
    assert last_linear(made(rank=CLASSES), CLASSES) == ("3.weight", "3.bias")


@pytest.mark.parametrize(("rank", "n"), [(4, 1), (4, 3), (4, 4), (16, 7)])
def test_two_sketches_give_the_whole_gradient_up_to_the_rank(rank: int, n: int) -> None:
    """The oracle is PyTorch's own backward pass with the base weight trained."""
    model, batch = made(rank=rank), private(n)
    sent, params = record(model, batch)[0].update.tensors, record(model, batch)[0].params
    assert set(sent) == {"1.lora_A.default.weight", "1.lora_B.default.weight"}
    weight = model.get_parameter("1.base_layer.weight").requires_grad_()
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    (layer,) = adapted_layers(model)
    found, off = lifted(sent[layer.down], sent[layer.up], params[layer.down], params[layer.up], layer.scale, n)
    assert float((found - weight.grad).norm() / weight.grad.norm()) < 1e-3
    assert off < 1e-4


@pytest.mark.parametrize("n", [1, 3])
def test_examples_come_back_with_scale_and_label(n: int) -> None:
    shape = (3, 16, 16)
    torch.manual_seed(0)
    model = network(shape, CLASSES, rank=4, hidden=256)
    batch = Batch(torch.rand((n, *shape), generator=torch.Generator().manual_seed(1)), torch.arange(n) % CLASSES)
    found = attack(record(model, batch), "lora")
    scores = score(found, batch)
    assert scores.exact == 1.0
    assert scores.label_accuracy == 1.0
    assert found.certified.all()


def test_an_update_that_was_changed_is_not_certified() -> None:
    seen = record(made(), private(1))
    sent = {
        name: tensor + 0.05 * tensor.norm() * torch.randn(tensor.shape)
        for name, tensor in seen[0].update.tensors.items()
    }
    changed = replace(seen[0], update=Update(sent))
    found = attack(replace(seen, make_round=lambda t: changed), "lora")
    assert not found.certified.any()


@pytest.mark.parametrize(
    ("options", "n", "name", "numbers"),
    [
        ({"deviation": 0.0}, 1, "zero_gradient", [4]),
        ({"rank": 2}, 3, "rank_too_small", [3, 2]),
    ],
)
def test_what_the_rank_cannot_hold_is_said(options: dict[str, float], n: int, name: str, numbers: list[int]) -> None:
    with refusal(name, *numbers):
        attack(record(made(**options), private(n)), "lora")


def test_without_one_of_the_factors_it_does_not_apply() -> None:
    model = made()
    whole = record(model, private(1))[0].update.tensors
    half = observe(model, Update({name: t for name, t in whole.items() if "lora_A" in name}), SHAPE, batch_size=1)
    with refusal("not_sent"):
        attack(half, "lora")


def test_tokens_of_a_first_block_give_their_patches() -> None:
    torch.manual_seed(0)
    model, batch = block(SHAPE, CLASSES), private(1)
    found = attack(record(model, batch), "lora")
    assert score(found, batch).psnr > 60
    assert found.certified.all()
    with refusal("several_examples", 2):
        attack(record(model, private(2)), "lora")
    torch.manual_seed(0)
    with refusal("rank_too_small", 2, 4):
        attack(record(block(SHAPE, CLASSES, rank=1), batch), "lora")
    with refusal("too_few_equations"):
        attack(record(block(SHAPE, CLASSES, rank=4, width=18), batch), "lora")


def test_exposure_says_what_the_rank_gives_away() -> None:
    def shown(found: Exposure) -> Mapping[str, object]:
        return found.of("adapter")[0].evidence

    first = exposure(record(made(deviation=0.0), private(1)))
    assert (shown(first)["shows"], first.examples) == ("shadow", 0)
    assert first.of("adapter")[0].message == "A x alone, 4 of 64 numbers of each of 1 input, as B is zero"
    whole = exposure(record(made(), private(3)))
    assert (shown(whole)["shows"], shown(whole)["shown"]) == ("whole", 3)
    assert whole.examples == 0, "unmixing three examples is the attack's work"
    assert shown(exposure(record(made(rank=2), private(3))))["shows"] == "part"
    one = exposure(record(made(), private(1)))
    assert one.examples == 1
    assert "its one example exactly, from the adapters' gradients alone (lora)" in [f.message for f in one.findings]
    assert all(tensor.withhold for tensor in one.tensors)


def test_a_step_of_local_training_is_as_good_as_its_gradient() -> None:
    model, batch = made(), private(1)
    found = attack(record(model, batch, client=FedAvg(lr=0.1, steps=1)), "lora")
    assert score(found, batch).psnr > 60


def test_names_that_adapters_are_saved_under_lead_to_the_model() -> None:
    model = made()
    own = {name: p.detach() for name, p in model.named_parameters()}
    short = {
        "base_model.model.1.lora_A.weight": own["1.lora_A.default.weight"],
        "base_model.model.1.lora_B.weight": own["1.lora_B.default.weight"],
        "1.weight": own["1.base_layer.weight"],
        "base_model.model.3.bias": own["3.bias"],
    }
    assert set(in_own_names(short, model, "the file")) == {
        "1.lora_A.default.weight", "1.lora_B.default.weight", "1.base_layer.weight", "3.bias",
    }  # fmt: skip


@pytest.mark.slow
def test_peft_attaches_what_a_recipe_asks_for(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    net = build(
        Architecture("fc2", {"hidden": 32, "adapter": {"rank": 4, "targets": ["2"], "full": ["4"]}}), SHAPE, CLASSES
    )
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    assert trained == [
        "2.lora_A.default.weight", "2.lora_B.default.weight", "4.modules_to_save.default.weight",
        "4.modules_to_save.default.bias",
    ]  # fmt: skip
    with torch.no_grad():
        net.get_parameter("2.lora_B.default.weight").normal_()
    seen = LoraLeak().prepare(record(net, private(1)))
    assert isinstance(seen, AdapterInputs)
    assert score(attack(record(net, private(1)), "lora"), private(1)).exact == 1.0
    with pytest.raises(SeepageError, match="'top'"):
        build(Architecture("fc2", {"adapter": {"targets": ["top"]}}), SHAPE, CLASSES)
    with pytest.raises(SeepageError, match="rank >= 1"):
        build(Architecture("fc2", {"adapter": {"rank": 0}}), SHAPE, CLASSES)


@pytest.mark.parametrize("deviation", [0.0, 0.05])
def test_text_comes_back_from_the_shadow_and_from_the_span(deviation: float) -> None:
    """A first round's B sends A x alone, r numbers of a token, and a vocabulary is small enough to try."""
    torch.manual_seed(0)
    model = build(Architecture("gpt", {"width": 64, "depth": 2}), (6,), 90)
    model.requires_grad_(False)
    for layer in model.blocks:
        layer.query, layer.value = (Adapted(one, 24, 1.0, deviation) for one in (layer.query, layer.value))
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])
    targets = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    seen = record(model, Batch(ids, targets))
    assert all("lora" in name for name in seen[0].update.tensors)
    assert [one.evidence["inputs"] for one in exposure(seen).of("adapter")] == [12] * 4, (
        "six tokens of two texts, in four layers"
    )
    found = attack(seen, "token_sequences")
    assert sorted(found.inputs.tolist()) == sorted(ids.tolist())
    assert found.certified.all()
