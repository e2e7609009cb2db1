"""What an update tells of how it was made, against updates whose making is known."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from seepage import Architecture, Batch, FedAvg, FedSGD, build, record
from seepage.attacks.exposure import LabelLeak, UpdateAnalysis
from seepage.attacks.exposure.analysis import ANOTHER_RATE, UNKNOWN_RATE
from seepage.attacks.exposure.inference import infer_size, infer_steps, rate_doubt
from seepage.attacks.exposure.labels import label_leak
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.types import ClientUpdate, Knowledge, Tensors

SHAPE, CLASSES = (3, 8, 8), 10


def linear_knowledge(classes: int) -> Knowledge:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, classes))
    return record(model, Batch(torch.rand(1, 3, 2, 2), torch.zeros(1, dtype=torch.int64))).knowledge


def net() -> nn.Module:
    return build(Architecture("convnet"), SHAPE, CLASSES)


def batch(n: int, classes: int = 4) -> Batch:
    draw = torch.Generator().manual_seed(n)
    return Batch(torch.rand(n, *SHAPE, generator=draw), torch.arange(n) % classes)


def sent(model: nn.Module, client: ClientUpdate, n: int = 6) -> Tensors:
    return record(model, batch(n), client=client)[0].update.tensors


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("lr", [0.001, 0.05])
def test_few_steps_of_a_fresh_network_are_counted(steps: int, lr: float) -> None:
    model = net()
    delta = sent(model, FedAvg(lr=lr, steps=steps))
    found = infer_steps(model, delta, SHAPE, CLASSES, lr=lr, steps=None)
    assert found.steps == steps
    assert set(found.said) == {"local steps"}


def test_the_rate_is_inferred_where_it_is_not_told() -> None:
    model = net()
    delta = sent(model, FedAvg(lr=0.05, steps=2))
    found = infer_steps(model, delta, SHAPE, CLASSES, lr=None, steps=2)
    assert found.lr == pytest.approx(0.05, rel=0.2)
    assert set(found.said) == {"learning rate"}
    whole = infer_steps(model, delta, SHAPE, CLASSES, lr=None, steps=None)
    assert (whole.lr, whole.steps) == (pytest.approx(0.1, rel=0.2), 1)


def test_steps_that_a_rate_too_small_feigns_are_told_with_the_rate_of_one() -> None:
    model = net()
    delta = sent(model, FedAvg(lr=0.1, steps=1))
    found = infer_steps(model, delta, SHAPE, CLASSES, lr=0.02, steps=None)
    assert found.steps == 5
    rate = re.search(r"--steps 1 --lr ([\d.]+)$", found.said["local steps"])
    assert float(rate[1]) == pytest.approx(0.1, rel=0.2)
    right = infer_steps(model, delta, SHAPE, CLASSES, lr=0.1, steps=None)
    assert "--steps" not in right.said["local steps"]


def test_the_steps_are_never_fewer_than_the_slopes_allow() -> None:
    """Positive slopes of one step sum to less than one, whatever the network."""
    model = net()
    for lr, steps in ((0.5, 8), (0.01, 20)):
        delta = sent(model, FedAvg(lr=lr, steps=steps))
        found = infer_steps(model, delta, SHAPE, CLASSES, lr=lr, steps=None)
        assert found is not None
        bias = list(delta.values())[-1]
        assert found.steps >= round(float((-bias / lr).clamp(min=0).sum()))


def test_a_network_that_is_sure_tells_nothing() -> None:
    model = net()
    with torch.no_grad():
        list(model.parameters())[-2].mul_(100)
    delta = sent(model, FedAvg(lr=0.01, steps=3))
    assert infer_steps(model, delta, SHAPE, CLASSES, lr=None, steps=None) is None
    found = infer_steps(model, delta, SHAPE, CLASSES, lr=0.01, steps=None)
    assert found.steps == 1
    assert "nothing shows" in found.said["local steps"]


def test_all_classes_present_tell_nothing() -> None:
    model = net()
    delta = record(model, batch(20, classes=CLASSES), client=FedAvg(lr=0.01, steps=1))[0].update.tensors
    assert infer_steps(model, delta, SHAPE, CLASSES, lr=None, steps=None) is None


def test_outputs_behind_a_relu_tell_no_rate() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).relu()

    for model in (Cut(), nn.Sequential(net(), nn.LogSoftmax(1))):
        delta = sent(model, FedAvg(lr=0.1, steps=1))
        known = rate_doubt(model, {name: 2 * moved for name, moved in delta.items()}, SHAPE, CLASSES, 0.1)
        assert (known is None) is isinstance(model, Cut), "a log-softmax has the softmax of what it reads"
        assert infer_steps(model, delta, SHAPE, CLASSES, lr=None, steps=1) is None or not isinstance(model, Cut)


@pytest.mark.full
def test_with_batch_norm_in_train_mode_an_honest_rate_is_never_contradicted(tmp_path: Path) -> None:
    shape = (3, 16, 16)
    named, accused = Architecture("convnet", {"width": 8, "batch_norm": True}), 0
    for seed in (*range(8), 78):
        model, draw = build(named, shape, CLASSES, seed=seed), torch.Generator().manual_seed(seed)
        private = Batch(torch.rand(6, *shape, generator=draw), torch.randperm(CLASSES, generator=draw)[:6])
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moved = record(model, private, client=FedAvg(lr=0.1, steps=1))[0].update.tensors
        accused += rate_doubt(model, moved, shape, CLASSES, 0.1) is not None
        torch.save(before, tmp_path / "before.pt")
        torch.save({name: before[name] + moved.get(name, 0) for name in before}, tmp_path / "after.pt")
        for lr, place in ((0.1, tmp_path / f"stated-{seed}"), (None, tmp_path / f"open-{seed}")):
            paths = {name: tmp_path / f"{name}.pt" for name in ("before", "after")}
            capture = Capture(**paths, lr=lr, architecture=named, input_shape=shape)
            observe_files(capture, place, needs_rate=False)
            said = read_facts(place).said
            assert ANOTHER_RATE not in said
            assert lr is not None or UNKNOWN_RATE in said or "uncertain" in said["learning rate"]
    assert accused, "made-up inputs alone contradict honest clients"


def test_labels_that_have_less_of_a_softmax_than_made_up_inputs_give_them_contradict_no_rate() -> None:
    """An honest rate of 0.1 was doubted, as seven classes in no example moved as at 0.12."""
    head = nn.Linear(4, CLASSES)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 4), nn.ReLU(), head)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.bias[:3] = 1.0  # of made-up inputs the first three have half of the softmax, of the client's 0.37
    share = head.bias.detach().softmax(0)
    seen = torch.cat([0.7 * share[:3], share[3:] * (1 - 0.7 * share[:3].sum()) / share[3:].sum()])
    labels = F.one_hot(torch.arange(3), CLASSES).float().mean(0)
    moved = {"3.bias": -0.1 * (seen - labels)}
    travel = 0.1 * float(seen[4] / share[4])
    assert travel > 0.12
    assert rate_doubt(model, moved, SHAPE, CLASSES, 0.1) is None
    assert rate_doubt(model, {"3.bias": 2 * moved["3.bias"]}, SHAPE, CLASSES, 0.1) is not None
    assert rate_doubt(model, {"3.bias": 0.5 * moved["3.bias"]}, SHAPE, CLASSES, 0.1) is not None


def test_what_is_told_is_taken() -> None:
    model = net()
    found = infer_steps(model, sent(model, FedAvg(lr=0.01, steps=3)), SHAPE, CLASSES, lr=0.3, steps=7)
    assert (found.lr, found.steps, found.said) == (0.3, 7, {})


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_the_batch_size_is_the_rank_of_the_first_layer(n: int) -> None:
    model = build(Architecture("fc2", {"hidden": 64}), SHAPE, CLASSES)
    size, words = infer_size(UpdateAnalysis(record(model, Batch(batch(n).inputs, batch(n).labels))))
    assert size == n
    assert "from the rank of 2.weight" in words


@pytest.mark.parametrize("hidden", [1, 2, 3, 4, 5])
def test_a_rank_that_is_full_tells_no_number(hidden: int) -> None:
    model = build(Architecture("fc2", {"hidden": hidden}), SHAPE, CLASSES)
    size, words = infer_size(UpdateAnalysis(record(model, batch(8))))
    assert size is None
    assert not words.split()[0].isdigit()


def test_a_network_without_fully_connected_layers_does_not_tell() -> None:
    model = nn.Sequential(nn.Conv2d(3, CLASSES, 8), nn.Flatten())
    size, words = infer_size(UpdateAnalysis(record(model, batch(2), client=FedSGD())))
    assert size is None
    assert "no fully connected layer" in words


def test_labels_are_named_with_their_counts() -> None:
    counts = (0, 2, 0, 1)
    sure = LabelLeak((1, 3), counts, 0.1, True, (0, 1, 0, 1), (1, 2, 1, 1))
    assert sure.source == "classes 1 (1 to 2), 3 (1), and perhaps others, from the last bias"
    bounded = LabelLeak((1, 3), counts, 0.1, True, (0, 1, 0, 1))
    assert bounded.source == "classes 1 (1 or more), 3 (1 or more), and perhaps others, from the last bias"
    assert LabelLeak((1, 3), counts, 0.1, True).source == "classes 1, 3, and perhaps others, from the last bias", (
        "an estimate is no proof"
    )
    hidden = label_leak({"1.bias": torch.tensor([-0.4, -0.2, 0.3, 0.3])}, linear_knowledge(4), 4)
    assert hidden.source == "classes 0 (2 to 3), 1 (1 to 2), and perhaps others, from the last bias", "one more example"
    whole = label_leak({"1.bias": torch.tensor([-0.4, -0.3, 0.35, 0.35])}, linear_knowledge(4), 4)
    assert whole.source == "classes 0 (2), 1 (2), from the last bias"
    assert LabelLeak((1,), None, None, True, complete=True).source == "class 1, from the last bias"
    assert LabelLeak((1,), None, None, True).source == "class 1, and perhaps others, from the last bias"
    assert LabelLeak((1,), None, None, False).source is None
    assert LabelLeak((), None, None, True).source is None
    many = LabelLeak(tuple(range(40)), None, None, True).source
    assert many is not None
    assert "and 28 more" in many
