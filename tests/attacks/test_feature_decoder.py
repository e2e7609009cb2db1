"""Head-only federations: features are read of any body; images and members through it need its weights."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import Tensor, nn

from seepage import Batch, Update, attack, exposure, observe, record
from seepage.attacks import FeatureDecoder
from seepage.attacks.generative.features import _read
from seepage.attacks.membership import LayerSpan, MatchedFilter, SpanOrFilter, infer_membership
from seepage.attacks.reading.head import head_features
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.types import Transcript
from seepage.testing.attack import planted_inputs

N, CLASSES, SHAPE = 3, 12, (1, 8, 8)


def network(*, norm: bool = False) -> nn.Sequential:
    """A frozen body, with or without a batch norm, and a head."""
    torch.manual_seed(0)
    between = [nn.BatchNorm2d(8)] if norm else []
    body = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), *between, nn.ReLU(), nn.Flatten())
    return nn.Sequential(body.requires_grad_(False), nn.Linear(128, CLASSES)).train()


def some(n: int, seed: int = 0) -> Batch:
    return Batch(planted_inputs(n, SHAPE, seed), torch.arange(n) % CLASSES)


def with_images(seen: SimulatedTranscript, images: Tensor) -> Transcript:
    return replace(seen, knowledge=replace(seen.knowledge, auxiliary=images, known=frozenset({"auxiliary"})))


def of_private_body(batch: Batch) -> tuple[SimulatedTranscript, nn.Module]:
    """A client's head alone, trained on a body that never leaves it; and that body."""
    model = network().requires_grad_(True)
    own = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in own[0].parameters():
            parameter.mul_(-0.7)
    F.cross_entropy(own(batch.inputs), batch.labels).backward()
    sent = {f"1.{name}": p.grad for name, p in own[1].named_parameters() if p.grad is not None}
    body = [name for name, _ in model.named_parameters() if name.startswith("0.")]
    return observe(model, Update(sent), SHAPE, batch_size=len(batch), personal=body), own[0]


@pytest.mark.parametrize("norm", [False, True])
def test_it_comes_nearer_than_the_nearest_image_of_the_attackers_own(norm: bool) -> None:
    seen = with_images(record(network(norm=norm), some(N)), some(300, seed=7).inputs)
    both = [attack(seen, FeatureDecoder(guess=how, width=8, training=200)) for how in ("decoder", "nearest")]
    decoded, nearest = ((one.inputs - some(N).inputs).square().mean((1, 2, 3)) for one in both)
    assert both[0].labels is not None
    assert both[0].labels.tolist() == [0, 1, 2]
    assert (decoded < nearest / 2).all()
    assert both[0].certified is None
    assert "on 30 images" in both[0].notes[0]
    assert "no picture" not in both[0].notes[0]


def test_the_attackers_images_are_read_as_the_client_ran_the_network() -> None:
    """Batch norm in train mode takes its statistics of as many images as the client had."""
    model, images = network(norm=True), some(7, seed=7).inputs
    seen = record(model, some(N))
    read = _read(seen.knowledge, seen[0], "1", images, N)
    with torch.no_grad():
        parts = [copy.deepcopy(model)[0](images[part]) for part in ([0, 1, 2], [3, 4, 5], [4, 5, 6])]
    assert torch.allclose(read, torch.cat([*parts[:2], parts[2][2:]]), atol=1e-6)


def test_features_that_hold_no_picture_are_said_to_hold_none() -> None:
    """A body that reads one pixel: the nearest image and the decoder's are no better than a flat one."""
    model = network()
    with torch.no_grad():
        model[0][0].weight.zero_()
        model[0][0].weight[:, :, 1, 1] = 1e-3
    model[0] = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU()).requires_grad_(False)
    with torch.no_grad():
        model[0][1].weight[:, 1:] = 0
        model[0][1].weight[:, 0] = torch.linspace(-1, 1, 128)
        model[0][1].bias.copy_(torch.linspace(-0.5, 0.5, 128).flip(0))
    noise = torch.rand((200, *SHAPE), generator=torch.Generator().manual_seed(1))
    found = attack(with_images(record(model, some(2)), noise), FeatureDecoder(width=4, training=60))
    assert "no picture" in found.notes[0]


def test_of_a_private_body_features_are_read_and_nothing_goes_through_it() -> None:
    batch, others = some(N), some(60, seed=7)
    seen, body = of_private_body(batch)
    found = head_features(seen[0], seen.knowledge)
    assert found.known.all()
    assert torch.allclose(found.features.float(), body(batch.inputs), atol=1e-4)
    assert exposure(seen).of("features")[0].evidence == {"examples": N, "width": 128}
    with refusal("own_weights"):
        attack(with_images(seen, others.inputs), "feature_decoder")
    for test in (MatchedFilter(), LayerSpan(), SpanOrFilter()):
        with refusal("own_weights"):
            infer_membership(seen, test, batch, others)


def test_members_are_read_off_layers_in_front_of_a_private_head() -> None:
    """What those layers read depends on nothing that was not seen."""
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES)), some(N)
    own = copy.deepcopy(model)
    nn.init.normal_(own[3].weight)
    F.cross_entropy(own(batch.inputs), batch.labels).backward()
    sent = {f"1.{name}": p.grad for name, p in own[1].named_parameters() if p.grad is not None}
    head = ["3.weight", "3.bias"]
    seen = observe(model, Update(sent), SHAPE, batch_size=N, personal=head)
    public = Batch(torch.rand((300, *SHAPE), generator=torch.Generator().manual_seed(1)), torch.arange(300) % CLASSES)
    candidates = Batch(torch.cat([batch.inputs, some(N, seed=3).inputs]), torch.cat([batch.labels, batch.labels]))
    for test in (LayerSpan(), SpanOrFilter()):
        found = infer_membership(seen, test, candidates, public)
        assert found.identified(0.01)[:N].all()
        assert found.statistics[:N].min() > found.statistics[N:].max()
