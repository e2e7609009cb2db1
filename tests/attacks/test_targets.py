"""What a network is trained towards: one logit, values, maps of classes, and losses of one's own."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, FedAvg, FedSGD, attack, build, exposure, observe, record, score
from seepage.attacks.base import SingleRound as OneClass
from seepage.audit.run import run
from seepage.audit.simulate.training import accuracy
from seepage.base.nn import sorted_labels
from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.clients.losses import loss_of, target_of
from seepage.federation.data import ArrayDataset, TableDataset, load
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.transcript.truth import Truth, misfit, open_truth, save_truth
from seepage.federation.types import Reconstruction, Transcript, Update
from seepage.measure.metrics.labels import label_scores
from seepage.testing import ATTACK_CHECKS, AttackCase, planted_inputs


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Lin et al. 2017 with gamma 2, as people write it."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


class Summed(nn.Module):
    """A loss as a class, of each example by itself and for class numbers alone."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]


def broken(outputs: Tensor, targets: Tensor) -> Tensor:
    raise ValueError("no such thing")


own = types.ModuleType("own_losses")
own.focal, own.Summed, own.broken, own.number = focal, Summed, broken, 3  # type: ignore[attr-defined]
own.weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 0.5, 0.3]))  # type: ignore[attr-defined]
sys.modules["own_losses"] = own


def net(outputs: int, hidden: int = 64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def pixels(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
    return nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), nn.Conv2d(16, outputs, 1))


def inputs(count: int) -> Tensor:
    return planted_inputs(count, (1, 8, 8), 0)


def values(count: int, width: int) -> Tensor:
    return 3 * torch.randn(count, width, generator=torch.Generator().manual_seed(1))


# --- losses --------------------------------------------------------------------------------------------------------


def test_one_logit_is_the_softmax_of_two_whose_first_is_zero() -> None:
    z = torch.randn(5, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0, 1])
    two = torch.cat([torch.zeros_like(z), z], 1)
    for reduction in ("mean", "sum", "none"):
        torch.testing.assert_close(
            loss_of("binary", z, labels, reduction=reduction), F.cross_entropy(two, labels, reduction=reduction)
        )
    chances = torch.tensor([[0.3, 0.7]] * 5).double()
    torch.testing.assert_close(loss_of("binary", z, chances), F.cross_entropy(two, chances))


def test_a_pixel_without_a_class_counts_nowhere() -> None:
    z, labels = torch.randn(2, 1, 3, 3), torch.randint(2, (2, 3, 3))
    labels[0, 0] = -100
    two = torch.cat([torch.zeros_like(z), z], 1)
    torch.testing.assert_close(loss_of("binary", z, labels), F.cross_entropy(two, labels))


def test_squared_errors_of_values_are_pytorchs() -> None:
    outputs, wanted = values(4, 3), values(4, 3).flip(0)
    torch.testing.assert_close(loss_of("mse", outputs, wanted), F.mse_loss(outputs, wanted))
    torch.testing.assert_close(loss_of("mse", outputs[:, :1], wanted[:, 0]), F.mse_loss(outputs[:, 0], wanted[:, 0]))


def test_weighted_classes_are_pytorchs_and_no_mean_over_examples() -> None:
    weights, model = (0.2, 0.5, 0.3), net(3)
    rule, batch = FedSGD(class_weights=weights), Batch(inputs(4), torch.tensor([0, 1, 2, 1]))
    logits = model(batch.inputs)
    torch.testing.assert_close(
        rule.loss_of(logits, batch.labels), F.cross_entropy(logits, batch.labels, torch.tensor(weights))
    )
    assert not rule.separable(model)
    assert not rule.batch_coupled(model)
    assert not rule.softmax_gradient
    with pytest.raises(SeepageError, match="class_weights"):
        FedSGD(loss="mse", class_weights=weights)


@pytest.mark.parametrize("name", ["own_losses:focal", "own_losses:weighted", "own_losses:Summed"])
def test_a_loss_of_ones_own_is_called_as_it_is_written(name: str) -> None:
    logits, labels = values(4, 3), torch.tensor([0, 1, 2, 1])
    made = getattr(own, name.partition(":")[2])
    written = made() if isinstance(made, type) else made
    torch.testing.assert_close(loss_of(name, logits, labels), written(logits, labels).mean())
    alone = torch.stack([written(logits[i : i + 1], labels[i : i + 1]).mean() for i in range(4)])
    torch.testing.assert_close(loss_of(name, logits, labels, reduction="none"), alone)
    torch.testing.assert_close(loss_of(name, logits, labels, reduction="sum"), alone.sum())


def test_a_loss_that_fails_or_is_none_is_a_sentence() -> None:
    logits, labels = values(2, 3), torch.tensor([0, 1])
    with refusal("does_not_run", "'own_losses:broken'"):
        loss_of("own_losses:broken", logits, labels)
    with pytest.raises(SeepageError, match="is a int"):
        loss_of("own_losses:number", logits, labels)
    with pytest.raises(SeepageError, match="module:function"):
        FedSGD(loss="focal")


def test_what_labels_are() -> None:
    shares = torch.tensor([[0.2, 0.8]])
    assert [target_of(shares, loss) for loss in ("cross_entropy", "mse", "bce")] == ["class"] * 3
    assert target_of(2 * shares, "mse") == target_of(torch.zeros(2, 1), "cross_entropy") == "value"
    assert target_of(torch.zeros(2, 4, 4, dtype=torch.int64), "cross_entropy") == "map"
    assert target_of(torch.zeros(2, 7, dtype=torch.int64), "cross_entropy", tokens=True) == "class"
    assert target_of(torch.zeros(2, 7, dtype=torch.int64), "cross_entropy") == "map"  # of a time series


@pytest.mark.parametrize(
    ("rule", "model", "labels", "said"),
    [
        (FedSGD(), net(1), values(2, 1), "train on squared errors with --loss mse"),
        (FedSGD(loss="mse"), pixels(3), torch.zeros(2, 8, 8, dtype=torch.int64), "use --loss cross_entropy"),
        (FedSGD(loss="binary"), net(3), torch.tensor([0, 1]), "this model has 3"),
    ],
)
def test_a_loss_of_other_targets_is_refused(rule: FedSGD, model: nn.Module, labels: Tensor, said: str) -> None:
    with pytest.raises(SeepageError, match=said):
        record(model, Batch(inputs(2), labels), client=rule)


@pytest.mark.parametrize(
    ("model", "labels", "loss"),
    [
        (net(2), values(2, 3), "mse"),
        (net(6), values(2, 6).reshape(2, 2, 3), "mse"),
        (net(3), torch.zeros(2, 8, 8, dtype=torch.int64), "cross_entropy"),
        (pixels(3), torch.zeros(2, 5, 5, dtype=torch.int64), "cross_entropy"),
        (pixels(3), torch.zeros(2, dtype=torch.int64), "cross_entropy"),
        (pixels(3), torch.full((2, 3), 1 / 3), "cross_entropy"),
    ],
)
def test_labels_of_another_shape_than_the_outputs_are_refused(model: nn.Module, labels: Tensor, loss: str) -> None:
    with pytest.raises(
        SeepageError, match=rf"labels of shape \({', '.join(map(str, labels.shape))},?\), and the model"
    ):
        record(model, Batch(inputs(2), labels), client=FedSGD(loss=loss))
    fitting = torch.zeros(2, *model(inputs(1)).shape[1:]) if loss == "mse" else None
    if fitting is not None:
        seen = record(model, Batch(inputs(2), fitting), client=FedSGD(loss=loss))
        odd = misfit(Truth((Batch(inputs(2), labels),)), 1, [2], seen.knowledge)
        assert odd is not None
        assert "and the model returns" in odd
        other = Units(torch.zeros(9).double(), torch.ones(9).double())
        odd = misfit(Truth((Batch(inputs(2), fitting),), units=other), 1, [2], seen.knowledge)
        assert odd is not None
        assert "says what 9 numbers of a target mean" in odd


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.0, None), (1.0, "2"), (-1.0, 1.0), (1.0, float("nan"))])
def test_weights_of_classes_that_cannot_be_are_refused(weights: Any) -> None:
    with pytest.raises(SeepageError, match="class_weights"):
        FedSGD(class_weights=weights)


def test_there_are_as_many_weights_as_classes(tmp_path: Path) -> None:
    rule, batch = FedSGD(class_weights=(0.2, 0.8, 0.5)), Batch(inputs(2), torch.tensor([0, 1]))
    with pytest.raises(SeepageError, match="3 weights for 2"):
        record(net(2), batch, client=rule)
    plain = Architecture("fc2", {"hidden": 16})
    save_transcript(record(build(plain, (1, 8, 8), 3), batch, client=rule, architecture=plain), tmp_path)
    facts = json.loads((tmp_path / "knowledge.json").read_text())
    facts["client"]["class_weights"] = [0.5]
    (tmp_path / "knowledge.json").write_text(json.dumps(facts))
    with pytest.raises(SeepageError, match="1 weights for 3"):
        open_transcript(tmp_path)


@pytest.mark.parametrize("options", [{"class_weights": (0.2, 0.5, 0.3)}, {"loss": "own_losses:focal"}])
def test_dp_sgd_clips_each_example_alone_under_any_loss(options: dict[str, Any]) -> None:
    from seepage.base.nn import generator, state_of
    from seepage.federation.defenses import DPSGD
    from seepage.federation.types import ClientView

    model, batch, rule = net(3), Batch(inputs(2), torch.tensor([0, 2])), FedSGD(**options)
    params, _ = state_of(model)
    view = ClientView(model, params, batch, rule)
    sent = DPSGD(sigma=0.0, clip=1e6)(rule(model, params, batch), view, generator=generator(0, "defense"))
    alone = [rule(model, params, Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1])).tensors for i in range(2)]
    for name, tensor in sent.tensors.items():
        torch.testing.assert_close(tensor, (alone[0][name] + alone[1][name]) / 2, rtol=1e-4, atol=1e-6)


# --- attacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [0, 1])
def test_one_logit_names_its_label(label: int) -> None:
    batch = Batch(inputs(1), torch.tensor([label]))
    seen = record(net(1), batch, client=FedSGD(loss="binary"))
    found = attack(seen, "linear")
    assert found.labels.tolist() == [label]
    assert score(found, batch).exact == 1.0
    looked = exposure(seen)
    assert looked.of("labels")[0].evidence["present"] == (label,)
    guess = attack(seen, "idlg", options={"steps": 1})
    assert guess.labels.tolist() == [label]


@pytest.mark.parametrize(("width", "count"), [(1, 1), (4, 1), (2, 3), (4, 4)])
def test_values_are_read_off_squared_errors(width: int, count: int) -> None:
    batch = Batch(inputs(count), values(count, width))
    found = attack(record(net(width, 512), batch, client=FedSGD(loss="mse")), "linear")
    scores = score(found, batch)
    assert scores.exact == 1.0
    assert bool(found.certified.all())
    assert scores.summaries["target_error"].mean < 1e-3
    assert scores.label_accuracy is None


@pytest.mark.parametrize(("loss", "outputs"), [("mse", 1), ("mse", 3), ("binary", 1), ("cross_entropy", 3)])
@pytest.mark.parametrize("factor", [0.1, 0.9, 1.0])
def test_an_example_of_the_wrong_size_is_not_certified(loss: str, outputs: int, factor: float) -> None:
    """A client that clips each tensor by itself, or whose biases have a learning rate of their own."""
    model = net(outputs)
    with torch.no_grad():
        model[1].bias.zero_()  # so that a darker example gives the same neurons, only weaker
        model[3].weight.mul_(0.01)  # so that every class stays as likely
    labels, target = (values(1, outputs), "value") if loss == "mse" else (torch.tensor([1]), "class")
    sent = dict(record(model, Batch(inputs(1), labels), client=FedSGD(loss=loss))[0].update.tensors)
    sent["1.weight"] = factor * sent["1.weight"]
    for kept in (sent, {name: tensor for name, tensor in sent.items() if name.startswith("1.")}):
        if len(kept) < len(sent) and loss == "cross_entropy":
            continue  # without the next layer a softmax's slopes have to tell, which say little here
        seen = observe(model, Update(kept), (1, 8, 8), batch_size=1, client=FedSGD(loss=loss), target=target)
        found = attack(seen, "linear").certified
        assert found.tolist() == [factor == 1.0 and kept is sent]


@pytest.mark.parametrize(("loss", "outputs"), [("mse", 1), ("binary", 1), ("cross_entropy", 2)])
def test_one_slope_certifies_nothing_where_the_batch_size_was_inferred(loss: str, outputs: int) -> None:
    """All examples' slopes are multiples of one another, so several with the same neurons are one in every number."""
    model, light = net(outputs), inputs(1)
    with torch.no_grad():
        model[1].bias.zero_()
    both, labels = torch.cat([light, 0.5 * light]), torch.tensor([1, 1])
    batch = Batch(both, labels.float()[:, None] if loss == "mse" else labels)
    target = "value" if loss == "mse" else "class"
    sent = record(model, batch, client=FedSGD(loss=loss))[0].update
    seen = observe(model, sent, (1, 8, 8), batch_size=1, client=FedSGD(loss=loss), target=target)
    found = attack(OneClass(seen.knowledge, replace(seen[0], size_inferred=True)), "linear")
    assert not bool(found.certified.any())


def test_one_value_of_several_examples_certifies_nothing() -> None:
    batch = Batch(inputs(3), values(3, 1))
    found = attack(record(net(1), batch, client=FedSGD(loss="mse")), "linear")
    assert not len(found)
    assert exposure(record(net(1), batch, client=FedSGD(loss="mse"))).examples == 0


def test_a_value_is_searched_for_with_its_example() -> None:
    batch, model = Batch(inputs(1), values(1, 1)), net(1)
    model[2] = nn.Tanh()
    found = attack(record(model, batch, client=FedSGD(loss="mse")), "dlg", options={"steps": 30, "line_search": True})
    scores = score(found, batch)
    assert scores.psnr > 60
    assert scores.summaries["target_error"].mean < 1e-2


def map_victim() -> tuple[Transcript, Tensor]:
    batch = Batch(inputs(1), torch.randint(3, (1, 8, 8), generator=torch.Generator().manual_seed(0)))
    return record(pixels(3), batch, known=["labels"]), batch.inputs


@pytest.mark.slow  # a search over three convolutions
def test_an_image_comes_back_beside_its_told_map() -> None:
    from seepage.attacks import dlg

    case = AttackCase(
        attack=dlg(steps=60, line_search=True, labels="given"),
        brief=dlg(steps=2, line_search=True, labels="given"),
        planted_db=35,
        victim=map_victim,
    )
    for check in ("planted_inputs_come_back", "resumes_with_the_same_bits"):
        ATTACK_CHECKS[check](case)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("idlg", "no_softmax_gradient"),
        ("gauss_newton", "no_softmax_gradient"),
        ("linear", "input_not_read"),
        ("lora", "no_classes"),
    ],
)
def test_what_a_map_rules_out_is_said(use: str, name: str) -> None:
    with refusal(name):
        attack(record(pixels(3), Batch(inputs(1), torch.ones(1, 8, 8).long())), use)


def test_a_map_is_searched_for_and_scored_by_its_pixels() -> None:
    batch = Batch(inputs(2), torch.randint(3, (2, 8, 8), generator=torch.Generator().manual_seed(0)))
    found = attack(record(pixels(3), batch), "gradient_matching", options={"steps": 2})
    assert found.labels.shape == (2, 8, 8)
    scores = score(found, batch)
    assert scores.label_accuracy is not None
    commonest = torch.stack([one.flatten().bincount().max() / 64 for one in batch.labels])
    assert scores.baselines["commonest"]["label"] == pytest.approx(float(commonest.mean()))


# --- scores --------------------------------------------------------------------------------------------------------


def test_values_are_scored_in_their_own_unit_beside_the_mean_target() -> None:
    prices = torch.tensor([[100.0], [300.0], [200.0]])
    units = Units.of(prices)
    true, guess = units.scaled(torch.tensor([[150.0], [250.0]])), units.scaled(torch.tensor([[160.0], [250.0]]))
    found = label_scores(guess, true, torch.tensor([0, 1]), units)
    torch.testing.assert_close(found.values["target_error"], torch.tensor([10.0, 0.0]).double(), atol=1e-3, rtol=0)
    floor = found.floors["mean_target"]["target_error"]  # the mean is 200
    torch.testing.assert_close(floor, torch.tensor([50.0, 50.0]).double(), atol=1e-3, rtol=0)


def test_labels_of_another_kind_are_not_compared() -> None:
    truth = Batch(inputs(1), torch.tensor([1]))
    with pytest.raises(SeepageError, match="float32 labels"):
        score(Reconstruction(truth.inputs, labels=torch.zeros(1, 1)), truth)


def test_units_stay_with_the_truth(tmp_path: Path) -> None:
    units = Units.of(torch.tensor([[1.0], [5.0]]))
    save_truth(Truth((Batch(inputs(1), torch.zeros(1, 1)),), units=units), tmp_path)
    found = open_truth(tmp_path)
    assert (found.rounds, found.units.mean.tolist(), found.units.scale.tolist()) == (1, [3.0], [2.0])


def test_a_truth_of_other_targets_does_not_fit() -> None:
    seen = record(net(1), Batch(inputs(1), torch.zeros(1, 1)), client=FedSGD(loss="mse"))
    assert "are values" in str(misfit(Truth((Batch(inputs(1), torch.tensor([0])),)), 1, [1], seen.knowledge))
    nan = Truth((Batch(inputs(1), torch.full((1, 1), torch.nan)),))
    assert "NaN" in str(misfit(nan, 1, [1], seen.knowledge))


# --- folders and captured updates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [(), ("labels",)])
def test_a_recorded_update_of_values_is_read_as_such(known: tuple[str, ...], tmp_path: Path) -> None:
    batch = Batch(inputs(2), values(2, 3))
    named = Architecture("fc2", {"hidden": 64})
    from seepage import build

    model = build(named, (1, 8, 8), 3)
    seen = record(model, batch, client=FedSGD(loss="mse"), known=known, architecture=named)  # type: ignore[arg-type]
    save_transcript(seen, tmp_path)
    read = open_transcript(tmp_path)
    assert read.knowledge.target == "value"
    if known:
        assert read[0].labels is not None
        torch.testing.assert_close(read[0].labels, sorted_labels(batch.labels))
    assert torch.equal(attack(read, "linear").inputs, attack(seen, "linear").inputs)


def test_told_maps_are_sorted_whole() -> None:
    maps = torch.tensor([[[2, 0]], [[1, 3]]])
    assert torch.equal(sorted_labels(maps), maps.flip(0))


def test_a_strangers_loss_is_not_imported(tmp_path: Path) -> None:
    named = Architecture("fc2", {"hidden": 8})
    from seepage import build

    seen = record(
        build(named, (1, 8, 8), 3), Batch(inputs(1), torch.tensor([0])), client=FedSGD(loss="own_losses:focal"),
        architecture=named,
    )  # fmt: skip
    save_transcript(seen, tmp_path)
    index = tmp_path / "knowledge.json"
    index.write_text(index.read_text().replace("own_losses:focal", "trap_that_is_not_there:focal"))
    with pytest.raises(SeepageError, match=r"trap_that_is_not_there:focal.*--trust"):
        open_transcript(tmp_path)


def test_what_was_captured_is_read_by_its_loss() -> None:
    model, batch = net(1), Batch(inputs(1), torch.tensor([1]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loss = F.binary_cross_entropy_with_logits(model(batch.inputs)[:, 0], batch.labels.float())
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    seen = observe(model, update, (1, 8, 8), batch_size=1, lr=0.1, client=FedSGD(loss="binary"))
    found = attack(seen, "linear")
    assert found.labels.tolist() == [1]
    assert seen.knowledge.num_classes == 2
    assert observe(model, update, (1, 8, 8), lr=0.1, client=FedSGD(loss="mse")).knowledge.target == "value"
    steps = FedAvg(lr=0.1, steps=2, loss="binary")
    assert observe(model, update, (1, 8, 8), client=steps).knowledge.num_outputs == 1
    assert replace(steps, loss="mse").num_outputs(5) == 5


# --- data ----------------------------------------------------------------------------------------------------------


def write_houses(folder: Path, prices: str = "") -> Path:
    rows = "".join(f"{size},{size % 5},{prices or 1000 * size}\n" for size in range(40))
    (folder / "houses.csv").write_text(f"size,rooms,price\n{rows}")
    return folder / "houses.csv"


def test_a_column_of_numbers_is_predicted_in_its_own_unit(tmp_path: Path) -> None:
    data = load(str(write_houses(tmp_path)), target_column="price")
    assert isinstance(data, TableDataset)
    assert (data.classes, data.input_shape) == (("price",), (2,))
    batch = data.batch(data.private[:4])
    prices = data.units.mean + data.units.scale * batch.labels.double()
    # The first column is the size, from 0 to 39, scaled to [0, 1].
    torch.testing.assert_close(prices[:, 0], 39_000 * batch.inputs[:, 0].double(), rtol=1e-4, atol=1e-2)
    trained = data.batch(data.train).labels.double()
    assert float(trained.mean().abs()) < 1e-6
    assert float(trained.std(unbiased=False)) == pytest.approx(1, abs=1e-5)
    assert sorted(data.labels.unique().tolist()) == list(range(10))  # a tenth of the rows each


@pytest.mark.parametrize(
    ("options", "prices", "said"),
    [
        ({"target_column": "prise"}, "", "no column 'prise' to predict; it has 'size'"),
        ({"target_column": "price"}, "cheap", "no number in 'price'"),
        ({"target_column": "price"}, "nan", "no finite numbers"),
        ({"target_column": ["price"], "label_column": "rooms"}, "", "give one of them"),
        ({}, "", "data.target_column"),
    ],
)
def test_a_column_that_cannot_be_predicted_is_a_sentence(
    options: dict[str, Any], prices: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SeepageError, match=said):
        load(str(write_houses(tmp_path, prices)), **options)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("kind", ["value", "values", "map"])
def test_an_npz_holds_values_or_maps(kind: str, split: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.random((12, 1, 6, 8), dtype=np.float32)
    shape = {"value": (12,), "values": (12, 3), "map": (12, 6, 8)}[kind]
    y = draw.integers(0, 4, shape) if kind == "map" else 50 + draw.random(shape)
    if kind == "map":
        y[0, 0, 0] = -100
    parts = {"x_train": x[:6], "y_train": y[:6], "x_test": x[6:], "y_test": y[6:]} if split else {"x": x, "y": y}
    np.savez(tmp_path / "own.npz", **parts)
    data = load(str(tmp_path / "own.npz"))
    assert isinstance(data, ArrayDataset)
    labels = data.batch(torch.arange(12)).labels
    if kind == "map":
        assert torch.equal(labels, torch.from_numpy(y))
        assert data.classes == ("0", "1", "2", "3")
        assert target_of(labels, "cross_entropy") == "map"
        return
    found = data.units.mean + data.units.scale * labels.double()
    torch.testing.assert_close(found, torch.from_numpy(y).reshape(12, -1), rtol=1e-5, atol=1e-5)
    assert len(data.classes) == found.shape[1]


@pytest.mark.parametrize(
    ("y", "options", "said"),
    [
        (np.full((4, 6, 6), -100), {}, "no pixel of the maps has a class"),
        (np.full((4, 6, 6), -3), {}, "negative labels"),
        (np.zeros((4, 6, 6), int), {"size": 3}, "a map of classes is not resized"),
        (np.zeros((3, 6, 6), int), {}, "one map for each image"),
        (np.zeros((4, 6, 6)), {}, r"type float64; save maps .* here y\.astype\(int\)"),
        (np.zeros((4, 1, 6, 6), int), {}, r"here y\.squeeze\(1\)$"),
        (np.array([1.0, np.inf, 2, 3]), {}, "no finite numbers"),
    ],
)
def test_targets_that_cannot_be_are_a_sentence(y: Any, options: dict[str, int], said: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 1, 6, 6), np.float32), y=y)
    with pytest.raises(SeepageError, match=said):
        load(str(tmp_path / "own.npz"), **options)


def test_pictures_with_nan_are_named(tmp_path: Path) -> None:
    x = np.zeros((4, 1, 6, 6), np.float32)
    x[2:, 0, 1, 1] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=np.zeros(4, int))
    with pytest.raises(SeepageError, match="example 2 and 1 more"):
        load(str(tmp_path / "own.npz"))


@pytest.mark.slow
def test_maps_of_another_size_than_the_pictures_do_not_blame_the_network(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((8, 1, 6, 6), np.float32), y=np.zeros((8, 3, 6), int) + np.arange(6) % 2)
    tables = {"data": {"use": str(tmp_path / "own.npz")}, "model": {"use": f"{__name__}:same_size"}}
    with pytest.raises(SeepageError, match=r"3 x 6.*6 x 6"):
        run({**tables, "attack": [{"use": "linear"}]}, out=tmp_path / "run", jobs=1)


def same_size(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Conv2d(shape[0], classes, 1)


def test_zeros_and_ones_of_several_classes_at_once_stay_such(tmp_path: Path) -> None:
    y = np.random.default_rng(0).integers(0, 2, (12, 3)).astype(float)
    np.savez(tmp_path / "own.npz", x=np.zeros((12, 1, 6, 6), np.float32), y=y)
    data = load(str(tmp_path / "own.npz"))
    labels = data.batch(torch.arange(12)).labels
    assert torch.equal(labels.double(), torch.from_numpy(y))
    assert target_of(labels, "bce") == "value"
    seen = record(net(3), Batch(inputs(1), labels[:1]), client=FedSGD(loss="bce"))
    assert score(attack(seen, "linear"), Batch(inputs(1), labels[:1])).exact == 1.0


def test_several_classes_at_once_are_audited_whatever_batches_look_like(tmp_path: Path) -> None:
    """Of the examples that are attacked some have one class, which looks like the chances of an example."""
    draw = np.random.default_rng(0)
    y = np.eye(3)[draw.integers(0, 3, 24)]
    y[::3] = 1.0
    np.savez(tmp_path / "own.npz", x=draw.random((24, 1, 6, 6), dtype=np.float32), y=y)
    tables = {"data": {"use": str(tmp_path / "own.npz")}, "model": {"use": "fc2", "hidden": 64}, "seed": 1}
    done = run(
        {
            **tables,
            "client": {"loss": "bce"},
            "batch": {"size": 2, "count": 4},
            "training": {"steps": 0},
            "attack": [{"use": "linear"}, {"use": "dlg", "steps": 1}],
        },
        out=tmp_path / "run",
        jobs=1,
    )
    kinds = {bool((batch.labels.sum(1) == 1).all()) for batch in open_truth(tmp_path / "run" / "private")}
    assert kinds == {True, False}
    assert done.result.cases[0].target == "value"
    assert all("mean_target" in row.baselines for row in done.result.rows)
    assert done.result.rows[1].mean("target_error") is not None


def test_values_by_themselves_are_not_taken_for_chances_by_one_of_them() -> None:
    alone = Batch(inputs(1), torch.tensor([[0.0, 1.0, 0.0]]))
    several = Batch(inputs(1), torch.tensor([[1.0, 1.0, 0.0]]))
    assert record(net(3), [alone, several], client=FedSGD(loss="bce")).knowledge.target == "value"


def test_how_well_a_network_does_is_measured_by_what_its_loss_makes_of_outputs() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    state = {"1.weight": 1000 * torch.eye(2, 4), "1.bias": torch.full((2,), -500.0)}
    batch = Batch(torch.rand(20, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.zeros(20, 2))
    several = replace(batch, labels=(batch.inputs[:, 0, 0] > 0.5).float())  # each class by itself
    assert accuracy(model, (state, {}), several, "bce") > 0.99
    assert accuracy(model, (state, {}), several, "mse") == 0.0  # 500 is far from 1
    first = batch.inputs[:, 0, 0].argmax(1)
    chances = replace(batch, labels=0.8 * F.one_hot(first, 2) + 0.1)
    assert accuracy(model, (state, {}), chances) == 1.0


def test_each_step_of_a_series_has_its_class() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.Sigmoid(), nn.Conv1d(8, 3, 1))
    batch = Batch(torch.rand(1, 2, 10), torch.randint(3, (1, 10)))
    seen = record(model, batch)
    assert seen.knowledge.target == "map"
    found = attack(seen, "gradient_matching", options={"steps": 2})
    assert found.labels.shape == (1, 10)
    assert score(found, batch).label_accuracy is not None


def test_maps_that_are_said_to_be_classes_are_refused() -> None:
    seen = record(pixels(3), Batch(inputs(1), torch.zeros(1, 8, 8).long()))
    older = OneClass(replace(seen.knowledge, target="class"), seen[0])
    with refusal("wrong_outputs"):
        attack(older, "gradient_matching", options={"steps": 1})


def test_a_recorder_knows_what_its_clients_train_towards(tmp_path: Path) -> None:
    from seepage.recorder.recorder import Recorder

    named = Architecture("fc2", {"hidden": 8})
    recorder = Recorder(
        tmp_path / "seen",
        architecture=named,
        input_shape=(1, 8, 8),
        num_classes=2,
        client=FedSGD(loss="binary"),
        lr=0.1,
    )
    model = recorder.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    F.binary_cross_entropy_with_logits(model(inputs(1))[:, 0], torch.ones(1)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    folder = recorder.record(before, model.state_dict(), t=0, client=1, examples=1).folder
    assert folder is not None
    found = attack(open_transcript(folder), "linear")
    assert found.labels.tolist() == [1]
