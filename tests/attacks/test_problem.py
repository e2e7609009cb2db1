"""Micro-batching gives the numbers of one shot, and both those of finite differences."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from seepage import Architecture, Batch, FedSGD, Update, build, record
from seepage.attacks.search.distances import L1, L2, Cosine, Distance, GaussianKernel
from seepage.attacks.search.problem import Evaluation, Problem
from seepage.federation.types import LocalProblem

SHAPE, CLASSES, N = (1, 6, 6), 4, 7
CONV = Architecture("convnet", {"width": 3, "activation": "gelu"})
FC = Architecture("fc2", {"hidden": 12})
NORMED = Architecture("convnet", {"width": 3, "activation": "gelu", "batch_norm": True})
DISTANCES = [L2(), L1(), Cosine(), GaussianKernel(), L2() + 0.1 * Cosine()]


@dataclass(frozen=True, kw_only=True)
class Counting(FedSGD):
    """FedSGD that notes the size of each batch it is asked about."""

    sizes: list[int] = field(default_factory=list)

    def compute(self, problem: LocalProblem) -> Update:
        self.sizes.append(len(problem.batch))
        return super().compute(problem)


def problem(
    architecture: Architecture, distance: Distance, client: FedSGD | None = None, *, double: bool = False
) -> Problem:
    model = build(architecture, SHAPE, CLASSES)
    inputs = torch.rand((N, *SHAPE), generator=torch.Generator().manual_seed(1))
    if double:
        model, inputs = model.double(), inputs.double()
    transcript = record(model, Batch(inputs, torch.arange(N) % CLASSES), client=client)
    return Problem.of(transcript[0], transcript.knowledge, distance, None)


def candidate(*, soft: bool, double: bool = False) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    inputs, logits = torch.rand((N, *SHAPE), generator=draw), torch.randn((N, CLASSES), generator=draw)
    labels = logits.softmax(-1) if soft else torch.arange(N) % CLASSES
    if double:
        return inputs.double(), labels.double() if soft else labels
    return inputs, labels


def assert_same(chunked: Evaluation, whole: Evaluation, rel: float) -> None:
    assert chunked.value == pytest.approx(whole.value, rel=rel)
    for a, b in ((chunked.by_inputs, whole.by_inputs), (chunked.by_labels, whole.by_labels)):
        if b is None:
            assert a is None
        else:
            assert a.shape == b.shape
            assert float((a - b).norm() / b.norm()) < rel


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
@pytest.mark.parametrize("distance", DISTANCES, ids=repr)
@pytest.mark.parametrize("architecture", [FC, CONV], ids=["fc2", "convnet"])
def test_micro_batches_give_the_numbers_of_one_shot(architecture: Architecture, distance: Distance, soft: bool) -> None:
    whole = problem(architecture, distance)
    expected = whole.evaluate(*candidate(soft=soft))
    for size in (1, 2, 3, 5, 6, 7, 100):  # 7 examples: 2, 3, 5 and 6 leave a rest
        assert_same(replace(whole, microbatch=size).evaluate(*candidate(soft=soft)), expected, 1e-5)


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
@pytest.mark.parametrize("microbatch", [None, 3])
def test_the_slopes_are_those_of_finite_differences(microbatch: int | None, soft: bool) -> None:
    it = replace(problem(CONV, L2() + 0.5 * Cosine(), double=True), microbatch=microbatch)
    inputs, labels = candidate(soft=soft, double=True)
    found = it.evaluate(inputs, labels)
    step = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    numeric = (it.distance_at(inputs + 1e-5 * step, labels) - it.distance_at(inputs - 1e-5 * step, labels)) / 2e-5
    assert float((found.by_inputs * step).sum()) == pytest.approx(numeric, rel=1e-6)
    if soft:
        assert found.by_labels is not None
        turn = torch.randn(labels.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        numeric = (it.distance_at(inputs, labels + 1e-5 * turn) - it.distance_at(inputs, labels - 1e-5 * turn)) / 2e-5
        assert float((found.by_labels * turn).sum()) == pytest.approx(numeric, rel=1e-6)


def test_the_value_is_the_distance_alone_and_zero_at_the_truth() -> None:
    it = problem(CONV, L2(), double=True)
    inputs, labels = candidate(soft=False, double=True)
    assert it.evaluate(inputs, labels).value == pytest.approx(it.distance_at(inputs, labels), rel=1e-12)
    truth = torch.rand((N, *SHAPE), generator=torch.Generator().manual_seed(1)).double()
    assert it.evaluate(truth, torch.arange(N) % CLASSES).value < 1e-25


@pytest.mark.parametrize(("mode", "sizes"), [("train", [N]), ("eval", [3, 3, 1] * 2)])
def test_batch_norm_in_train_mode_falls_back_to_one_shot(mode: str, sizes: list[int]) -> None:
    client = Counting(mode=mode)  # type: ignore[arg-type]
    whole = problem(NORMED, L2(), client)
    expected = whole.evaluate(*candidate(soft=True))
    client.sizes.clear()
    chunked = replace(whole, microbatch=3).evaluate(*candidate(soft=True))
    assert client.sizes == sizes
    assert_same(chunked, expected, 1e-5)


def test_a_chunk_that_holds_the_batch_is_one_shot() -> None:
    client = Counting()
    whole = problem(FC, L2(), client)
    for size, sizes in ((N, [N]), (N - 1, [N - 1, 1] * 2)):
        client.sizes.clear()
        replace(whole, microbatch=size).evaluate(*candidate(soft=False))
        assert client.sizes == sizes


def test_candidates_are_not_touched() -> None:
    inputs, labels = candidate(soft=True)
    kept = inputs.clone(), labels.clone()
    for microbatch in (None, 2):
        replace(problem(FC, L2()), microbatch=microbatch).evaluate(inputs, labels)
    assert torch.equal(inputs, kept[0])
    assert torch.equal(labels, kept[1])
    assert not inputs.requires_grad
    assert not labels.requires_grad
