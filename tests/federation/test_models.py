"""Networks by name: shapes, repeatable weights, and one sentence for what cannot be built."""

import random
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seepage import MODELS, Architecture, SeepageError, build
from seepage.federation.models import Normalize, trusted
from seepage.federation.models.factories import make_own

SHAPE, CLASSES = (3, 32, 32), 5
TEXT = ("gpt", "text_encoder")
NAMES = [*(name for name in MODELS if name not in TEXT), "torchvision:resnet18", "timm:resnet10t", "our_models:small"]


def small(input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, hidden), nn.Linear(hidden, num_classes))


def ready() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 5))


@pytest.fixture(autouse=True)
def _our_models(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("our_models")
    things = {"small": small, "ready": ready, "instance": ready(), "number": 3, "text": lambda shape, classes: "no"}
    for name, thing in things.items():
        setattr(module, name, thing)
    monkeypatch.setitem(sys.modules, "our_models", module)


def made(use: str, seed: int = 0, **options: object) -> nn.Module:
    return build(Architecture(use, options), SHAPE, CLASSES, seed=seed)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("use", NAMES)
def test_a_network_gives_one_number_per_class_for_each_example(use: str) -> None:
    model = made(use).eval()
    with torch.no_grad():
        output = model(torch.rand(2, *SHAPE))
    assert output.shape == (2, CLASSES)
    assert output.isfinite().all()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("use", NAMES)
def test_its_weights_follow_the_seed_and_no_global_state_moves(use: str) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    first = weights(made(use))
    torch.rand(3)
    again, other = weights(made(use)), weights(made(use, seed=1))
    torch.manual_seed(0)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (str(np.random.get_state()), random.getstate())


def test_building_leaves_torchs_generator_where_it_was() -> None:
    before = torch.get_rng_state()
    for use in NAMES:
        made(use)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("use", "shape", "shapes"),
    [
        ("fc2", (5,), [(256, 5), (256,), (5, 256), (5,)]),
        ("mlp3", (2, 3), [(256, 6), (256,), (256, 256), (256,), (5, 256), (5,)]),
        (
            "convnet",
            (1, 9, 7),
            [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (64, 64, 3, 3), (64,), (5, 64 * 3 * 2), (5,)],
        ),
        (
            "lenet",
            (3, 32, 32),
            [(12, 3, 5, 5), (12,), (12, 12, 5, 5), (12,), (12, 12, 5, 5), (12,), (5, 768), (5,)],
        ),
        (
            "cnn6",
            (3, 32, 32),
            [(12, 3, 4, 4), (36, 12, 3, 3), (36, 36, 3, 3), (36, 36, 3, 3), (64, 36, 3, 3), (128, 64, 3, 3), (5, 3200)],
        ),
    ],
)
def test_layers_are_those_of_the_papers(use: str, shape: tuple[int, ...], shapes: list[tuple[int, ...]]) -> None:
    model = build(Architecture(use), shape, CLASSES)
    assert [tuple(parameter.shape) for parameter in model.parameters()] == shapes


def test_lenet_is_spread_as_in_the_dlg_paper() -> None:
    wide = weights(made("lenet"))
    assert 0.49 < float(wide.abs().max()) <= 0.5
    assert float(wide.std()) == pytest.approx(1 / 12**0.5, rel=0.02)


def test_convnet_can_have_batch_norm_with_fresh_statistics() -> None:
    model = made("convnet", batch_norm=True, activation="leaky_relu", width=8)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [8, 16, 16]
    assert all(not norm.running_mean.any() and norm.training for norm in norms)  # type: ignore[union-attr]


def test_normalisation_centres_the_value_range() -> None:
    layer = Normalize()
    assert layer(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-2, 0, 2]
    assert "mean=0.5" in repr(layer)


def test_a_factory_without_arguments_and_one_with_options() -> None:
    assert isinstance(made("our_models:ready"), nn.Sequential)
    assert made("our_models:small", hidden=7)[1].out_features == 7  # type: ignore[index]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown": ("fc3", {}, r"unknown model 'fc3'; did you mean 'fc2'\?"),
    "nothing like it": ("???", {}, "Known: .*convnet, .*module:factory"),
    "torchvision name": ("torchvision:resnet81", {}, "did you mean 'resnet18'"),
    "segmentation": ("torchvision:fcn_resnet50", {}, "unknown torchvision model"),
    "timm name": ("timm:rsnet18", {}, "did you mean 'resnet18'"),
    "option name": ("fc2", {"hiden": 3}, "did you mean 'hidden'"),
    "option choice": ("convnet", {"activation": "swish"}, "one of 'relu', 'leaky_relu', 'gelu', 'sigmoid'"),
    "negative width": ("convnet", {"width": -4}, "width must be at least 1, got -4"),
    "torchvision option": ("torchvision:resnet18", {"colour": 1}, "refuses the options"),
    "pretrained weights": ("torchvision:resnet18", {"weights": "DEFAULT"}, "refuses the options"),
    "timm option": ("timm:resnet10t", {"colour": 1}, "refuses the options"),
    "timm weights": ("timm:resnet10t", {"pretrained": True}, "refuses the options"),
    "timm pickle": ("timm:resnet10t", {"checkpoint_path": "weights.pth"}, "may be a pickle"),
    "no module": ("no_such_module:f", {}, "cannot import 'no_such_module'"),
    "no such thing": ("our_models:smal", {}, "did you mean small"),
    "instance with options": ("our_models:instance", {"a": 1}, "is a Sequential, not a factory with options"),
    "number": ("our_models:number", {}, "is a int, not a factory"),
    "no network": ("our_models:text", {}, "returned a str, not a torch.nn.Module"),
    "own option": ("our_models:small", {"hiden": 3}, "did you mean 'hidden'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_built_is_said_in_a_sentence(name: str) -> None:
    use, options, message = WRONG[name]
    with pytest.raises(SeepageError, match=message):
        made(use, **options)


@pytest.mark.parametrize("use", ["convnet", "lenet"])
def test_a_table_does_not_fit_a_convolution(use: str) -> None:
    with pytest.raises(SeepageError, match=r"\(16,\)"):
        build(Architecture(use), (16,), 3)


@pytest.mark.parametrize("use", ["torchvision:resnet18", "timm:resnet10t"])
def test_library_networks_want_three_channels(use: str) -> None:
    with pytest.raises(SeepageError, match=r"--set data\.channels=3"):
        build(Architecture(use), (1, 32, 32), 3)


def test_only_own_and_library_code_is_trusted() -> None:
    assert all(trusted(Architecture(use)) for use in [*MODELS, "torchvision:resnet18", "timm:resnet10t"])
    dotted = ["our_models:small", "os:system", "torchvision.models:resnet18"]
    assert not any(trusted(Architecture(use)) for use in dotted)


def test_lazy_layers_learn_their_shape_before_anything_is_recorded() -> None:
    def lazy(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.LazyLinear(num_classes))

    module = types.ModuleType("lazy_models")
    module.lazy = lazy  # type: ignore[attr-defined]
    sys.modules["lazy_models"] = module
    model = build(Architecture("lazy_models:lazy"), (1, 4, 4), 3)
    assert [tuple(p.shape) for p in model.parameters()] == [(7, 16), (7,), (3, 7), (3,)]
    assert model.training


def test_residual_networks_have_the_published_numbers_of_parameters() -> None:
    """FedLeak's footnote 3 gives ResNet-10's on MNIST; torchvision's own networks are the others' oracle."""
    from torchvision import models as torchvision_models

    def count(model: nn.Module) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(build(Architecture("resnet"), (1, 28, 28), 10)) == 4_902_090
    for depth in (18, 34):
        own = build(Architecture("resnet", {"depth": depth, "stem": "large"}), (3, 64, 64), 1000)
        assert count(own) == count(getattr(torchvision_models, f"resnet{depth}")(weights=None))


def test_a_residual_network_computes_what_torchvisions_does() -> None:
    from torchvision.models import resnet18

    own = build(Architecture("resnet", {"depth": 18, "stem": "large"}), (3, 64, 64), 7).eval()
    theirs = resnet18(weights=None, num_classes=7).eval()
    state = [tensor for name, tensor in own.state_dict().items() if not name.startswith("normalize.")]
    assert [t.shape for t in state] == [t.shape for t in theirs.state_dict().values()]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), state, strict=True)))
    inputs = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        normalized = own.normalize(inputs)
        assert torch.allclose(own(inputs), theirs(normalized), atol=1e-5)


def test_options_of_a_residual_network_reach_every_block() -> None:
    options = {"width": 4, "activation": "sigmoid", "batch_norm": False}
    model = build(Architecture("resnet", options), (3, 32, 32), 10)
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(nn.Sigmoid) == 1 + 2 * 4
    assert nn.ReLU not in kinds
    assert nn.BatchNorm2d not in kinds
    assert all(module.bias is not None for module in model.modules() if isinstance(module, nn.Conv2d))
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("use", TEXT)
def test_a_text_network_takes_tokens_and_its_weights_follow_the_seed(use: str) -> None:
    own = {"vocabulary": 50} if use == "text_encoder" else {}  # the classes of a language model are its tokens
    spec = Architecture(use, {"width": 16, "heads": 2, **own})
    first, again, other = (build(spec, (8,), 50, seed=seed) for seed in (0, 0, 1))
    with torch.no_grad():
        output = first.eval()(torch.randint(50, (2, 8)))
    assert len(output) == 2
    assert output.isfinite().all()
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


def test_a_module_given_as_it_is_is_copied() -> None:
    module = ready()
    copied = make_own(module, {}, SHAPE, CLASSES, "m")
    assert copied is not module
    assert torch.equal(weights(copied), weights(module))
    with torch.no_grad():
        copied[1].bias += 1
    assert not torch.equal(weights(copied), weights(module)), "training the copy leaves the user's module alone"
