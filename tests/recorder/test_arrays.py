"""Weights under the model's names, one tensor at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seepage import Architecture, FedAvg, SeepageError, exposure, open_transcript
from seepage.recorder.arrays import Layout, Sent, tensor_of
from seepage.recorder.recorder import Recorder


class Net(nn.Module):
    """Batch norm, a frozen layer, two names of one weight, and a buffer that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.first.weight
        self.head = nn.Linear(16, 3)
        self.head.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.again(self.norm(self.first(inputs.flatten(1) * self.scale))).relu())


def net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Net()


def moved(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = {name: tensor + 1 for name, tensor in before.items()}
    return before, after


class Counted(Mapping[str, Tensor]):
    """Counts what is asked for."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors, self.asked = tensors, 0

    def __getitem__(self, name: str) -> Tensor:
        self.asked += 1
        return self.tensors[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_every_kind_of_tensor_finds_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "odd_net.py").write_text("net = None")
    import odd_net

    odd_net.net = net
    architecture = Architecture("odd_net:net")
    seen = Recorder(
        tmp_path / "seen", architecture=architecture, input_shape=(1, 4, 4), num_classes=3,
        client=FedAvg(lr=1.0), audit="inline",
    )  # fmt: skip
    model = Net()
    before, after = moved(model)
    found = seen.record(before, after, t=0, client=0, examples=2)
    assert found.folder is not None
    recorded = open_transcript(found.folder, architecture=architecture, trust=True)
    assert set(recorded[0].update.tensors) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(torch.equal(tensor, after[name] - before[name]) for name, tensor in recorded[0].update.tensors.items())
    assert all(torch.equal(recorded[0].params[name], before[name]) for name in recorded[0].params)
    assert set(recorded[0].buffers) == {"scale", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert torch.equal(recorded.knowledge.model.get_parameter("head.bias"), before["head.bias"])
    assert exposure(recorded).table() == found.exposure.table() if found.exposure else False


@pytest.mark.parametrize("prefix", ["", "module.", "_module.", "_orig_mod._module.", "module._orig_mod."])
def test_names_of_wrappers_and_odd_formats_are_understood(prefix: str) -> None:
    layout = Layout.of(Net(), (1, 4, 4))
    before, after = moved(Net())
    given = {f"{prefix}{name}": tensor.double() for name, tensor in after.items()}
    given[f"{prefix}norm.num_batches_tracked"] = torch.tensor([1.0])
    sent = Sent.between(layout, before, given, lr=None, t=0)
    for tensor in sent.update.values():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, torch.ones_like(tensor))


def test_a_difference_is_taken_bit_by_bit_and_a_gradient_divided() -> None:
    layout = Layout.of(Net(), (1, 4, 4))
    before, _ = moved(Net())
    sent = {name: torch.full_like(tensor, 1e-9) for name, tensor in before.items()}
    plain = Sent.between(layout, before, sent, lr=None, t=0, difference=True)
    assert all(torch.equal(tensor, sent[name]) for name, tensor in plain.update.items())
    scaled = Sent.between(layout, before, sent, lr=0.5, t=0, difference=True)
    assert (plain.kind, scaled.kind) == ("delta", "gradient")
    assert all(torch.equal(tensor, -2 * sent[name]) for name, tensor in scaled.update.items())


def test_what_is_given_is_not_changed_and_read_a_few_times(tmp_path: Path) -> None:
    architecture = Architecture("convnet", {"width": 4, "batch_norm": True})
    for audit in ("none", "inline"):
        seen = Recorder(
            tmp_path / audit, architecture=architecture, input_shape=(3, 8, 8), num_classes=3,
            client=FedAvg(lr=0.1), audit=audit,
        )  # fmt: skip
        before, after = moved(seen.model)
        copies = [{name: tensor.clone() for name, tensor in state.items()} for state in (before, after)]
        counted = Counted(before), Counted(after)
        seen.record(before, after, t=0, client=0, examples=2)
        seen.record(*counted, t=1, client=0, examples=2)
        assert all(one.asked <= 6 * len(before) for one in counted)
        for state, copy in zip((before, after), copies, strict=True):
            assert all(torch.equal(state[name], copy[name]) for name in state)


def test_arrays_of_frameworks_become_tensors() -> None:
    read_only = np.arange(4.0)
    read_only.setflags(write=False)
    for array in (read_only, np.arange(4.0), np.arange(8.0)[::2] / 2, torch.arange(4.0), [0.0, 1.0, 2.0, 3.0]):
        assert torch.equal(tensor_of(array).double(), torch.arange(4.0).double())
    assert tensor_of(np.float32(3)).shape == ()
    for nothing in (b"secret", "words", object()):
        with pytest.raises(SeepageError, match="no array of numbers"):
            tensor_of(nothing)
