"""The closed form: exact for one example, and for more no row is returned that is not an example."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

from seepage import (
    Architecture,
    Batch,
    Defense,
    FedSGD,
    GaussianNoise,
    Inapplicable,
    LinearLeak,
    Reconstruction,
    Sparsify,
    attack,
    build,
    record,
)
from seepage.attacks.base import SingleRound
from seepage.federation.types import Transcript, Update
from seepage.testing import planted_inputs, recovered_db
from seepage.testing.watch import Changed

EXACT = 60.0
"""dB at which a row is the example and no mixture; rounding alone leaves more than 100."""


def inputs_of(kind: str, n: int, shape: tuple[int, ...], seed: int) -> Tensor:
    """Batches of different natures: noise, smooth pictures, pictures of few grey levels, near copies."""
    noise = torch.rand((n, *shape), generator=torch.Generator().manual_seed(seed))
    if kind == "smooth":
        return planted_inputs(n, shape, seed)
    if kind == "levels":
        return (3 * noise).round() / 3
    if kind == "near":
        return 0.9 * noise[:1] + 0.1 * noise
    return noise


def network(use: str, hidden: int, shape: tuple[int, ...], classes: int, seed: int, scale: float) -> nn.Sequential:
    model = build(Architecture(use, {"hidden": hidden}), shape, classes, seed=seed)
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)  # a confident network, as training makes it
    return model


def worst_row(found: Reconstruction, truth: Tensor) -> float:
    """PSNR of the returned row that is farthest from every true example; infinite without rows."""
    rows = recovered_db(Reconstruction(truth), found.inputs)
    return float(rows.min()) if len(rows) else float("inf")


@given(
    st.integers(2, 12),
    st.integers(0, 11),
    st.sampled_from(["noise", "smooth", "levels"]),
    st.sampled_from([(1, 4, 4), (3, 8, 8), (7,), (2, 3)]),
    st.integers(0, 10**6),
)
def test_one_example_comes_back_exactly_whatever_its_label(
    classes: int, label: int, kind: str, shape: tuple[int, ...], seed: int
) -> None:
    assume(kind != "smooth" or len(shape) == 3)
    model = network("fc2", 16, shape, classes, seed, 1.0)
    batch = Batch(inputs_of(kind, 1, shape, seed), torch.tensor([label % classes]))
    found = attack(record(model, batch), "linear")
    assert float(recovered_db(found, batch.inputs)) > 100
    assert found.labels.tolist() == batch.labels.tolist()
    assert found.status == "ok"
    assert "one example" in found.notes[0]
    assert found.certified.tolist() == [True]


@given(st.floats(0.05, 20.0).filter(lambda c: abs(c - 1) > 0.05), st.integers(0, 10**6))
def test_rows_that_agree_on_a_wrong_input_are_not_certified(factor: float, seed: int) -> None:
    """A client that scales its weight and bias gradients apart, as clipping each tensor by itself does."""
    model = network("fc2", 16, (1, 4, 4), 4, seed, 1.0)
    seen = record(model, Batch(inputs_of("noise", 1, (1, 4, 4), seed), torch.tensor([1])))
    tensors = {name: t * factor if t.shape == (16, 16) else t for name, t in seen[0].update.tensors.items()}
    observed = replace(seen[0], update=Update(tensors))
    found = attack(SingleRound(seen.knowledge, observed), "linear")
    assert found.certified.tolist() == [False]


CASES = st.fixed_dictionaries(
    {
        "use": st.sampled_from(["fc2", "mlp3"]),
        "hidden": st.sampled_from([8, 64, 256]),
        "n": st.integers(2, 8),
        "classes": st.sampled_from([2, 3, 10, 40]),
        "kind": st.sampled_from(["noise", "smooth", "levels", "near"]),
        "shape": st.sampled_from([(1, 2, 2), (1, 4, 4), (3, 6, 6)]),
        "scale": st.sampled_from([1.0, 3.0]),
        "seed": st.integers(0, 10**6),
    }
)


def several(case: dict[str, Any], defense: Defense | None = None) -> tuple[Transcript, Tensor]:
    use, kind, shape = case["use"], case["kind"], case["shape"]
    hidden, n, classes, seed = case["hidden"], case["n"], case["classes"], case["seed"]
    model = network(use, hidden, shape, classes, seed, case["scale"])
    inputs = inputs_of(kind, n, shape, seed)
    labels = torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))
    return record(model, Batch(inputs, labels), defense=defense), inputs


def run(transcript: Transcript) -> Reconstruction | None:
    try:
        return attack(transcript, "linear")
    except Inapplicable:  # no neuron is active at all
        return None


@pytest.mark.full
@settings(max_examples=250)
@given(CASES)
def test_no_mixture_is_ever_returned_as_an_example(case: dict[str, Any]) -> None:
    transcript, truth = several(case)
    found = run(transcript)
    if found is not None:
        # With two classes one number decides, and about one row in 20,000 passes by chance, dominated by one example.
        sure = Reconstruction(found.inputs[found.certified])
        assert worst_row(sure, truth) > (EXACT if case["classes"] != 2 else 20), found.notes
        assert len(found) <= len(truth) or case["kind"] == "near"


@pytest.mark.slow
def test_chance_does_not_certify_among_many_classes_even_with_a_wide_tolerance() -> None:
    """With 100 labels to choose from, some label fits the bias gradient alone to 1e-3 in most networks."""
    for seed in range(12):
        for classes in (10, 100):
            model = network("fc2", 512, (1, 4, 4), classes, seed, 1.0)
            inputs = inputs_of("noise", 4, (1, 4, 4), seed)
            found = attack(record(model, Batch(inputs, torch.arange(4))), LinearLeak(tolerance=1e-3))
            assert len(found) > 0
            assert found.certified.all()
            assert worst_row(found, inputs) > EXACT


def test_rows_that_one_example_owns_are_found() -> None:
    """The oracle is the network itself: neurons that one example alone activates."""
    total = owned = 0
    for seed in range(20):
        model = network("fc2", 128, (1, 4, 4), 10, seed, 1.0)
        inputs = inputs_of("noise", 4, (1, 4, 4), seed)
        found = attack(record(model, Batch(inputs, torch.arange(4))), "linear")
        active = model[2](model[1](model[0](inputs))) > 0
        alone = active & (active.sum(0) == 1)  # [n, m]
        expected = alone.any(1)
        reached = recovered_db(found, inputs) > EXACT
        assert not bool((reached & ~expected).any())
        total, owned = total + int(reached.sum()), owned + int(expected.sum())
    assert owned > 40
    assert total >= 0.95 * owned


def test_labels_of_identified_rows_are_right() -> None:
    for seed in range(10):
        model = network("fc2", 128, (1, 4, 4), 10, seed, 1.0)
        inputs = inputs_of("noise", 4, (1, 4, 4), seed)
        labels = torch.tensor([3, 1, 4, 1])
        found = attack(record(model, Batch(inputs, labels)), "linear")
        for row, label in zip(found.inputs, found.labels.tolist(), strict=True):
            nearest = int((inputs - row).flatten(1).norm(dim=1).argmin())
            assert label == int(labels[nearest])


@settings(max_examples=60)
@given(CASES, st.sampled_from([1e-4, 1e-3, 1e-2, 1.0]), st.booleans())
def test_noise_is_never_certified(case: dict[str, Any], sigma: float, relative: bool) -> None:
    """Rows of a noisy update are garbage; hardly any lies in the value range, and none may pass."""
    defense = GaussianNoise(sigma=sigma, clip=1.0 if relative else None)
    transcript, truth = several(case, defense)
    found = run(transcript)
    assert found is not None
    assert worst_row(found, truth) > 20, found.notes


@settings(max_examples=40)
@given(CASES, st.sampled_from([0.01, 0.1, 0.5]))
def test_a_pruned_update_is_not_taken_for_a_whole_one(case: dict[str, Any], keep: float) -> None:
    transcript, truth = several(case, Sparsify(keep=keep))
    found = run(transcript)
    assert found is None or worst_row(found, truth) > 20, found.notes


def test_noise_on_one_example_is_said_and_measured() -> None:
    model = network("fc2", 16, (1, 4, 4), 4, 0, 1.0)
    batch = Batch(inputs_of("noise", 1, (1, 4, 4), 0), torch.tensor([2]))
    clean, noisy = (
        attack(record(model, batch, defense=defense), "linear") for defense in (None, GaussianNoise(sigma=0.01))
    )
    assert clean.objective is not None
    assert noisy.objective is not None
    assert float(clean.objective) < 1e-5 < 1e-2 < float(noisy.objective)
    assert "disagree" in noisy.notes[0]


def test_a_wrong_batch_size_of_one_is_said() -> None:
    """A server that knows 1 where it was 3 must see that the rows do not agree."""
    case = {"use": "fc2", "hidden": 64, "n": 3, "classes": 4, "kind": "noise", "shape": (1, 4, 4)}
    transcript, _ = several(case | {"scale": 1.0, "seed": 0})
    found = attack(Changed(transcript, lambda seen: replace(seen, batch_size=1)), "linear")
    assert "more than one example" in found.notes[0]


def test_twins_come_back_as_one_example() -> None:
    model = network("fc2", 64, (1, 4, 4), 4, 0, 1.0)
    one = inputs_of("noise", 1, (1, 4, 4), 3)
    twins = torch.cat([one, one])
    found = attack(record(model, Batch(twins, torch.tensor([1, 1]))), "linear")
    # Two equal examples give twice the gradient of one, which might be a mixture of two under another loss.
    assert len(found) == 1
    assert not found.certified.any()
    assert worst_row(found, twins) > EXACT


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "weighted": lambda z, y: F.cross_entropy(z, y, weight=torch.linspace(0.2, 3, z.shape[1])),
    "focal": lambda z, y: ((1 - (p := z.softmax(1).gather(1, y[:, None]))).square() * -p.log()).mean(),
    "clipped": lambda z, y: 0.07 * F.cross_entropy(z, y),
    "margin": lambda z, y: F.multi_margin_loss(z, y),
}
"""Losses, and scales of the gradient, that no client rule here states."""


def sent_under(loss: str, model: nn.Module, x: Tensor, y: Tensor) -> Transcript:
    """A round whose update is the gradient of another loss than the cross-entropy that the attacker knows."""
    model.zero_grad()
    LOSSES[loss](model(x), y).backward()
    update = Update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    return Changed(record(model, Batch(x, y)), lambda seen: replace(seen, update=update))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_row_of_one_example_is_told_whatever_the_loss(loss: str) -> None:
    x, y = inputs_of("noise", 2, (1, 8, 8), 0), torch.tensor([0, 3])
    found = attack(sent_under(loss, network("fc2", 200, (1, 8, 8), 10, 0, 1.0), x, y), "linear")
    assert len(found) == 2
    assert worst_row(found, x) > EXACT
    assert found.certified.all()
    assert sorted(found.labels.tolist()) == [0, 3] if found.labels is not None else False


ACTIVATIONS = (nn.Sigmoid, nn.Tanh, nn.ReLU, nn.Softplus)


@pytest.mark.full  # 300 networks, 6 s: a rate of false certificates takes that many
def test_no_mixture_is_certified_under_any_loss() -> None:
    """Every unit is reached by every example, so that no row is one example's; half the batches have one label."""
    returned = 0
    for seed in range(300):
        draw = torch.Generator().manual_seed(seed)
        classes, hidden, n = (int(torch.randint(*ends, (), generator=draw)) for ends in ((3, 11), (20, 120), (2, 5)))
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, hidden), ACTIVATIONS[seed % 4](), nn.Linear(hidden, classes))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.rand(p.shape, generator=draw) - 0.5)
            model[1].bias.add_(5.0)  # type: ignore[operator]  # no unit is dead
            model[3].weight.mul_(0.01 if seed % 3 else 1.0)  # type: ignore[operator]  # slopes of one label nearly agree
        y = torch.randint(classes, (n,), generator=draw) if seed % 2 else torch.full((n,), seed % classes)
        x = inputs_of("noise", n, (1, 4, 4), seed)
        try:
            found = attack(sent_under([*LOSSES][seed // 4 % len(LOSSES)], model, x, y), "linear")
        except Inapplicable:
            continue
        returned += len(found)
        assert not found.certified.any(), (seed, found.notes)
    assert returned, "guesses that a certificate would have been wrong for"


def dead(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        model[2].bias.fill_(-100)  # type: ignore[operator]
    return model


REFUSED = {
    "zero bias gradient": (dead(network("fc2", 8, (1, 4, 4), 3, 0, 1.0)), "zero_gradient"),
    "convolution": (build(Architecture("convnet", {"width": 2}), (1, 4, 4), 3), "input_not_read"),
    "no bias": (nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)), "no_bias"),
    "batch norm": (
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)),
        "batch_norm",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_refused(name: str) -> None:
    model, refused = REFUSED[name]
    transcript = record(model, Batch(inputs_of("noise", 2, (1, 4, 4), 0), torch.tensor([0, 1])))
    for attempt in (LinearLeak().check, lambda seen: attack(seen, "linear")):
        with refusal(refused):
            attempt(transcript)


def test_batch_norm_in_eval_mode_is_as_good_as_none() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 4))
    inputs = inputs_of("noise", 3, (1, 4, 4), 0)
    found = attack(record(model, Batch(inputs, torch.tensor([0, 1, 2])), client=FedSGD(mode="eval")), "linear")
    assert len(found) == 3
    assert worst_row(found, inputs) > EXACT


def test_one_layer_alone_mixes_everything() -> None:
    """Softmax regression: every example reaches every row, and nothing vouches for one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    found = attack(record(model, Batch(inputs_of("noise", 3, (1, 4, 4), 0), torch.arange(3))), "linear")
    assert len(found) == 0


def test_smooth_activations_leave_no_row_to_one_example() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 256), nn.Sigmoid(), nn.Linear(256, 10))
    found = attack(record(model, Batch(inputs_of("noise", 3, (1, 4, 4), 0), torch.arange(3))), "linear")
    assert len(found) == 0


def test_values_outside_of_zero_to_one_come_back_too() -> None:
    model = network("fc2", 64, (1, 4, 4), 4, 0, 1.0)
    inputs = 4 * inputs_of("noise", 3, (1, 4, 4), 0) - 2
    transcript = record(model, Batch(inputs, torch.arange(3)), value_range=(-2.0, 2.0))
    found = attack(transcript, "linear")
    assert len(found) == 3
    assert worst_row(found, inputs) > EXACT
