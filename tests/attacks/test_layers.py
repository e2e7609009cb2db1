"""Priors on layers against the same sums written out; and that hooks come off whatever happens."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, GradientMatching, SeepageError, Transcript, build, record
from seepage.attacks import fedleak, grad_inversion
from seepage.attacks.search.distances import L2
from seepage.attacks.search.layers import ActivationSize, BatchNormStatistics, LayerPrior, Seen
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.parameters import Pixels
from seepage.base.nn import captured_calls
from seepage.federation.types import Round
from seepage.testing import planted_inputs
from seepage.testing.watch import Changed, same, snapshot

SHAPE, CLASSES, N = (1, 6, 6), 4, 5
LABELS = torch.arange(N) % CLASSES


class Small(nn.Module):
    """A network in which every inner value is at hand, and one activation module is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.act = nn.GELU()
        self.head = nn.Linear(48, CLASSES)

    def inner(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        before = self.conv(inputs)
        once = self.act(self.norm(before))
        twice = self.act(once)
        return before, once, twice, self.head(twice.flatten(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)[-1]


def victim(*, double: bool = True) -> Transcript:
    torch.manual_seed(0)
    model = Small()
    with torch.no_grad():
        model.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        model.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    inputs = planted_inputs(N, SHAPE)
    if double:
        model, inputs = model.double(), inputs.double()
    return record(model, Batch(inputs, LABELS), client=FedSGD(mode="eval"), known=["labels"])


def candidate() -> Tensor:
    return torch.rand((N, *SHAPE), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def matching(*priors: LayerPrior, microbatch: int | None = None) -> GradientMatching:
    return GradientMatching(
        distance=L2(), optimizer=Adam(lr=0.05), steps=4, priors=priors, project=True, microbatch=microbatch
    )


def penalty(prior: LayerPrior, inputs: Tensor) -> float:
    """What the prior adds to the objective."""
    transcript = victim()
    with_it = matching(prior).objective_at(transcript, inputs, LABELS)
    return with_it - matching().objective_at(transcript, inputs, LABELS)


def inner_of(inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    model = victim().knowledge.model.eval()
    assert isinstance(model, Small)
    with torch.no_grad():
        return model.inner(inputs)


def test_activation_size_is_the_mean_or_sum_of_every_use_of_every_activation() -> None:
    _, once, twice, _ = inner_of(candidate())
    means = sum(float(x.abs().mean()) for x in (once, twice))
    sums = sum(float(x.abs().sum()) / N for x in (once, twice))
    assert penalty(ActivationSize(0.3), candidate()) == pytest.approx(0.3 * means, rel=1e-9)
    assert penalty(ActivationSize(0.3, reduce="sum"), candidate()) == pytest.approx(0.3 * sums, rel=1e-9)


def test_without_activation_modules_inner_layers_stand_in() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Conv2d(1, 2, 3), b=nn.Flatten(), c=nn.Linear(8, 3), d=nn.Linear(3, 2)))
    assert ActivationSize(1.0).layers(model) == ["a", "c"]
    assert ActivationSize(1.0).layers(build(Architecture("resnet", {"width": 2}), (1, 32, 32), 10))[0] == "stem.2"


def test_batch_norm_statistics_are_compared_with_the_running_ones() -> None:
    before = inner_of(candidate())[0].detach()
    buffers = victim()[0].buffers
    mean = before.transpose(0, 1).flatten(1).mean(1) - buffers["norm.running_mean"]
    variance = before.transpose(0, 1).flatten(1).var(1, correction=0) - buffers["norm.running_var"]
    expected = 0.7 * float(mean.norm() + variance.norm())
    assert penalty(BatchNormStatistics(0.7), candidate()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("prior", [ActivationSize(0.5), BatchNormStatistics(0.5)], ids=repr)
def test_slopes_are_those_of_finite_differences(prior: LayerPrior) -> None:
    transcript, x = victim(), candidate()
    objective = matching(prior)._objective(transcript[0], transcript.knowledge)
    found, _ = objective.at(x, LABELS)
    assert found.value == pytest.approx(objective.value_at(x, LABELS), rel=1e-9)
    step = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    numeric = (objective.value_at(x + 1e-6 * step, LABELS) - objective.value_at(x - 1e-6 * step, LABELS)) / 2e-6
    assert float((found.by_inputs * step).sum()) == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize("microbatch", [1, 2, 3])
def test_a_mean_over_examples_may_be_taken_in_micro_batches(microbatch: int) -> None:
    transcript = victim()
    for prior in (ActivationSize(0.5), ActivationSize(0.5, reduce="sum")):
        attacks = (matching(prior), matching(prior, microbatch=microbatch))
        objectives = [it._objective(transcript[0], transcript.knowledge) for it in attacks]
        whole, parts = (objective.at(candidate(), LABELS)[0] for objective in objectives)
        assert parts.value == pytest.approx(whole.value, rel=1e-9)
        assert torch.allclose(parts.by_inputs, whole.by_inputs, rtol=1e-7, atol=1e-12)


def test_a_statistic_of_the_whole_batch_refuses_micro_batches() -> None:
    with pytest.raises(SeepageError, match="microbatch"):
        matching(BatchNormStatistics(0.5), microbatch=2)


def test_models_without_what_a_prior_needs_are_refused_by_name() -> None:
    plain = record(build(Architecture("fc2"), SHAPE, CLASSES), Batch(planted_inputs(1, SHAPE), torch.tensor([0])))
    with refusal("no_batch_norm"):
        grad_inversion().check(plain)
    bare = Changed(victim(), lambda observed: replace(observed, buffers={}))
    with refusal("not_sent", "'norm.running_mean'"):
        matching(BatchNormStatistics(1.0)).check(bare)
    linear = record(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)), Batch(planted_inputs(1, SHAPE), LABELS[:1]))
    with refusal("no_activations", 0):
        fedleak().check(linear)


@dataclass(frozen=True)
class Broken(LayerPrior):
    """Fails in the middle of an evaluation."""

    def layers(self, model: nn.Module) -> list[str]:
        return ["", "conv", "act"]

    def __call__(self, seen: Seen, labels: Tensor, observed: Round) -> Tensor:
        raise KeyError("broken")


def test_hooks_come_off_even_when_the_evaluation_fails() -> None:
    transcript = victim()
    before = snapshot(transcript.knowledge.model)
    with pytest.raises(KeyError, match="broken"):
        matching(Broken())(transcript, seed=0)
    for what, state in snapshot(transcript.knowledge.model).items():
        assert same(state, before[what]), what


def test_calls_are_captured_for_the_block_alone() -> None:
    model = Small()
    with captured_calls(model, ["act", "conv"]) as calls:
        model(torch.rand(2, *SHAPE))
        assert {name: len(made) for name, made in calls.items()} == {"conv": 1, "act": 2}
        assert calls["conv"][0].output.shape == (2, 3, 4, 4)
        calls.clear()
    model(torch.rand(2, *SHAPE))
    assert not calls


def test_the_search_follows_a_layer_prior() -> None:
    """A weight that drowns the distance makes the activations small."""
    transcript = victim(double=False)
    it = matching(ActivationSize(1e4))
    start = GradientMatching(distance=L2(), optimizer=Adam(lr=1e-9), steps=1)
    far = replace(it, steps=60, parameters=Pixels(start_from="uniform"))(transcript, seed=0)
    near = replace(start, parameters=Pixels(start_from="uniform"))(transcript, seed=0)
    assert penalty(ActivationSize(1.0), far.inputs.double()) < 0.9 * penalty(ActivationSize(1.0), near.inputs.double())
