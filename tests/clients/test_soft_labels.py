"""Clients whose labels are no classes, or whose steps have more in them than examples: nothing is read as a label."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.base.registry import Spec
from seepage.errors import SeepageError

HERE = f"tests.clients.{Path(__file__).stem}"
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Rows(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 8))


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, 20, generator=draw), torch.randint(0, 8, (count,), generator=draw)


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def smoothed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, label_smoothing=0.1)


def mixed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    other = (y + 3) % 8
    return 0.7 * F.cross_entropy(model(x), y) + 0.3 * F.cross_entropy(model(x), other)


def distilled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    taught = torch.randn(len(x), 8, generator=torch.Generator().manual_seed(7)).mul(3).softmax(1)
    return 0.5 * F.cross_entropy(model(x), y) + 0.5 * F.cross_entropy(model(x), taught)


def varied(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """SCAFFOLD: what other clients' gradients were more than its own is added to each step."""
    others, own = drawn(64, 98), drawn(16, 99)
    return F.cross_entropy(model(x), y) + plain(model, *others) - plain(model, *own)


LOSSES = {"smoothed": smoothed, "mixed": mixed, "distilled": distilled, "varied": varied}


def checked(folder: Path, loss: Loss, batch: tuple[Tensor, Tensor], **stated: object) -> Check:
    torch.manual_seed(0)
    model = Rows()
    torch.save(model.state_dict(), folder / "before.pt")
    loss(model, *batch).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.save(model.state_dict(), folder / "after.pt")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", architecture=Spec(f"{HERE}:Rows"), input_shape=(20,),
        **stated,
    )  # fmt: skip
    return check_capture(capture, Look(), named=True).cases[0]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("loss", [*LOSSES])
@pytest.mark.parametrize("stated", [{}, {"lr": 0.1}, {"lr": 0.1, "batch_size": True}])
def test_classes_are_named_under_a_condition(tmp_path: Path, loss: str, count: int, stated: dict[str, object]) -> None:
    known = {**stated, "batch_size": count} if "batch_size" in stated else stated
    found = checked(tmp_path, LOSSES[loss], drawn(count, 1), **known)
    for one in found.exposure.of("labels"):
        assert one.evidence["condition"] or not one.tensors


@pytest.mark.parametrize("seed", range(3))
def test_the_heads_equations_show_labels_of_one_class_each(tmp_path: Path, seed: int) -> None:
    batch = drawn(2, seed)
    found = checked(tmp_path, plain, batch, lr=0.1, batch_size=2)
    (labels,) = found.exposure.of("labels")
    assert labels.evidence["condition"] == ""
    assert set(labels.evidence["present"]) == set(batch[1].tolist())


def test_a_loss_that_was_stated_needs_no_condition(tmp_path: Path) -> None:
    client = Spec("fedsgd", {"loss": "cross_entropy"})
    found = checked(tmp_path, plain, drawn(6, 0), lr=0.1, client=client)
    assert found.exposure.of("labels")[0].evidence["condition"] == ""


def test_more_classes_than_examples_contradict_labels_of_one_class_each(tmp_path: Path) -> None:
    found = checked(tmp_path, mixed, drawn(1, 0), lr=0.1, batch_size=1)
    (labels,) = found.exposure.of("labels")
    assert len(labels.evidence["present"]) == 2
    assert "contradict" in labels.evidence["condition"]


class Next(nn.Module):
    """A language model whose head is its table, which returns words on the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.seen, self.head = nn.Embedding(40, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 40)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.seen(self.words(ids))[0]).transpose(1, 2)
        return logits


@pytest.mark.parametrize("seed", range(3))
def test_signs_name_as_many_classes_as_there_are_places(tmp_path: Path, seed: int) -> None:
    """One text of Adam has a next word at each place, and not one label."""
    torch.manual_seed(seed)
    model, ids = Next(), torch.randperm(40)[:8][None]
    torch.save(model.state_dict(), tmp_path / "before.pt")
    F.cross_entropy(model(ids)[:, :, :-1], ids[:, 1:]).backward()
    torch.optim.Adam(model.parameters(), 1e-3).step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    capture = Capture(
        before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Spec(f"{HERE}:Next"),
        input_shape=(8,), batch_size=1,
    )  # fmt: skip
    found = check_capture(capture, Look(), named=True).cases[0]
    (labels,) = found.exposure.of("labels")
    assert labels.tensors
    assert set(labels.evidence["present"]) <= set(ids[0, 1:].tolist())
    assert len(labels.evidence["present"]) > 1


class Named(nn.Module):
    """A network that takes a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.head(self.ids(batch["ids"]).mean(1))
        return logits


def test_a_dictionary_is_more_than_the_examples(tmp_path: Path) -> None:
    model = Named()
    torch.save(model.state_dict(), tmp_path / "before.pt")
    torch.save({name: t + 1e-3 for name, t in model.state_dict().items()}, tmp_path / "after.pt")
    capture = Capture(
        before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Spec(f"{HERE}:Named"), input_shape=(5,)
    )
    with pytest.raises(SeepageError, match="takes more than the examples"):
        check_capture(capture, Look(), named=True)
