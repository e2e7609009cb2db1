"""Partitions: every sample at most once, as asked, and again from the same seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seepage import SeepageError
from seepage.audit.simulate.partition import IID, PARTITIONS, Dirichlet, FeatureSkew, LabelSkew, Partition, QuantitySkew
from seepage.base.nn import generator


def labels_of(n: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (n,), generator=generator(seed, "labels"))


def images(places: Tensor) -> Tensor:
    """Image i is noise of amplitude i: the busier the later."""
    noise = torch.rand((len(places), 1, 6, 6), generator=generator(0, "noise"))
    return noise * places[:, None, None, None] / 1000


def shared(partition: Partition, labels: Tensor, clients: int, seed: int = 0) -> list[Tensor]:
    return partition(labels, clients, generator=generator(seed, "partition"), inputs=images)


PLANS: list[Partition] = [
    IID(),
    LabelSkew(classes=1),
    LabelSkew(classes=3),
    FeatureSkew(groups=3),
    Dirichlet(alpha=0.3),
    Dirichlet(alpha=100.0),
]


@given(plan=st.sampled_from(PLANS), clients=st.integers(4, 20), n=st.integers(300, 500), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_every_sample_belongs_to_exactly_one_client(plan: Partition, clients: int, n: int, seed: int) -> None:
    labels = torch.arange(n) % 4
    parts = shared(plan, labels, clients, seed)
    assert len(parts) == clients
    assert min(len(part) for part in parts) > 0
    assert torch.cat(parts).sort().values.tolist() == list(range(n))
    again = shared(plan, labels, clients, seed)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    # Whole classes can be dealt out alike for two seeds by chance, and not for ten.
    others = [shared(plan, labels, clients, seed + k) for k in range(1, 11)]
    assert any(not torch.equal(torch.cat(parts), torch.cat(other)) for other in others)


@given(clients=st.integers(1, 30), n=st.integers(30, 200))
@settings(deadline=None, max_examples=30)
def test_an_even_partition_is_even(clients: int, n: int) -> None:
    sizes = [len(part) for part in shared(IID(), labels_of(n, 5), clients)]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_label_skew_gives_each_client_its_number_of_classes(classes: int) -> None:
    labels = labels_of(2000, 10)
    parts = shared(LabelSkew(classes=classes), labels, 20)
    assert all(len(labels[part].unique()) == classes for part in parts)
    holders = [sum(bool((labels[part] == label).any()) for part in parts) for label in range(10)]
    assert max(holders) - min(holders) <= 1


def test_quantity_skew_keeps_its_limits() -> None:
    parts = shared(QuantitySkew(low=5, high=20), labels_of(500, 4), 24)
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 5
    assert max(sizes) <= 20
    assert max(sizes) - min(sizes) >= 8
    assert len(torch.cat(parts).unique()) == sum(sizes)


def test_feature_skew_sorts_by_busyness() -> None:
    """Group g of the later images is busier; clients g, g + groups, ... belong to it."""
    parts = shared(FeatureSkew(groups=3), labels_of(300, 4), 6)
    means = [float(part.float().mean()) for part in parts]
    assert means[0] < means[1] < means[2]
    assert means[3] < means[4] < means[5]
    assert int(parts[0].max()) < int(parts[2].min())


def test_a_small_alpha_is_more_uneven_than_a_large_one() -> None:
    labels = torch.arange(4000) % 10

    def unevenness(alpha: float) -> float:
        counts = torch.stack(
            [labels[part].bincount(minlength=10) for part in shared(Dirichlet(alpha=alpha), labels, 10)]
        )
        shares = counts / counts.sum(1, keepdim=True)
        return float((shares - 0.1).abs().sum(1).mean())

    assert unevenness(0.1) > unevenness(1.0) > unevenness(100.0)
    assert unevenness(1e4) < 0.15


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_more_clients_than_samples_are_refused(name: str) -> None:
    with pytest.raises(SeepageError, match="3 samples"):
        shared(PARTITIONS[name](), torch.arange(3), 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dirichlet(alpha=0), "alpha > 0"),
        (lambda: Dirichlet(alpha=-1), "alpha > 0"),
        (lambda: LabelSkew(classes=0), "at least 1 class"),
        (lambda: QuantitySkew(low=9, high=3), "low <= high"),
        (lambda: FeatureSkew(groups=0), "at least 1 group"),
        (lambda: shared(LabelSkew(classes=5), labels_of(50, 3), 4), "have 3"),
        (lambda: shared(LabelSkew(classes=1), torch.tensor([0, 1, 1, 1, 1]), 4), "class 0 has too few samples"),
        (lambda: shared(QuantitySkew(low=50, high=60), labels_of(100, 3), 4), "came to"),
        (lambda: shared(FeatureSkew(groups=5), labels_of(50, 3), 4), "as many clients"),
        (lambda: shared(Dirichlet(alpha=1e-3, least=20), labels_of(100, 3), 4), "no draw of 1000"),
        (lambda: shared(Dirichlet(least=30), labels_of(100, 3), 4), "need more than"),
        (lambda: shared(IID(), labels_of(50, 3), 0), "1 client or more"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(make: object, words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        make()  # type: ignore[operator]


def test_tables_have_no_total_variation() -> None:
    with pytest.raises(SeepageError, match="another partition for tables"):
        FeatureSkew()(
            torch.zeros(50), 5, generator=generator(0, "x"), inputs=lambda places: torch.zeros(len(places), 3)
        )
