"""DP-SGD against Opacus and against one example at a time; privacy accounting against Opacus and closed forms."""

import math
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from refusals import refusal
from scipy import optimize, stats
from torch import nn

from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.errors import SeepageError
from seepage.federation.clients import FedSGD
from seepage.federation.defenses import DPSGD
from seepage.federation.defenses.dp_sgd import example_gradients
from seepage.federation.types import Batch, ClientView, LocalProblem, Tensors, Update
from seepage.measure.privacy.accounting import caveats, epsilon, epsilons


def network(norm: type[nn.Module] | None = None) -> nn.Sequential:
    with frozen_randomness(0):
        inner = [] if norm is None else [norm(2, 4) if norm is nn.GroupNorm else norm(4)]
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), *inner, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
        )


def client_of(model: nn.Module, rule: FedSGD | None = None, *, soft: bool = False) -> ClientView:
    params, buffers = state_of(model)
    inputs = torch.rand((5, 1, 8, 8), generator=generator(0, "inputs"))
    labels = torch.tensor([0, 2, 1, 1, 0])
    if soft:
        labels = torch.nn.functional.one_hot(labels, 3).float() * 0.9 + 0.1 / 3
    return ClientView(model, params, Batch(inputs, labels), rule or FedSGD(), buffers)


def one_by_one(client: ClientView) -> list[Tensors]:
    """The slow obvious version: the client's rule on a batch of one."""
    rows = zip(client.batch.inputs, client.batch.labels, strict=True)
    return [
        client.rule(client.model, client.params, Batch(x[None], y[None]), buffers=client.buffers).tensors
        for x, y in rows
    ]


def defended(client: ClientView, defense: DPSGD) -> Tensors:
    update = client.rule(client.model, client.params, client.batch, buffers=client.buffers)
    return defense(update, client, generator=generator(0, "defense")).tensors


CLIENTS = {
    "plain": (None, FedSGD()),
    "group norm": (nn.GroupNorm, FedSGD()),
    "batch norm in eval mode": (nn.BatchNorm2d, FedSGD(mode="eval")),
}


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "soft labels"])
@pytest.mark.parametrize("name", ["plain", "group norm", "batch norm in eval mode"])
def test_example_gradients_are_those_of_batches_of_one(name: str, soft: bool) -> None:
    norm, rule = CLIENTS[name]
    client = client_of(network(norm), rule, soft=soft)
    rows, alone = example_gradients(client, torch.arange(5)), one_by_one(client)
    for key in client.params:
        assert torch.allclose(rows[key], torch.stack([one[key] for one in alone]), atol=1e-6), key


class Renamed(FedSGD):
    """A user's own rule that is separable; nothing but the rule itself says how its gradient is made."""

    def compute(self, problem: LocalProblem) -> Update:
        return super().compute(problem)


def test_a_rule_of_the_users_own_goes_one_by_one_to_the_same_end() -> None:
    known, own = client_of(network()), client_of(network(), Renamed())
    defense = DPSGD(sigma=0.1, clip=0.2)
    one, two = defended(known, defense), defended(own, defense)
    assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)


def test_no_clip_and_no_noise_give_the_clients_own_update() -> None:
    client = client_of(network())
    plain = client.rule(client.model, client.params, client.batch).tensors
    sent = defended(client, DPSGD(sigma=0.0, clip=1e9))
    assert all(torch.allclose(sent[name], plain[name], atol=1e-6) for name in plain)


def test_the_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = client_of(network()), list[Tensors]()
    for chunk in (1, 3, 99):
        monkeypatch.setattr("seepage.federation.defenses.dp_sgd.CHUNK", chunk)
        sent.append(defended(client, DPSGD(sigma=0.3, clip=0.5)))
    for name in client.params:
        assert torch.allclose(sent[0][name], sent[1][name], atol=1e-6)
        assert torch.allclose(sent[0][name], sent[2][name], atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 0.5, 50.0])
def test_the_sum_is_opacus_own(clip: float) -> None:
    """Opacus' per-example gradients and its optimizer's clipping, without noise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        client = client_of(network(nn.GroupNorm))
        model = GradSampleModule(network(nn.GroupNorm))
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        private = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=5)
        torch.nn.functional.cross_entropy(model(client.batch.inputs), client.batch.labels).backward()
        private.pre_step()
        theirs = {name.removeprefix("_module."): p.grad for name, p in model.named_parameters()}
    ours = defended(client, DPSGD(sigma=0.0, clip=clip))
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=1e-6), name


def test_no_example_weighs_more_than_the_clip() -> None:
    """Replacing one example moves the sum by at most twice the clip, however large its gradient is."""
    client = client_of(network())
    wild = client.batch.inputs.clone()
    wild[2] = 1000.0
    other = replace(client, batch=Batch(wild, client.batch.labels))
    bare = DPSGD(sigma=0.0, clip=0.1)
    one, two = defended(client, bare), defended(other, bare)
    moved = torch.cat([5 * (one[name] - two[name]).flatten() for name in one])
    assert 0 < float(moved.norm()) <= 2 * 0.1 * (1 + 1e-5)


def test_batch_norm_in_train_mode_is_refused_with_the_remedy() -> None:
    with refusal("batch_norm", "'eval'"):
        defended(client_of(network(nn.BatchNorm2d)), DPSGD(sigma=1.0))


# --- accounting ----------------------------------------------------------------------------------------------------


def gaussian_delta(eps: float, sigma: float) -> float:
    """Balle and Wang 2018, Theorem 8, with sensitivity 1."""
    a, b = 1 / (2 * sigma), eps * sigma
    return float(stats.norm.cdf(a - b) - math.exp(eps) * stats.norm.cdf(-a - b))


@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("rounds", [1, 9])
def test_epsilon_without_sampling_solves_the_closed_form(sigma: float, rounds: int) -> None:
    root = optimize.brentq(lambda e: gaussian_delta(e, sigma / rounds**0.5) - 1e-5, 1e-6, 100)
    assert epsilon(sigma=sigma, rounds=rounds) == pytest.approx(root, rel=1e-6)


def test_a_schedule_of_noise_adds_up_as_opacus_does() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import RDPAccountant

        theirs = RDPAccountant()
        theirs.history = [(4.0, 1.0, 1), (2.0, 1.0, 1), (1.0, 1.0, 1)]
        bound = theirs.get_epsilon(1e-5, alphas=list(range(2, 65)))
    assert epsilons([4.0, 2.0, 1.0])[-1] == pytest.approx(bound, rel=1e-3)


def test_a_round_without_noise_has_no_epsilon() -> None:
    assert epsilon(sigma=0.0) == math.inf
    spent = epsilons([1.0, 0.0, 1.0])
    assert math.isfinite(spent[0])
    assert spent[1:] == [math.inf, math.inf]


def fedleak_sigma(epsilon: float, delta: float = 1e-5) -> float:
    """FedLeak, Section 6.4 (unnumbered), in units of the clip; it states no sampling and no rounds."""
    return math.sqrt(2 * math.log(1 / delta)) / epsilon


def classical_sigma(epsilon: float, delta: float = 1e-5, *, sensitivity: float = 1.0) -> float:
    """Dwork and Roth 2014, Theorem A.1, proved for epsilon < 1."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_the_papers_sigmas() -> None:
    """FedLeak, Section 6.4; and two of the three epsilons of CPA's Table 3 (its 606.60 would be 605.60)."""
    recipe_of_figure_5 = (4.8e-05, 0.00048, 0.0048, 0.048)
    for stated, sigma in zip((1e5, 1e4, 1e3, 1e2), recipe_of_figure_5, strict=True):
        assert fedleak_sigma(stated) == pytest.approx(sigma, rel=1e-3)
    for sigma, stated in ((0.0001, 6056.00), (0.01, 60.56)):
        assert classical_sigma(stated, 1e-5, sensitivity=1 / 8) == pytest.approx(sigma, rel=1e-4)


def test_the_formulas_of_papers_are_no_accountants() -> None:
    """Below epsilon 1 the classical sigma keeps its promise; at 50 it spends more than it says."""
    assert epsilon(sigma=classical_sigma(0.5)) < 0.5
    assert epsilon(sigma=classical_sigma(50.0)) > 50
    assert epsilon(sigma=fedleak_sigma(100.0)) > 100


def test_an_epsilon_that_promises_nothing_is_doubted() -> None:
    (sentence,) = caveats(epsilon=51.0)
    assert "vacuous" in sentence
    assert caveats(epsilon=50.0) == caveats(epsilon=None) == []


NONSENSE = [
    (epsilon, {"sigma": -1.0}, "sigma >= 0"),
    (epsilon, {"sigma": 1.0, "delta": 0.0}, r"delta in \(0, 1\)"),
    (epsilon, {"sigma": 1.0, "delta": 1.0}, r"delta in \(0, 1\)"),
    (epsilon, {"sigma": 1.0, "rounds": 0}, "rounds >= 1"),
    (epsilons, {"sigmas": [1.0, float("nan")]}, "sigma >= 0"),
]


@pytest.mark.parametrize(("function", "options", "words"), NONSENSE)
def test_nonsense_is_refused(function: type, options: dict[str, float], words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        function(**options)


def test_a_missing_accountant_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SeepageError, match=r"seepage\[privacy\]"):
        epsilon(sigma=1.0)
