"""Slopes read from units of one example alone, against the model's own softmax."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Inapplicable
from seepage.attacks.reading.head import lone_slopes
from seepage.base.nn import generator
from seepage.federation.types import Knowledge, Round, Update

CLASSES = 5


def victim(features: Tensor, labels: Tensor, *, seed: int = 0) -> tuple[Round, Knowledge, Tensor]:
    """A linear layer that reads `features` [n, k], its update, and softmax minus label at length 1."""
    from seepage import FedSGD

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(features.shape[1], CLASSES))
    slopes = model(features).softmax(1) - F.one_hot(labels, CLASSES)
    gradient = torch.autograd.grad(F.cross_entropy(model(features), labels), list(model.parameters()))
    params = {name: parameter.detach() for name, parameter in model.named_parameters()}
    seen = Round(0, params, Update(dict(zip(params, gradient, strict=True))), batch_size=len(labels))
    return seen, Knowledge(model, FedSGD(), (features.shape[1],), CLASSES), F.normalize(slopes.detach().double(), dim=1)


def sparse_features(n: int, seed: int, on: float = 0.15, k: int = 600) -> Tensor:
    draw = generator(seed, "lone")
    return torch.rand((n, k), generator=draw) * (torch.rand((n, k), generator=draw) < on)


@pytest.mark.parametrize(("n", "seed"), [(3, 0), (5, 1), (8, 2), (12, 3)])
def test_all_examples_are_found_though_they_outnumber_the_classes(n: int, seed: int) -> None:
    labels = torch.randint(CLASSES, (n,), generator=generator(seed, "labels")).sort().values
    seen, knowledge, slopes = victim(sparse_features(n, seed), labels)
    found = lone_slopes(seen, knowledge)
    assert found.labels.tolist() == labels.tolist()
    nearest = torch.cdist(found.slopes, slopes).min(1)
    assert nearest.values.max() < 1e-4
    assert nearest.indices.sort().values.tolist() == list(range(n))


def test_an_example_without_a_unit_of_its_own_is_not_found() -> None:
    features = sparse_features(6, 4)
    features[0] = features[1:].sum(0) * 0.3  # on wherever any other is
    others = features[1:]
    alone = (others > 0).sum(0) == 1
    labels = torch.tensor([0, 1, 1, 2, 3, 4])
    seen, knowledge, slopes = victim(features, labels)
    found = lone_slopes(seen, knowledge)
    assert alone.any()
    # Where one other is on the first is as well, always at one ratio: directions agree, and are mixtures.
    assert all(float(torch.cdist(slope[None], slopes[:1])) > 1e-2 for slope in found.slopes)


def test_mixtures_at_one_ratio_are_left_out() -> None:
    features = sparse_features(6, 5)
    flat = torch.rand((100,), generator=generator(0, "flat"))
    both = torch.zeros(6, 100)
    both[0], both[1] = 0.7 * flat, 0.3 * flat  # two images, flat in the same places
    labels = torch.tensor([1, 1, 2, 3, 4, 4])
    seen, knowledge, slopes = victim(torch.cat([features, both], 1), labels)
    found = lone_slopes(seen, knowledge)
    assert found.labels.tolist() == labels.tolist()
    assert torch.cdist(found.slopes, slopes).min(1).values.max() < 1e-4


def test_features_without_zeros_have_no_lone_units() -> None:
    labels = torch.tensor([0, 1, 1, 2, 3, 4])
    seen, knowledge, _ = victim(torch.rand((6, 400), generator=generator(0, "dense")) + 0.1, labels)
    assert len(lone_slopes(seen, knowledge).labels) == 0


def test_noise_hides_lone_units_and_invents_none() -> None:
    labels = torch.tensor([0, 1, 1, 2, 3, 4])
    seen, knowledge, slopes = victim(sparse_features(6, 7), labels)
    draw = generator(0, "noise")
    for deviation in (1e-6, 1e-4, 1e-2):
        noisy = {
            name: tensor + deviation * torch.randn(tensor.shape, generator=draw)
            for name, tensor in seen.update.tensors.items()
        }
        found = lone_slopes(replace(seen, update=Update(noisy)), knowledge)
        if len(found.labels):
            assert torch.cdist(found.slopes, slopes).min(1).values.max() < 1e-2
    assert len(found.labels) == 0


def test_it_needs_a_linear_head() -> None:
    seen, knowledge, _ = victim(sparse_features(3, 0), torch.tensor([0, 1, 2]))
    with pytest.raises(Inapplicable, match="no fully connected layer"):
        lone_slopes(seen, replace(knowledge, num_classes=7))
