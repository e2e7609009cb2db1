"""Updates that were rounded: which format, which rows agree, and that nothing is certified beyond its stated error."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from seepage import FedAvg, Reconstruction, SeepageError, attack, build, observe, open_transcript, record
from seepage.attacks.exposure import UpdateAnalysis
from seepage.attacks.reading.rows import MeasuredRows, agreeing_groups
from seepage.base.number_formats import format_of, half_units
from seepage.federation.transcript.recorded import save_transcript
from seepage.federation.types import Architecture, Batch, Round, Tensors, Update

SHAPE, LR = (3, 8, 8), 1.0


def int8(tensor: Tensor) -> Tensor:
    """A step for each row, as weights are quantized to 8 bits; biases stay as they are."""
    if tensor.ndim < 2:
        return tensor.clone()
    step = tensor.abs().amax(1, keepdim=True) / 127
    return (tensor / step).round() * step


CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda t: t.bfloat16().float(),
    "float16": lambda t: t.half().float(),
    "int8": int8,
}


def network(hidden: int = 128, classes: int = 10, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def batch_of(n: int, classes: int = 10, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((n, *SHAPE), generator=draw), torch.randperm(classes, generator=draw)[:n])


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "plain": F.cross_entropy,
    "smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "scaled": lambda z, y: 0.03 * F.cross_entropy(z, y),  # as clipping to a norm leaves it
}


def trained(
    model: nn.Module, batch: Batch, cast: Callable[[Tensor], Tensor], *, autocast: bool = False, loss: str = "plain"
) -> Tensors:
    """What comes back of one step of PyTorch's own SGD; the model stays at what was sent out."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(cast(parameter))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = LOSSES[loss](model(batch.inputs), batch.labels)
    value.backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    after = {name: cast(tensor) for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return after


def attacked(model: nn.Module, after: Tensors, n: int) -> Reconstruction:
    seen = observe(model, Update.from_states(model.state_dict(), after), SHAPE, batch_size=n, lr=LR)
    return attack(seen, "linear")


def errors(found: Reconstruction, batch: Batch) -> Tensor:
    """`[k]` root mean square distance of each guess from the nearest example."""
    return (found.inputs[:, None] - batch.inputs).flatten(2).square().mean(2).sqrt().amin(1)


@pytest.mark.parametrize("name", CASTS)
def test_rounding_moves_an_entry_by_half_a_unit_at_most(name: str) -> None:
    weights = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    rounded = CASTS[name](weights)
    assert format_of(rounded, torch.zeros_like(weights)) == name
    if name == "int8":
        return
    moved, half = (rounded - weights).double().abs(), half_units(rounded, name)
    assert bool((moved <= half * (1 + 1e-6)).all())
    assert float((moved / half).max()) > 0.95  # and by nearly as much: the bound is no looser than it must be


def test_float32_and_few_numbers_are_no_coarse_format() -> None:
    weights = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    assert format_of(weights, torch.zeros_like(weights)) is None
    few = weights[0, :8].bfloat16().float()
    assert format_of(few, torch.zeros(8)) is None


def test_what_float32_sums_leave_is_no_rounding() -> None:
    """A slack as wide as the grid would let any number pass for a coarse one."""
    small = 1e-6 * torch.randn(400, generator=torch.Generator().manual_seed(0))
    assert format_of(small, torch.full((400,), 1e-6)) is None


@pytest.mark.parametrize("name", CASTS)
def test_examples_are_certified_to_within_the_stated_error(name: str) -> None:
    model, batch = network(), batch_of(2)
    found = attacked(model, trained(model, batch, CASTS[name]), 2)
    assert found.certified.tolist() == [True, True]
    assert bool((errors(found, batch) <= found.objective).all())
    assert float(found.objective.max()) < 0.01
    assert sorted(found.labels.tolist()) == sorted(batch.labels.tolist())
    assert f"{name} numbers" in found.notes[-1]


def test_a_gradient_made_under_autocast_is_read() -> None:
    model, batch = network(), batch_of(2)
    found = attacked(model, trained(model, batch, torch.clone, autocast=True), 2)
    assert found.certified.tolist() == [True, True]
    assert bool((errors(found, batch) <= found.objective).all())
    assert "gradient is made of bfloat16" in found.notes[-1]


def test_one_example_is_certified_where_its_rows_agree_but_for_rounding() -> None:
    model, batch = network(), batch_of(1)
    found = attacked(model, trained(model, batch, CASTS["bfloat16"]), 1)
    assert found.certified.tolist() == [True]
    assert float(errors(found, batch)) <= float(found.objective[0]) < 0.01


@pytest.mark.parametrize("loss", ["smoothed", "scaled"])
@pytest.mark.parametrize("n", [1, 2])
def test_weights_that_moved_little_are_read_whatever_the_loss(loss: str, n: int) -> None:
    """Where the step was small, float32 itself rounds by more than exact agreement allows."""
    model, batch = network(), batch_of(n)
    found = attacked(model, trained(model, batch, torch.clone, loss=loss), n)
    assert found.certified.tolist() == [True] * n
    assert float(errors(found, batch).max()) < 1e-4


def test_another_loss_is_told_from_rounded_weights_only_where_labels_differ() -> None:
    model, batch = network(), batch_of(2)
    for labels, sure in ((batch.labels, True), (batch.labels[:1].expand(2), False)):
        own = Batch(batch.inputs, labels.clone())
        found = attacked(model, trained(model, own, CASTS["float16"], loss="smoothed"), 2)
        assert bool(found.certified.any()) == sure
        assert bool((errors(found, own) <= found.objective).all())


def test_with_two_classes_rounded_rows_certify_nothing() -> None:
    model, batch = network(classes=2), batch_of(2, classes=2)
    found = attacked(model, trained(model, batch, CASTS["bfloat16"]), 2)
    assert len(found)
    assert not found.certified.any()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("factor", [0.95, 0.97, 0.99])
def test_a_weight_that_was_scaled_apart_from_its_bias_is_counted_into_the_error(
    n: int, name: str, factor: float
) -> None:
    model, batch = network(), batch_of(n)
    sent = dict(record(model, batch)[0].update.tensors)
    sent["1.weight"] = factor * sent["1.weight"]
    seen = observe(model, Update({key: CASTS[name](tensor) for key, tensor in sent.items()}), SHAPE, batch_size=n)
    found = attack(seen, "linear")
    assert found.certified is not None
    assert bool((errors(found, batch) <= found.objective)[found.certified].all())
    assert factor == 0.99 or not bool(found.certified.any())


@pytest.mark.parametrize("given", [None, 1, 2])
def test_rounded_rows_certify_nothing_where_the_batch_size_is_a_guess(given: int | None, tmp_path: Path) -> None:
    """Of two examples of one label the slopes differ by less than the rounding, so that their mean looks like one."""
    plain, light = Architecture("fc2", {"hidden": 128}), batch_of(1)
    model = build(plain, SHAPE, 10)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(0.0 if name.endswith("bias") else 0.3)  # so that slopes are alike
    both = Batch(torch.cat([light.inputs, 0.5 * light.inputs]), light.labels.expand(2))
    sent = {name: CASTS["bfloat16"](tensor) for name, tensor in record(model, both)[0].update.tensors.items()}
    seen = observe(model, Update(sent), SHAPE, batch_size=1, architecture=plain)
    save_transcript(seen, tmp_path, inferred={"batch size": "1 or more, from the rank"})
    found = attack(open_transcript(tmp_path, batch_size=given), "linear")
    wrong = errors(found, both) > 0.1
    assert not bool(found.certified[wrong].any())
    if given != 2:  # one example is said to be behind what three of them agree with
        assert bool(wrong.any())
        assert not bool(found.certified.any())


def test_what_rounding_costs_is_said_where_nothing_can_be_certified() -> None:
    """All neurons are on for all examples, so no row is one example's."""
    model, batch = network(), batch_of(4)
    with torch.no_grad():
        model[1].bias.fill_(3.0)  # type: ignore[union-attr]
    found = attacked(model, trained(model, batch, CASTS["bfloat16"]), 4)
    assert found.certified is None or not found.certified.any()
    assert "bfloat16 numbers, whose rounding is 0." in found.notes[-1]


def test_a_recording_holds_the_rate_by_which_the_rounding_is_known(tmp_path: Path) -> None:
    named, batch = Architecture("fc2", {"hidden": 128}), batch_of(2)
    model = build(named, SHAPE, 10, seed=0)
    update = Update.from_states(model.state_dict(), trained(model, batch, CASTS["bfloat16"]))
    seen = observe(model, update, SHAPE, batch_size=2, lr=LR, architecture=named)
    save_transcript(seen, tmp_path / "observed")
    opened = open_transcript(tmp_path / "observed")
    assert (seen[0].update.rate, opened[0].update.rate) == (LR, LR)
    own, other = (attack(one, "linear") for one in (seen, opened))
    assert len(own)
    assert torch.equal(own.inputs, other.inputs)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be_is_refused(tmp_path: Path, rate: float) -> None:
    named = Architecture("fc2", {"hidden": 4})
    model = build(named, SHAPE, 10, seed=0)
    update = Update.from_states(model.state_dict(), trained(model, batch_of(1), torch.clone))
    save_transcript(observe(model, update, SHAPE, lr=LR, architecture=named), tmp_path / "observed")
    path = tmp_path / "observed" / "rounds" / "000000.safetensors"
    save_file({**load_file(path), "rate": torch.tensor(rate, dtype=torch.float64)}, path)
    with pytest.raises(SeepageError, match="learning rate"):
        open_transcript(tmp_path / "observed")[0]


def test_a_difference_of_weights_needs_no_rate() -> None:
    before = torch.randn(64, generator=torch.Generator().manual_seed(0))
    after = (before - 0.01 * before.cos()).half().float()
    sent = Round(0, {"w": before}, Update({"w": after - before}, kind="delta"))
    found = sent.measured(FedAvg(lr=0.01, steps=1))
    assert found.formats is not None
    assert found.formats.stored == "float16"
    assert bool((found.error["w"] >= half_units(after, "float16") / 0.01 / 3**0.5).all())


def test_rows_of_mixtures_do_not_agree() -> None:
    draw = torch.Generator().manual_seed(0)
    inputs, slopes = (torch.rand(*size, generator=draw, dtype=torch.float64) for size in ((3, 200), (12, 3)))
    rows = torch.cat([slopes @ inputs, slopes.sum(1, keepdim=True)], 1)
    assert agreeing_groups(MeasuredRows.of(rows, torch.full_like(rows, 1e-3))) == []


def mixed_network(seed: int) -> tuple[nn.Sequential, Batch]:
    """Every neuron is on for two examples at least; in half of the batches all have one label."""
    draw = torch.Generator().manual_seed(seed)
    n, classes, hidden = (int(torch.randint(*ends, (), generator=draw)) for ends in ((2, 6), (2, 12), (16, 100)))
    model = network(hidden, classes, seed)
    inputs = torch.rand((n, *SHAPE), generator=draw)
    inputs = inputs if seed % 3 else 0.8 * inputs[:1] + 0.2 * inputs  # near copies, whose slopes nearly agree
    labels = torch.randint(classes, (n,), generator=draw) if seed % 2 else torch.full((n,), seed % classes)
    with torch.no_grad():
        model[3].weight.mul_(3.0 if seed % 5 == 0 else 1.0)  # type: ignore[operator]
        second = model[:2](inputs).topk(2, dim=0).values[1]
        model[1].bias += (0.05 - second).clamp(min=0) + 0.2 * torch.rand(hidden, generator=draw)  # type: ignore[operator]
    return model, Batch(inputs, labels)


@pytest.mark.full  # 240 networks: a rate of false certificates takes that many
def test_no_mixture_is_certified_in_any_format() -> None:
    known = 0
    for seed in range(240):
        model, batch = mixed_network(seed)
        name = [*CASTS, "autocast"][seed // 6 % 4]
        loss = [*LOSSES][seed // 24 % 3]
        after = trained(model, batch, CASTS.get(name, torch.clone), autocast=name == "autocast", loss=loss)
        found = attacked(model, after, len(batch))
        known += "numbers" in found.notes[-1]
        assert found.certified is None or not found.certified.any(), (seed, found.notes)
    assert known > 200  # the rounding was seen: it is not that nobody looked


@pytest.mark.parametrize("name", CASTS)
def test_an_exposure_calls_it_rounded_and_reads_the_labels_all_the_same(name: str) -> None:
    """Rounding looks like noise, and the last bias gradient does not sum to zero any more."""
    model, batch = network(), batch_of(4)
    after = trained(model, batch, CASTS[name])
    seen = observe(model, Update.from_states(model.state_dict(), after), SHAPE, batch_size=4, lr=0.1)
    found = UpdateAnalysis(seen)
    assert [one.name for one in found.defenses] == ["rounded"]
    assert found.defenses[0].evidence["formats"] == [name]
    assert found.labels.believed
    assert set(found.labels.present) == set(batch.labels.tolist())


@pytest.mark.parametrize("name", [None, *CASTS])
def test_after_adam_the_format_of_the_weights_is_named_too(name: str | None) -> None:
    """No gradient can be read there, and what rounding leaves of so small a step looks like dropped entries."""
    model, batch = network(), batch_of(4)
    cast = CASTS.get(name or "", torch.clone)
    before = {key: cast(tensor) for key, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    before = {key: tensor.clone() for key, tensor in before.items()}
    F.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.Adam(model.parameters(), lr=1e-3).step()
    after = {key: cast(tensor) for key, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    client = FedAvg(optimizer="adam", lr=1e-3)
    seen = observe(model, Update.from_states(before, after), SHAPE, batch_size=4, client=client)
    known = [(one.name, one.evidence.get("formats")) for one in UpdateAnalysis(seen).defenses]
    assert [one for one in known if one[0] != "adaptive"] == ([("rounded", [name])] if name else [])


def test_an_exposure_of_float32_weights_says_nothing_of_rounding() -> None:
    model, batch = network(), batch_of(4)
    after = trained(model, batch, torch.clone)
    seen = observe(model, Update.from_states(model.state_dict(), after), SHAPE, batch_size=4, lr=LR)
    assert "rounded" not in [one.name for one in UpdateAnalysis(seen).defenses]
