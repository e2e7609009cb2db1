"""Weights from files: what fits goes in, what does not is named, and nothing in a file is run."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from seepage import Architecture, SeepageError
from seepage.audit.recipe.plans import Training
from seepage.audit.simulate.training import begin
from seepage.federation.models.weights import load_weights, pretrained_state, read_state


def network(classes: int = 3, width: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, classes))


def filled(value: float, classes: int = 3) -> dict[str, torch.Tensor]:
    state = network(classes).state_dict()
    return {n: torch.full_like(t, value) if t.is_floating_point() else t for n, t in state.items()}


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"epoch": 3, "state_dict": s}, lambda s: {"model": s}])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod."])
def test_a_checkpoint_as_training_scripts_write_it_is_read(tmp_path: Path, wrap: object, prefix: str) -> None:
    state = {prefix + name: tensor for name, tensor in filled(2.0).items()}
    torch.save(wrap(state), tmp_path / "x.pt")  # type: ignore[operator]
    found = read_state(tmp_path / "x.pt")
    assert found.keys() == filled(2.0).keys()
    assert all((tensor == 2).all() for tensor in found.values() if tensor.is_floating_point())


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(filled(3.0), tmp_path / "x.safetensors")
    assert load_weights(model := network(), read_state(tmp_path / "x.safetensors"), 3, "x") is None
    assert all((tensor == 3).all() for tensor in model.parameters())


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["x.pt", "x.pth", "x.bin", "x.ckpt"])
def test_code_in_a_file_is_not_run(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": filled(1.0), "extra": _Bomb()}, name)
    with pytest.raises(SeepageError, match="could run code"):
        read_state(Path(name))
    Path(name).write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(SeepageError):
        read_state(Path(name))
    assert not Path("exploded").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x80\x02 what", b"text"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_files_are_one_sentence(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(SeepageError) as error:
        read_state(path)
    assert "\n" not in str(error.value)
    with pytest.raises(SeepageError, match="does not exist"):
        read_state(tmp_path / f"none{suffix}")


def test_a_file_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "x.pt")
    with pytest.raises(SeepageError, match="no tensors by name"):
        read_state(tmp_path / "x.pt")


def test_names_that_do_not_fit_are_listed() -> None:
    state = filled(1.0)
    state["9.weight"] = state.pop("0.weight")
    state["0.bias"] = torch.ones(7)
    with pytest.raises(SeepageError, match=r"0\.weight.*9\.weight.*0\.bias \(7,\) for \(5,\)"):
        load_weights(network(), state, 3, "x")


def test_a_head_of_another_size_stays_fresh() -> None:
    model = network(classes=3)
    head = model[3].weight.detach().clone()  # type: ignore[union-attr, operator]
    note = load_weights(model, filled(2.0, classes=10), 3, "x.pt")
    assert note is not None
    assert "last layer is fresh" in note
    assert torch.equal(model[3].weight, head)  # type: ignore[arg-type]
    assert (model[0].weight == 2).all()  # type: ignore[union-attr, operator]


def test_a_convolutional_head_of_another_size_stays_fresh() -> None:
    def net(classes: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, classes, 1), nn.AdaptiveAvgPool2d(1))

    assert load_weights(net(3), net(10).state_dict(), 3, "x") is not None
    with pytest.raises(SeepageError, match=r"2\.weight"):
        load_weights(
            nn.Sequential(*net(5), nn.Flatten(), nn.Linear(5, 3)),
            {**net(10).state_dict(), "5.weight": torch.zeros(3, 5), "5.bias": torch.zeros(3)},
            3,
            "x",
        )


def test_weights_without_buffers_leave_them() -> None:
    state = {name: tensor for name, tensor in filled(2.0).items() if "running" not in name and "num_" not in name}
    assert load_weights(model := network(), state, 3, "x") is None
    assert (model[1].running_var == 1).all()  # type: ignore[union-attr, operator]


def test_weights_that_are_not_finite_are_refused() -> None:
    one_of_many = filled(1.0)
    next(iter(one_of_many.values())).flatten()[-1] = float("nan")
    for state in (filled(float("nan")), one_of_many):
        with pytest.raises(SeepageError, match="NaN"):
            load_weights(network(), state, 3, "x")


def test_only_library_models_have_weights_to_fetch() -> None:
    with pytest.raises(SeepageError, match="give a file"):
        pretrained_state("fc2")


def test_weights_that_cannot_be_fetched_name_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", no_network)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", no_network)
    with pytest.raises(SeepageError, match="--weights FILE"):
        pretrained_state("torchvision:resnet18")


def test_a_wide_start_is_uniform_and_repeats() -> None:
    one, two = network(width=200), network(width=200)
    for model in (one, two):
        begin(model, Training(init="wide"), Architecture("mine:net"), 3, seed=4)
    weight = one[0].weight.detach()  # type: ignore[union-attr]
    assert torch.equal(weight, two[0].weight)  # type: ignore[arg-type]
    assert -0.5 <= weight.min() < -0.48  # type: ignore[operator]
    assert 0.48 < weight.max() <= 0.5  # type: ignore[operator]
    assert abs(float(weight.var()) - 1 / 12) < 0.01  # type: ignore[arg-type, operator]
    assert (one[1].weight == 1).all(), "a normalization stays"  # type: ignore[union-attr, operator]


def test_a_start_from_a_file(tmp_path: Path) -> None:
    save_file(filled(3.0), tmp_path / "x.safetensors")
    model = network()
    begin(model, Training(weights=str(tmp_path / "x.safetensors")), Architecture("mine:net"), 3, seed=0)
    assert (model[0].weight == 3).all()  # type: ignore[union-attr, operator]
