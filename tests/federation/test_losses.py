"""The client's loss, wherever it is used, against PyTorch's own losses and slow sums."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.nn import generator, state_of
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.clients import Aggregate, FedAvg, FedSGD, client_options, make_client
from seepage.federation.clients.losses import loss_of
from seepage.federation.defenses import DPSGD
from seepage.federation.defenses.dp_sgd import ClippedRule
from seepage.federation.types import Batch, ClientUpdate, ClientView

CASES = [("cross_entropy", 0.0), ("cross_entropy", 0.2), ("mse", 0.0), ("bce", 0.0)]


def batch_of(n: int = 6) -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.rand(n, 4, generator=draw), torch.randint(3, (n,), generator=draw))


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 3))


def slow(name: str, smoothing: float, logits: Tensor, labels: Tensor) -> Tensor:
    """The mean loss, one example and one class at a time."""
    total = torch.zeros(())
    for row, label in zip(logits, labels, strict=True):
        target = [(1.0 - smoothing) * (k == int(label)) + smoothing / len(row) for k in range(len(row))]
        for k, wanted in enumerate(target):
            if name == "cross_entropy":
                total = total - wanted * (row[k] - row.logsumexp(0))
            elif name == "mse":
                total = total + (row[k] - wanted) ** 2 / len(row)
            else:
                p = row[k].sigmoid()
                total = total - (wanted * p.log() + (1 - wanted) * (1 - p).log()) / len(row)
    return total / len(logits)


@pytest.mark.parametrize(("name", "smoothing"), CASES)
def test_a_loss_is_its_textbook_sum(name: str, smoothing: float) -> None:
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 2, 1, 1, 0])
    found = loss_of(name, logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(found, slow(name, smoothing, logits, labels))
    each = loss_of(name, logits, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(each.mean(), found)
    torch.testing.assert_close(loss_of(name, logits, labels, label_smoothing=smoothing, reduction="sum"), 5 * found)
    soft = F.one_hot(labels, 3).float()
    torch.testing.assert_close(loss_of(name, logits, soft, label_smoothing=smoothing), found)


@pytest.mark.parametrize(("name", "smoothing"), CASES)
def test_every_rule_follows_the_same_loss(name: str, smoothing: float) -> None:
    model, batch = model_of(), batch_of()
    params, _ = state_of(model)
    loss = slow(name, smoothing, model(batch.inputs), batch.labels)
    wanted = dict(zip(params, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    options = {"loss": name, "label_smoothing": smoothing}
    sgd = FedSGD(**options)
    step = FedAvg(lr=0.5, steps=1, batch_size=6, **options)
    rules: list[ClientUpdate] = [
        sgd,
        step,
        step.first_order_rule(),
        Aggregate(rule=sgd, clients=2),
        ClippedRule(sgd, 1e6),
    ]
    for rule in rules:
        found = rule.as_gradient(rule(model, params, batch), 6)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
        assert (rule.loss, rule.softmax_gradient) == (name, name == "cross_entropy" and not smoothing)
        losses = rule.loss_of(model(batch.inputs), batch.labels, "none")
        torch.testing.assert_close(losses.mean(), loss)
    sent = DPSGD(sigma=0.0, clip=1e6)(
        sgd(model, params, batch), ClientView(model, params, batch, sgd), generator=generator(0, "defense")
    )
    torch.testing.assert_close(sent.tensors, wanted, rtol=1e-4, atol=1e-6)


def test_a_loss_is_written_and_read_again() -> None:
    assert client_options(FedSGD())["loss"] == "cross_entropy"
    assert repr(FedSGD()) == "FedSGD(mode='train')"
    other = FedSGD(loss="mse", mode="eval")
    assert repr(other) == "FedSGD(loss='mse', mode='eval')"
    options = client_options(other)
    assert make_client(Spec(str(options.pop("use")), options)) == other


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(SeepageError, match="cross_entropy"):
        FedSGD(loss="crossentropy")
    with pytest.raises(SeepageError, match="label_smoothing"):
        FedAvg(loss="mse", label_smoothing=0.1)
