"""The Cocktail Party Attack on packaged photographs: exact, certified, never falsely, and clear where it cannot."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

from seepage import Batch, FedAvg, GaussianNoise, Inapplicable, Reconstruction, attack, build, record
from seepage.attacks.base import SingleRound
from seepage.attacks.cpa import fast
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.network import NetworkCut
from seepage.attacks.network.mixing_layer import find_layer
from seepage.attacks.spear import Spear
from seepage.base.nn import forward, in_mode, state_of
from seepage.federation.data import load
from seepage.federation.models import fc2, mlp3
from seepage.federation.types import Architecture, ClientUpdate, LocalProblem, Tensors, Transcript, Update
from seepage.measure.metrics.align import align
from seepage.measure.metrics.image import psnr
from seepage.testing import planted_inputs

SHAPE = (3, 32, 32)


def photographs(n: int, seed: int = 0) -> Batch:
    data = load("photos")
    return data.batch(torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:n])


def model(hidden: int = 128, kind: str = "fc2", shape: tuple[int, ...] = SHAPE, classes: int = 13) -> nn.Module:
    return build(Architecture(kind, {"hidden": hidden}), shape, classes)


def quality(found: Reconstruction, batch: Batch) -> tuple[Tensor, Tensor]:
    """PSNR of each example, and whether its guess is certified."""
    matched = align(found.inputs, batch.inputs, ambiguity=found.ambiguity)
    sure = torch.zeros(len(batch), dtype=torch.bool)
    if found.certified is not None:
        there = matched.matched
        sure[there] = found.certified[matched.permutation[there]]
    return psnr(matched.guesses, batch.inputs), sure


@pytest.mark.slow
@pytest.mark.parametrize(("n", "hidden"), [(1, 64), (2, 64), (16, 64), (32, 128)])
def test_photographs_come_back_exactly_and_certified(n: int, hidden: int) -> None:
    batch = photographs(n)
    found = attack(record(model(hidden), batch), CocktailParty())
    decibels, sure = quality(found, batch)
    assert found.ambiguity == {"order"}
    assert decibels.min() > 60
    assert sure.all()
    assert sorted(found.labels.tolist()) == sorted(batch.labels.tolist())


def test_a_deeper_network_and_grey_images() -> None:
    batch = Batch(photographs(16).inputs.mean(1, keepdim=True), photographs(16).labels)
    found = attack(record(model(96, "mlp3", (1, 32, 32)), batch), CocktailParty())
    decibels, sure = quality(found, batch)
    assert (decibels > 40).double().mean() > 0.9
    assert not (sure & (decibels < 40)).any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["waves", "noise"])
def test_a_few_inputs_without_any_structure_come_back_from_the_models_zeros_alone(kind: str) -> None:
    shape = (3, 16, 16)
    noise = torch.rand((4, *shape), generator=torch.Generator().manual_seed(1))
    batch = Batch(noise if kind == "noise" else planted_inputs(4, shape, 0), torch.arange(4))
    found = attack(record(model(96, shape=shape), batch), CocktailParty())
    decibels, sure = quality(found, batch)
    assert decibels.min() > 60
    assert sure.all()


def test_random_starts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts from one and the same rotation would cost time and find nothing new."""
    starts, draw = list[Tensor](), fast.random_rotation

    def noted(size: int, generator: torch.Generator, like: Tensor) -> Tensor:
        starts.append(draw(size, generator, like))
        return starts[-1]

    monkeypatch.setattr(fast, "random_rotation", noted)
    monkeypatch.setattr(fast, "ENOUGH", 2.0)  # never enough
    monkeypatch.setattr(fast, "RANDOM_STARTS", 3)
    batch = Batch(torch.rand((3, 1, 6, 6), generator=torch.Generator().manual_seed(1)), torch.arange(3))
    attack(record(model(24, shape=(1, 6, 6)), batch), CocktailParty())
    assert len(starts) == 3
    for start, other in combinations(starts, 2):
        assert (start - other).abs().max() > 0.1


def test_the_unmixing_alone_is_near() -> None:
    batch = photographs(24)
    found = attack(record(model(), batch), CocktailParty(polish=False))
    decibels, _ = quality(found, batch)
    assert found.objective is None
    assert found.certified is None
    assert 20 < decibels.mean() < 60


@pytest.mark.full
@given(
    kind=st.sampled_from(["smooth", "noise", "levels", "near"]),
    hidden=st.sampled_from([8, 32, 48, 64]),
    n=st.integers(1, 12),
    activation=st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.GELU]),
    spread=st.sampled_from([1.0, 5.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_no_certificate_is_false(
    kind: str, hidden: int, n: int, activation: type[nn.Module], spread: float, seed: int
) -> None:
    shape, draw = (1, 12, 12), torch.Generator().manual_seed(seed)
    noise = torch.rand((n, *shape), generator=draw)
    images = {
        "smooth": planted_inputs(n, shape, seed),
        "noise": noise,
        "levels": (3 * noise).round() / 3,
        "near": 0.9 * noise[:1] + 0.1 * noise,
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(144, hidden), activation(), nn.Linear(hidden, 4))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= spread
    batch = Batch(images, torch.randint(0, 4, (n,), generator=draw))
    try:
        found = attack(record(net, batch), CocktailParty())
    except Inapplicable:
        return
    decibels, sure = quality(found, batch)
    assert not (sure & (decibels < 40)).any()


@pytest.mark.slow
def test_nothing_is_certified_when_the_update_is_not_what_the_model_would_send() -> None:
    batch = photographs(8)
    seen = record(model(), batch)
    wrong = {name: p + 0.05 * p.std() * torch.randn_like(p) for name, p in seen[0].params.items()}
    found = attack(SingleRound(seen.knowledge, replace(seen[0], params=wrong)), CocktailParty())
    decibels, sure = quality(found, batch)
    assert not (sure & (decibels < 40)).any()


@dataclass(frozen=True)
class Epochs(ClientUpdate):
    """Two local steps on the whole batch."""

    lr: float = 0.05

    def compute(self, problem: LocalProblem) -> Update:
        model, batch, now = problem.model, problem.batch, dict(problem.params)
        for _ in range(2):
            leaves = {name: p.detach().requires_grad_() for name, p in now.items()}
            with in_mode(model, training=True):
                logits = forward(model, leaves, batch.inputs, buffers=problem.buffers)
            slopes = torch.autograd.grad(self.loss_of(logits, batch.labels), list(leaves.values()))
            now = {name: p.detach() - self.lr * g for (name, p), g in zip(leaves.items(), slopes, strict=True)}
        return Update.from_states(problem.params, now)

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        return {name: tensor / (-2 * self.lr) for name, tensor in update.tensors.items()}

    def separable(self, model: nn.Module) -> bool:
        return True


def test_a_difference_of_weights_is_polished_but_not_certified() -> None:
    batch = photographs(16)
    seen = record(model(), batch, client=Epochs())
    rough, _ = quality(attack(seen, CocktailParty(polish=False)), batch)
    found = attack(seen, CocktailParty())
    decibels, _ = quality(found, batch)
    assert decibels.mean() > rough.mean() + 5
    assert found.certified is None


def test_an_unknown_batch_size_is_read_from_the_spectrum() -> None:
    batch = photographs(10)
    seen = record(model(), batch)
    found = attack(SingleRound(seen.knowledge, replace(seen[0], batch_size=None)), CocktailParty())
    assert len(found) == 10
    assert "the spectrum says 10 examples" in found.notes
    assert quality(found, batch)[0].min() > 60


def test_without_a_bias_scale_and_sign_are_open() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 96, bias=False), nn.ReLU(), nn.Linear(96, 13))
    batch = photographs(12)
    found = attack(record(net, batch), CocktailParty())
    assert found.ambiguity == {"order", "sign", "scale"}
    assert found.objective is None
    assert any("scale and sign are not known" in note for note in found.notes)
    alike = torch.corrcoef(torch.cat([found.inputs.flatten(1), batch.inputs.flatten(1)]))[:12, 12:].abs()
    assert alike.max(0).values.mean() > 0.9


def test_noise_is_noticed_and_nothing_is_certified() -> None:
    batch = photographs(8)
    seen = record(model(256), batch, defense=GaussianNoise(sigma=1e-3, clip=1.0))
    found = attack(seen, CocktailParty())
    decibels, sure = quality(found, batch)
    assert not (sure & (decibels < 40)).any()
    assert any("noisy" in note for note in found.notes)


def sent_as(seen: Transcript, change: Callable[[Tensor], Tensor]) -> Transcript:
    """The same transcript with every tensor of its update changed on the way."""
    tensors = {name: change(tensor) for name, tensor in seen[0].update.tensors.items()}
    return SingleRound(seen.knowledge, replace(seen[0], update=Update(tensors)))


def in_levels(tensor: Tensor, levels: int) -> Tensor:
    step = tensor.abs().max() / levels
    return (tensor / step).round() * step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda tensor: tensor.half().float(), 60),
        (lambda tensor: tensor.bfloat16().float(), 40),
        (lambda tensor: in_levels(tensor, 127), 40),
        (lambda tensor: in_levels(tensor, 7), 20),
        (torch.sign, 10),
    ],
    ids=["float16", "bfloat16", "8 bits", "4 bits", "1 bit"],
)
def test_a_quantized_update_gives_less_and_nothing_false(change: Callable[[Tensor], Tensor], least: float) -> None:
    batch = photographs(8)
    found = attack(sent_as(record(model(), batch), change), CocktailParty())
    decibels, sure = quality(found, batch)
    assert decibels.mean() > least
    assert not (sure & (decibels < 40)).any()
    if least < 40:
        assert any("noisy" in note for note in found.notes)
        assert not sure.any()


def test_a_gradient_of_lower_rank_than_the_batch_is_not_vouched_for() -> None:
    batch = photographs(12)
    seen = record(model(), batch)
    whole = seen[0].update.tensors
    left, values, right = torch.linalg.svd(whole["2.weight"], full_matrices=False)
    poor = Update({**whole, "2.weight": (left[:, :3] * values[:3]) @ right[:3]})
    found = attack(SingleRound(seen.knowledge, replace(seen[0], update=poor)), CocktailParty())
    _, sure = quality(found, batch)
    assert not sure.any()


@pytest.mark.slow
def test_examples_without_loss_are_counted_as_not_identifiable() -> None:
    batch, net = photographs(12), model()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch.inputs[:6]), batch.labels[:6]).backward()
        optimizer.step()
    found = attack(record(net, batch), CocktailParty())
    decibels, sure = quality(found, batch)
    lost = 12 - len(found)
    assert lost > 0
    assert f"{lost} with next to no loss drown in rounding and are not identifiable" in found.notes
    assert (decibels[6:] > 40).all()
    assert not (sure & (decibels < 40)).any()


def test_an_unknown_batch_may_be_larger_than_the_layer() -> None:
    seen = record(model(8), photographs(12))
    found = attack(SingleRound(seen.knowledge, replace(seen[0], batch_size=None)), CocktailParty())
    assert any("or more: the layer has no more than 8 active units" in note for note in found.notes)


@pytest.mark.slow
def test_a_copy_in_the_batch_is_one_example_and_nothing_false_is_said() -> None:
    batch = photographs(8)
    twice = Batch(torch.cat([batch.inputs, batch.inputs[:1]]), torch.cat([batch.labels, batch.labels[:1]]))
    found = attack(record(model(), twice), CocktailParty())
    decibels, sure = quality(found, twice)
    assert len(found) <= 8
    assert not (sure & (decibels < 40)).any()


def test_the_published_method_runs_and_leaves_sign_and_scale_open() -> None:
    batch = photographs(6)
    found = attack(record(model(), batch), CocktailParty(mode="published", steps=300, lr=1e-2))
    assert found.inputs.shape == batch.inputs.shape
    assert found.ambiguity == {"order", "sign", "scale"}
    assert found.history
    fast, _ = quality(attack(record(model(), batch), CocktailParty(polish=False)), batch)
    assert fast.mean() > quality(found, batch)[0].mean()


def embedding_net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24 * 256, 48),
            nn.ReLU(),
            nn.Linear(48, 13),
        )


@pytest.mark.parametrize(("n", "least"), [(4, 0.9999), (12, 0.5)])
def test_embeddings_behind_a_relu_come_back(n: int, least: float) -> None:
    """Few are polished to exact; embeddings of photographs by an untrained network are too alike for many."""
    net, batch = embedding_net(), photographs(n)
    found = attack(record(net, batch), CocktailParty())
    with torch.no_grad():
        truth = torch.nn.functional.normalize(net[:4](batch.inputs), dim=1)
    cosines = torch.nn.functional.normalize(found.inputs, dim=1) @ truth.T
    assert found.space == "feature"
    assert cosines.max(0).values.min() > least
    assert found.objective is not None
    if least > 0.9:
        assert found.certified.all()
    if found.certified is not None:
        assert bool((cosines.max(1).values[found.certified] > 0.9999).all())


def test_without_a_bias_and_a_relu_the_sign_of_embeddings_is_open_too() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 24, 3),
            nn.Tanh(),
            nn.AvgPool2d(3),
            nn.Flatten(),
            nn.Linear(2400, 48, bias=False),
            nn.Linear(48, 13),
        )
    batch = photographs(6)
    found = attack(record(net, batch), CocktailParty())
    assert found.ambiguity == {"order", "sign", "scale"}
    assert "scale and sign are not known" in found.notes  # embeddings are not stretched to the range of images


def test_labels_of_embeddings_come_in_their_order() -> None:
    net, batch = embedding_net(), photographs(4)
    found = attack(record(net, batch), CocktailParty())
    with torch.no_grad():
        truth = torch.nn.functional.normalize(net[:4](batch.inputs), dim=1)
    whose = (torch.nn.functional.normalize(found.inputs, dim=1) @ truth.T).argmax(1)
    assert found.labels.tolist() == batch.labels[whose].tolist()
    assert attack(record(net, batch), CocktailParty(polish=False)).labels is None  # the model is not asked


@pytest.mark.parametrize(
    ("net", "options", "name", "values"),
    [
        (fc2(SHAPE, 13, hidden=8), {}, "too_many_examples", [9, 8]),
        (embedding_net(), {"layer": "0"}, "wrong_layer", ["'0'", "Conv2d"]),
        (embedding_net(), {"layer": "9"}, "wrong_layer", ["'9'"]),
        (nn.Sequential(nn.Conv2d(3, 13, 32), nn.Flatten()), {}, "no_linear_layer", []),
    ],
)
def test_what_it_cannot_do_is_said_in_one_sentence(
    net: nn.Module, options: dict[str, str], name: str, values: list[object]
) -> None:
    with refusal(name, *values):
        attack(record(net, photographs(9)), CocktailParty(**options))  # type: ignore[arg-type]


def test_a_zero_gradient_is_refused() -> None:
    net = fc2(SHAPE, 13, hidden=16)
    with torch.no_grad():
        net[2].bias.fill_(-1e6)
    with refusal("zero_gradient", "2.weight"):
        attack(record(net, photographs(4)), CocktailParty())


def test_dead_units_and_a_deep_network_do_no_harm() -> None:
    net = mlp3(SHAPE, 13, hidden=96)
    with torch.no_grad():
        net[2].bias[:20] = -1e3
    found = attack(record(net, photographs(10)), CocktailParty())
    decibels, sure = quality(found, photographs(10))
    assert not (sure & (decibels < 40)).any()


class Reshaped(nn.Module):
    """A network that cannot be run on no image: it reshapes to (n, -1)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.first = nn.Linear(8 * 256, 48)
        self.last = nn.Linear(48, 13)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images).relu()
        hidden = self.first(features.reshape(len(features), -1)).relu()
        logits: Tensor = self.last(hidden)
        return logits


@pytest.mark.parametrize("net", [embedding_net(), Reshaped()], ids=["plain", "reshaped"])
def test_the_network_behind_the_layer_is_read_without_an_image(net: nn.Module) -> None:
    layer, behind = ("4", net[5:]) if isinstance(net, nn.Sequential) else ("first", nn.Sequential(nn.ReLU(), net.last))
    downstream = NetworkCut(net, layer, *state_of(net), (3, 32, 32))
    outputs = torch.randn((5, 48), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        expected = behind.double()(outputs)
        behind.float()
    torch.testing.assert_close(downstream.logits(outputs).detach(), expected, rtol=1e-6, atol=1e-6)


class Tokens(nn.Module):
    """Patches as tokens through PyTorch's own encoder, whose fused kernel calls no inner layer and has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, 4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), 2)
        self.head = nn.Linear(16, 13)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(images).flatten(2).transpose(1, 2)).mean(1))


def test_of_a_transformer_the_first_layer_that_reads_one_vector_per_example_is_attacked() -> None:
    torch.manual_seed(0)
    seen = record(Tokens(), photographs(2))
    assert find_layer(seen.knowledge, seen[0], None).name == "head"
    assert attack(seen, CocktailParty()).space == "feature"
    with refusal("not_called_once", "head"):
        attack(seen, CocktailParty(layer="encoder.layers.0.linear1"))
    with refusal("no_relu", "'head'"):
        attack(seen, Spear())


@pytest.mark.slow
def test_behind_one_step_of_adam_entries_are_weighed_by_their_errors() -> None:
    """Large entries are all but hidden there, and a low rank that takes all alike is far off: 17 to 30 dB."""
    batch = photographs(8)
    sent = record(model(64), batch, client=FedAvg(lr=1e-3, optimizer="adam", steps=1))
    decibels, sure = quality(attack(sent, CocktailParty()), batch)
    assert (decibels > 40).double().mean() > 0.8
    assert not (sure & (decibels < 40)).any()
