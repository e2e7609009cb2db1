"""FedLeak's items that are no plain audit: each function against a slow or closed form."""

import pytest
import torch
from refusals import refusal
from torch import Generator, nn

from seepage import Architecture, Batch, SeepageError, build, record
from seepage.attacks.search.directions import Blended, LookAhead, Plain
from seepage.attacks.search.distances import L1, L2, Cosine
from seepage.audit.simulate.partition import FeatureSkew
from seepage.base.nn import frozen_randomness
from seepage.base.progress import no_progress
from seepage.papers.special.ablation import fedleak_without_cosine, fedleak_without_l1
from seepage.papers.special.convergence import figure_1, figure_6, problem_of, safe_step, similarity
from seepage.papers.special.descent import descend, figure_10
from seepage.papers.special.fifths import Fifth
from seepage.papers.special.sensitivity import figure_9, pearson, sensitivity
from seepage.papers.special.victims import first_case, victims_of

TABLES = {
    "data": {"use": "digits", "size": 8},
    "model": {"use": "mlp3", "hidden": 16},
    "batch": {"size": 1, "count": 2},
    "attack": [{"use": "idlg", "steps": 4}, {"use": "fedleak", "steps": 20, "lr": 0.05}],
}


def test_plain_descent_on_a_parabola_is_a_power() -> None:
    for lr in (1.0, 0.9, 0.3):
        assert descend(Plain(), lr, 5) == pytest.approx([0.5 * (1 - 2 * lr) ** t for t in range(5)])


def test_looking_a_step_ahead_shrinks_the_step_and_equation_13_lengthens_it() -> None:
    # x <- x - lr (0.7 * 2x + 0.3 * 2(x - 2 lr x)): the paper's mixed gradient of 0.4 at the start.
    assert descend(LookAhead(weight=0.3, signed=False), 1.0, 2) == pytest.approx([0.5, 0.5 - 0.4])
    # Uphill by k = 0.5 the gradient is 2 there, so the mixed one is 1.3.
    assert descend(Blended(weight=0.3, k=0.5), 1.0, 2) == pytest.approx([0.5, 0.5 - 1.3])


def test_figure_10_has_a_row_for_each_step_size_and_direction() -> None:
    values = figure_10({}, data="", seed=0, show=no_progress)
    assert len({value.row for value in values}) == 6
    assert [value.ours for value in values if value.row == "step 1, plain"] == [0.5, -0.5] * 3


@pytest.mark.parametrize("group", range(5))
def test_a_fifth_holds_what_feature_skew_gives_that_group(group: int) -> None:
    images = torch.rand(23, 1, 4, 4, generator=Generator().manual_seed(1))
    labels = torch.zeros(23, dtype=torch.int64)
    parts = Fifth(group=group)(labels, 2, generator=Generator().manual_seed(0), inputs=images.__getitem__)
    whole = FeatureSkew(groups=5)(labels, 5, generator=Generator().manual_seed(0), inputs=images.__getitem__)[group]
    assert sorted(torch.cat(parts).tolist()) == whole.tolist()
    assert len(parts) == 2


def test_a_fifth_that_is_not_there_is_refused() -> None:
    with pytest.raises(SeepageError, match=r"group.*0 to 4.*5"):
        Fifth(group=5)


def test_parts_of_the_loss_are_left_out() -> None:
    dummy, target = {"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 0.0])}
    half = {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}  # the larger half of the dummy
    assert float(fedleak_without_cosine().distance(dummy, target)) == float(L1("mean")(*half)) == 2.0
    assert float(fedleak_without_l1().distance(dummy, target)) == pytest.approx(float(Cosine()(*half)))


def test_sensitivity_agrees_with_differences() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        image, label = torch.rand(1, 1, 2, 2, dtype=torch.float64), torch.tensor([1])

    def gradient(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), label).backward()
        found = model[3].weight.grad
        assert isinstance(found, torch.Tensor)
        return found.clone()

    entries, moves = sensitivity(model, image, label, 2)
    assert torch.allclose(entries, gradient(image))
    slow = torch.zeros_like(entries)
    for j in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[j] = 1e-6
        step = step.reshape(image.shape)
        slow += ((gradient(image + step) - gradient(image - step)) / 2e-6).abs()
    assert torch.allclose(moves, slow, rtol=1e-5, atol=1e-9)


def test_sensitivity_needs_a_last_linear_layer() -> None:
    with refusal("no_head"):
        sensitivity(nn.Flatten(), torch.rand(1, 1, 2, 2), torch.tensor([0]), 3)


def test_pearson_is_scipys() -> None:
    from scipy.stats import pearsonr

    a, b = torch.rand(2, 30, generator=Generator().manual_seed(0))
    assert pearson(a, b) == pytest.approx(float(pearsonr(a.numpy(), b.numpy()).statistic), abs=1e-6)


def test_a_safe_step_is_where_descent_on_a_bowl_stops_coming_nearer() -> None:
    curvature, truth, x = torch.tensor([1.0, 3.0]), torch.zeros(2), torch.tensor([1.0, -2.0])
    slope = curvature * x
    edge = safe_step(slope, x, truth)
    assert edge is not None
    for factor, nearer in ((0.99, True), (1.01, False)):
        assert bool((x - factor * edge * slope).norm() < x.norm()) is nearer
    assert safe_step(torch.zeros(2), x, truth) is None


def test_the_truths_own_gradient_is_wholly_alike() -> None:
    model = build(Architecture("fc2", {"hidden": 8}), (1, 4, 4), 3)
    private = Batch(torch.rand(2, 1, 4, 4, generator=Generator().manual_seed(0)), torch.tensor([0, 2]))
    problem = problem_of(record(model, private), L2())
    assert similarity(problem, private.inputs, private.labels) == pytest.approx(1, abs=1e-6)
    assert similarity(problem, 1 - private.inputs, private.labels) < 0.999


def test_victims_are_those_of_an_audit(tmp_path_factory: pytest.TempPathFactory) -> None:
    from seepage.audit.run import record_only
    from seepage.federation.transcript.truth import open_truth

    folder = record_only({**TABLES, "seed": 3}, out=tmp_path_factory.mktemp("victims") / "run")
    kept = open_truth(folder / "private")
    for (_, batch), truth in zip(victims_of(first_case(TABLES, 3)), kept, strict=True):
        assert torch.equal(batch.inputs, truth.inputs)


def test_a_defense_is_not_passed_over() -> None:
    with pytest.raises(SeepageError, match="looks at updates as they are"):
        victims_of(first_case({**TABLES, "defense": [{"use": "sparsify", "keep": 0.5}]}, 0))


def test_figure_1_says_more_of_a_truth_with_more_noise() -> None:
    values = figure_1(TABLES, data="", seed=0, show=no_progress)
    rows = {row: [value.ours for value in values if value.row == row] for row in dict.fromkeys(v.row for v in values)}
    assert len(rows) == 7
    assert all(len(numbers) == 5 for numbers in rows.values())
    noisy = [number for number in rows["noisy truth, gradient distance"] if number is not None]
    assert noisy == sorted(noisy)
    assert noisy[0] > 0


@pytest.mark.slow
def test_figure_6_ends_nearer_than_it_began() -> None:
    tables = {**TABLES, "attack": [{"use": "fedleak", "steps": 60, "lr": 0.05}]}
    values = [
        v.ours or 0 for v in figure_6(tables, data="", seed=0, show=no_progress) if v.row == "gradient similarity"
    ]
    assert -1 <= values[0] < values[-1] <= 1 + 1e-9


def test_figure_9_is_a_correlation() -> None:
    first, share = figure_9({**TABLES, "batch": {"size": 2, "count": 2}}, data="", seed=0, show=no_progress)
    assert share.ours is not None
    assert -1 <= first.ours <= 1
    assert 0.5 < share.ours <= 1
    assert first.facts["examples"] == 4
