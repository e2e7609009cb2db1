"""Features solved from the head's gradient against those of the model's own forward pass."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, FedSGD, GaussianNoise, Inapplicable, build, record
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.attacks.reading.head.equations import HeadEquations
from seepage.attacks.reading.head.sparse import unmix
from seepage.base.nn import generator
from seepage.federation.types import Knowledge, Round, Update

SHAPE = (3, 16, 16)


def network(classes: int, steps: int = 0, *, width: int = 8, bias: bool = True, activation: str = "relu") -> nn.Module:
    """A small convolutional network, fresh or trained on photographs for a while."""
    options = {"width": width, "activation": activation}
    model = build(Architecture("convnet", options), SHAPE, classes, seed=1)
    if not bias:
        model[-1] = nn.Linear(model[-1].in_features, classes, bias=False)  # type: ignore[index, union-attr]
    data = seepage.federation.data.load("photos", size=16)
    batch = data.batch(data.train[: 32 * 20])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        part = slice(32 * (step % 20), 32 * (step % 20) + 32)
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs[part]), batch.labels[part] % classes).backward()
        optimizer.step()
    return model


def photographs(n: int, classes: int, seed: int = 0, *, distinct: bool = False) -> Batch:
    """Photographs that no network here was trained on, in the order of their labels."""
    data = seepage.federation.data.load("photos", size=16)
    draw = generator(seed, "head")
    inputs = data.batch(data.private[torch.randperm(len(data.private), generator=draw)[:n]]).inputs
    labels = torch.randperm(classes, generator=draw)[:n] if distinct else torch.randint(classes, (n,), generator=draw)
    return Batch(inputs, labels.sort().values)


def seen_of(model: nn.Module, batch: Batch, classes: int) -> tuple[Round, Knowledge]:
    transcript = record(model, batch, client=FedSGD(mode="eval"))
    return transcript[0], replace(transcript.knowledge, num_classes=classes)


def features_of(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model[:-1](inputs).double()  # type: ignore[index, operator]


def errors(found: HeadFeatures, truth: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Relative error of each example, and its root mean square error over `noise`; best order within a label."""
    assert found.labels.tolist() == labels.tolist()
    away = torch.cdist(found.features, truth)
    places = linear_sum_assignment((away + 1e9 * (labels[:, None] != labels)).numpy())[1]
    error = (found.features - truth[places]).norm(dim=1)
    return error / truth[places].norm(dim=1), error / truth.shape[1] ** 0.5 / found.noise


@pytest.mark.parametrize("steps", [0, 40])
@pytest.mark.parametrize(("n", "classes"), [(1, 10), (4, 10), (8, 10), (9, 10), (16, 24)])
def test_features_are_exact_whatever_labels_repeat(n: int, classes: int, steps: int) -> None:
    model, batch = network(classes, steps), photographs(n, classes)
    seen, knowledge = seen_of(model, batch, classes)
    found = head_features(seen, knowledge, batch.labels)
    relative, standard = errors(found, features_of(model, batch.inputs), batch.labels)
    assert found.doubt is None
    assert found.known.all()
    assert relative.max() < 1e-3
    assert standard.max() < 6


@pytest.mark.parametrize(("steps", "factor"), [(0, 1), (40, 1), (40, 0.01)], ids=["start", "trained", "clipped"])
def test_labels_are_read_off_the_solution(steps: int, factor: float) -> None:
    model, batch = network(10, steps), photographs(7, 10, seed=3)
    seen, knowledge = seen_of(model, batch, 10)
    assert len(batch.labels.unique()) < 7
    found = head_features(times(seen, factor), knowledge)
    assert errors(found, features_of(model, batch.inputs), batch.labels)[0].max() < 1e-3
    assert found.doubt is None


def test_probabilities_and_signal_are_those_of_the_model() -> None:
    model, batch = network(10, 40), photographs(6, 10, distinct=True)
    seen, knowledge = seen_of(model, batch, 10)
    found = head_features(seen, knowledge, batch.labels)
    inner = features_of(model, batch.inputs).float().requires_grad_()
    logits = model[-1](inner)  # type: ignore[index, operator]
    slope = torch.autograd.grad(F.cross_entropy(logits, batch.labels), inner)[0]
    torch.testing.assert_close(found.signal.float(), slope, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(found.probabilities.float(), logits.softmax(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "count", "classes"),
    [({"bias": False}, 6, 10), ({"bias": False, "steps": 40}, 6, 10), ({"width": 32}, 48, 100)],
    ids=["no bias", "trained, no bias", "more than a dense solve could take"],
)
def test_any_head_and_any_batch(options: dict[str, Any], count: int, classes: int) -> None:
    model, batch = network(classes, **options), photographs(count, classes)
    seen, knowledge = seen_of(model, batch, classes)
    found = head_features(seen, knowledge, batch.labels)
    assert found.doubt is None
    assert errors(found, features_of(model, batch.inputs), batch.labels)[0].max() < 1e-3


def times(seen: Round, share: float) -> Round:
    """The round with its whole update multiplied, as clipping to a norm does."""
    return replace(seen, update=Update({name: share * tensor for name, tensor in seen.update.tensors.items()}))


@pytest.mark.parametrize("share", [0.003, 0.4, 30.0])
@pytest.mark.parametrize(("activation", "steps"), [("relu", 0), ("relu", 40), ("gelu", 0), ("sigmoid", 0)])
def test_what_an_update_was_multiplied_by_is_solved_for(activation: str, steps: int, share: float) -> None:
    model, batch = network(10, steps, activation=activation), photographs(4, 10, seed=5, distinct=True)
    seen, knowledge = seen_of(model, batch, 10)
    found = head_features(times(seen, share), knowledge, batch.labels)
    relative, standard = errors(found, features_of(model, batch.inputs), batch.labels)
    assert found.share == pytest.approx(share, rel=1e-4)
    assert found.known.all()
    assert relative.max() < 1e-3
    assert standard.max() < 6
    assert head_features(seen, knowledge, batch.labels).share == 1


def test_without_a_bias_nothing_is_called_known_of_a_clipped_update() -> None:
    """The scale of each example's features is then told by the slopes alone, which have another scale."""
    model, batch = network(10, bias=False), photographs(6, 10)
    seen, knowledge = seen_of(model, batch, 10)
    found = head_features(times(seen, 0.1), knowledge, batch.labels)
    wrong = errors(found, features_of(model, batch.inputs), batch.labels)[0] > 1e-3
    assert not found.known[wrong].any()


@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "leaky_relu", "sigmoid"])
def test_features_without_zeros_are_solved_from_the_softmax(activation: str, distinct: bool) -> None:
    model, batch = network(10, activation=activation), photographs(4, 10, seed=5, distinct=distinct)
    seen, knowledge = seen_of(model, batch, 10)
    found = head_features(seen, knowledge, batch.labels)
    relative, standard = errors(found, features_of(model, batch.inputs), batch.labels)
    # Features of a fresh network with sigmoids are nearly the same for all inputs, so that those of one label cannot be
    # distinguished behind rounding; then the solution must say so.
    assert found.doubt is None or (activation == "sigmoid" and not distinct)
    assert relative.max() < (1e-3 if found.doubt is None else 1e-2)
    assert standard.max() < 6


def confident(model: nn.Module, batch: Batch, logit: float) -> None:
    """Change the head so that the first example's label leads by `logit`."""
    inner = features_of(model, batch.inputs)
    with torch.no_grad():
        # A direction of the features that the first example alone has.
        own = torch.linalg.pinv(inner)[:, 0].float()
        model[-1].weight[batch.labels[0]] += logit * own  # type: ignore[index, union-attr, operator]


@pytest.mark.parametrize("logit", [2.0, 5.0, 8.0, 11.0, 13.0, 15.0, 18.0, 25.0])
def test_a_confident_example_is_as_noisy_as_it_says_and_spoils_no_other(logit: float) -> None:
    model, batch = network(10, 20), photographs(6, 10, seed=2, distinct=True)
    confident(model, batch, logit)
    seen, knowledge = seen_of(model, batch, 10)
    found = head_features(seen, knowledge, batch.labels)
    relative, standard = errors(found, features_of(model, batch.inputs), batch.labels)
    assert relative[1:].max() < 1e-4
    assert found.known[1:].all()
    assert relative[0] < 1e-2 or not found.known[0]
    assert found.known[0] or found.doubt is not None
    assert standard[0] < 8 or relative[0] > 0.5  # what is lost in rounding altogether has no shape to compare
    assert bool(found.known[0]) or logit > 5


@pytest.mark.slow
def test_noise_is_the_error_that_is_made() -> None:
    standard = []
    for steps in (0, 60):
        model = network(10, steps)
        for seed in range(8):
            batch = photographs(8, 10, seed=seed)
            seen, knowledge = seen_of(model, batch, 10)
            found = head_features(seen, knowledge, batch.labels)
            standard.append(errors(found, features_of(model, batch.inputs), batch.labels)[1])
    spread = torch.cat(standard)
    assert 0.2 < spread.median() < 2
    assert (spread < 4).double().mean() > 0.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_coarse_update_makes_noisy_features_and_says_so(dtype: torch.dtype) -> None:
    model, batch = network(10, 40), photographs(4, 10, seed=1, distinct=True)
    seen, knowledge = seen_of(model, batch, 10)
    coarse = {name: tensor.to(dtype).float() for name, tensor in seen.update.tensors.items()}
    found = head_features(replace(seen, update=Update(coarse)), knowledge, batch.labels)
    relative, standard = errors(found, features_of(model, batch.inputs), batch.labels)
    assert 0.2 < standard.median() < 5
    assert ((relative < 5e-3) | ~found.known).all()
    assert (found.noise / found.features.square().mean(1).sqrt()).max() > 1e-4


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("what", ["random", "other labels", "fewer", "more", "shuffled", "clipped rows"])
def test_a_wrong_solution_is_never_called_known(what: str, activation: str) -> None:
    model, batch = network(10, 20, activation=activation), photographs(5, 10, seed=4, distinct=True)
    seen, knowledge = seen_of(model, batch, 10)
    labels, tensors = batch.labels, dict(seen.update.tensors)
    names = list(tensors)[-2:]
    draw = generator(0, "null")
    if what == "other labels":
        labels = (labels + 1) % 10
    elif what == "fewer":
        labels = labels[:4]
    elif what == "more":
        labels = torch.cat([labels, labels[:1]])
    for name in names:
        if what == "random":
            tensors[name] = torch.randn(tensors[name].shape, generator=draw)
        elif what == "shuffled":
            tensors[name] = tensors[name][torch.randperm(10, generator=draw)]
        elif what == "clipped rows":
            tensors[name] = tensors[name].clamp(min=-1e-3)
    try:
        found = head_features(replace(seen, update=Update(tensors)), knowledge, labels)
    except Inapplicable:
        return
    assert found.doubt is not None
    assert not found.known.any()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(0, 10**6), st.floats(0.3, 0.8))
def test_zeros_alone_unmix_made_up_features(n: int, seed: int, zeros: float) -> None:
    """No network and no label: features with zeros, any slopes; each row found is one example's, up to its scale."""
    draw = generator(seed, "zeros")
    features = torch.rand((n, 300), generator=draw, dtype=torch.float64)
    features *= torch.rand((n, 300), generator=draw) > zeros
    slopes = torch.randn((n, 9), generator=draw, dtype=torch.float64)
    gradient, sums = slopes.T @ features, slopes.sum(0)
    equations = HeadEquations.of(torch.zeros_like(gradient), torch.zeros(9).double(), gradient, sums, n)
    unmixed = unmix(equations.inner, equations.deviation, None, generator(1, "zeros"), equations.column_if_consistent)
    assert unmixed[1] == n
    rows = F.normalize(unmixed[0] @ equations.inner, dim=1)
    similar = rows @ F.normalize(features, dim=1).T
    assert similar.max(1).values.min() > 1 - 1e-9
    assert similar.argmax(1).sort().values.tolist() == list(range(n))


def test_features_need_a_class_left_over_a_head_and_a_gradient() -> None:
    model, batch = network(5), photographs(5, 5)
    seen, knowledge = seen_of(model, batch, 5)
    with refusal("too_few_classes", 5):
        head_features(seen, knowledge, batch.labels)
    with refusal("no_batch_size", "--batch-size"):
        head_features(replace(seen, batch_size=None), knowledge)
    zero = replace(seen, update=Update({name: torch.zeros_like(t) for name, t in seen.update.tensors.items()}))
    with refusal("zero_gradient"):
        head_features(zero, knowledge, batch.labels[:3])
    headless = nn.Sequential(nn.Conv2d(3, 5, 16), nn.Flatten())
    with refusal("no_head", 5):
        head_features(*seen_of(headless, Batch(batch.inputs[:2], batch.labels[:2]), 5))


def test_examples_that_cannot_be_told_apart_are_not_made_up() -> None:
    model, batch = network(10), photographs(4, 10, distinct=True)
    twice = Batch(batch.inputs, torch.tensor([1, 1, 2, 3]))
    with torch.no_grad():
        for parameter in model[-1].parameters():  # type: ignore[index, union-attr]
            parameter.zero_()  # all slopes of one label are the same
    seen, knowledge = seen_of(model, twice, 10)
    try:
        found = head_features(seen, knowledge, twice.labels)
    except Inapplicable:
        return
    assert found.doubt is not None
    assert not found.known[:2].any()


@pytest.mark.parametrize("known", [1, 2, 3])
def test_a_batch_size_below_the_rank_is_contradicted_in_words(known: int) -> None:
    """It was blamed on the softmax: "the softmax contradicts the solution"."""
    model, batch = network(10), photographs(4, 10)
    seen, knowledge = seen_of(model, batch, 10)
    with refusal("wrong_batch_size", 4, known, "--batch-size"):
        head_features(replace(seen, batch_size=known), knowledge)


def test_noise_is_no_sign_of_more_examples() -> None:
    model, batch = network(10), photographs(4, 10)
    transcript = record(model, batch, client=FedSGD(mode="eval"), defense=GaussianNoise(sigma=0.05, clip=1.0))
    found = head_features(transcript[0], replace(transcript.knowledge, num_classes=10), batch.labels)
    assert found.doubt is not None
    assert not found.known.any()
