"""The polish: its model of the update is the update, its steps are solutions, and it makes a near unmixing exact."""

import pytest
import torch
from torch import Tensor, nn

from seepage import Batch, FedSGD
from seepage.attacks.cpa.ica import difference_fields, unmix
from seepage.attacks.cpa.mixture import Mixture
from seepage.attacks.cpa.refinement import anneal, factored, refine, sensitivity, stages_for
from seepage.attacks.network import NetworkCut
from seepage.base.algebra.lowrank import low_rank
from seepage.base.nn import state_of
from seepage.base.solvers import conjugate_gradients
from seepage.federation.data import load


def photographs(n: int) -> Tensor:
    data = load("photos")
    return data.batch(torch.randperm(len(data), generator=torch.Generator().manual_seed(3))[:n]).inputs


def network(hidden: int = 64, classes: int = 5, *, deep: bool = False) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        middle = [nn.Linear(hidden, 20), nn.ReLU(), nn.Linear(20, classes)] if deep else [nn.Linear(hidden, classes)]
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, hidden), nn.ReLU(), *middle)


def case(n: int, model: nn.Sequential) -> tuple[Mixture, Tensor, Batch, Tensor]:
    """The mixture of a real update, its exact rows, the batch, and the kept right singular vectors."""
    batch = Batch(photographs(n), torch.arange(n) % 5)
    params, buffers = state_of(model)
    update = FedSGD()(model, params, batch).tensors
    kept = low_rank(update["1.weight"], sources=n).keep(n)
    last = [name for name in params if name.endswith("bias")][-1]
    mixture = Mixture(
        columns=kept.columns,
        ones=torch.linalg.lstsq(kept.columns, update["1.bias"].double()[:, None]).solution[:, 0],
        outputs=kept.right @ params["1.weight"].double().T,
        bias=params["1.bias"].double(),
        n=n,
        downstream=NetworkCut(model, "1", params, buffers, (3, 32, 32)),
        error_sum=update[last].double(),
    )
    return mixture, batch.inputs.flatten(1).double() @ kept.right.T, batch, kept.right


@pytest.mark.parametrize("deep", [False, True])
def test_at_the_truth_columns_labels_and_scale_are_right(deep: bool) -> None:
    mixture, truth, batch, _ = case(12, network(deep=deep))
    view = mixture.evaluate(mixture.scaled(-3 * truth))
    torch.testing.assert_close(view.rows, truth, rtol=1e-3, atol=1e-3)
    assert view.certificates.max() < 1e-3
    assert torch.equal(view.labels, batch.labels)


def test_the_tail_is_the_model_behind_the_layer() -> None:
    model, images = network(deep=True), photographs(4)
    downstream = NetworkCut(model, "1", *state_of(model), (3, 32, 32))
    outputs = model[1](images.flatten(1)).double().detach()
    torch.testing.assert_close(downstream.logits(outputs).float(), model(images), rtol=1e-4, atol=1e-5)
    leaf = outputs.float().requires_grad_()
    expected = torch.autograd.grad(model[2:](leaf)[:, 1].sum(), leaf)[0]
    unit = torch.zeros((4, 5), dtype=torch.float64)
    unit[:, 1] = 1
    torch.testing.assert_close(downstream.backward(outputs, unit).float(), expected)
    torch.testing.assert_close(downstream.backward(outputs, torch.stack([unit, 2 * unit]))[1].float(), 2 * expected)
    assert not model[1]._forward_pre_hooks


@pytest.mark.parametrize("deep", [False, True])
def test_a_spoiled_unmixing_becomes_exact(deep: bool) -> None:
    mixture, truth, _, _ = case(12, network(deep=deep))
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = truth + 0.05 * noise * truth.norm(dim=1, keepdim=True) / 12**0.5
    before = mixture.evaluate(mixture.scaled(start)).certificates
    view = refine(mixture, start, stages=anneal(0.5, 1e-4, 20, 0.0))
    assert before.median() > 0.05
    assert view.certificates.max() < 1e-3
    assert (view.rows - truth).norm() / truth.norm() < 1e-3


def test_the_image_prior_carries_a_full_layer() -> None:
    """24 images in 64 units, from the blind start: with the prior exact."""
    mixture, truth, _, right = case(24, network())
    fields = difference_fields(right, (3, 32, 32)).float()
    start = unmix(fields, draw=torch.Generator().manual_seed(0)).double()
    view = refine(mixture, start, fields=fields, stages=stages_for(24 / 64))
    assert (view.certificates < 1e-2).double().mean() > 0.9
    nearest = torch.cdist(view.rows, truth).min(1).values / truth.norm(dim=1).mean()
    assert (nearest < 1e-3).double().mean() > 0.9


def test_it_never_returns_worse_than_it_was_given() -> None:
    mixture, truth, _, _ = case(8, network())
    rough = torch.randn(truth.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    start = mixture.evaluate(mixture.scaled(rough)).certificates.clamp(max=1).sum()
    assert refine(mixture, rough, stages=anneal(0.5, 1e-3, 5, 0.0)).certificates.clamp(max=1).sum() <= start


def test_sensitivity_is_what_a_moved_image_would_change() -> None:
    mixture, truth, batch, _ = case(4, network())
    view = mixture.evaluate(truth)
    among = torch.tensor([True, False, False, False])
    found = sensitivity(mixture, view, 0.5, among)
    assert found[1:].isinf().all()
    changes = []
    for j in (1, 2, 3):
        for sign in (1, -1):
            moved = truth.clone()
            moved[0] = truth[0] + sign * 0.5 * (truth[j] - truth[0]) / (truth[j] - truth[0]).norm()
            outputs = moved @ mixture.outputs + mixture.bias
            errors = mixture.downstream.probabilities(outputs)
            errors[torch.arange(4), batch.labels] -= 1
            now = mixture.downstream.backward(outputs, errors)[0]
            changes.append(float((now - view.computed[0]).norm() / view.computed[0].norm()))
    assert float(found[0]) == pytest.approx(min(changes), rel=1e-6)
    nearest = (truth[1:] - truth[0]).norm(dim=1).argmin()
    alone = sensitivity(mixture, view, 0.5, among, others=1)
    assert float(alone[0]) == pytest.approx(min(changes[2 * nearest : 2 * nearest + 2]), rel=1e-6)


def test_conjugate_gradients_and_factors_against_numpys_solve() -> None:
    draw = torch.Generator().manual_seed(0)
    square = torch.randn((6, 6), generator=draw, dtype=torch.float64)
    matrix, target = square @ square.T + torch.eye(6, dtype=torch.float64), torch.randn(6, generator=draw).double()
    found = conjugate_gradients(lambda x: matrix @ x, target, lambda x: x, steps=50, tolerance=1e-12)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, target))
    lower = factored(matrix)
    torch.testing.assert_close(lower @ lower.T, matrix)


def test_the_fuller_the_layer_the_slower_the_schedule() -> None:
    assert len(stages_for(0.3)) < len(stages_for(0.7)) < len(stages_for(0.95))
    spreads = [spread for spread, _ in stages_for(0.3)]
    assert spreads == sorted(spreads, reverse=True)
