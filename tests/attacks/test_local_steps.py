"""Exact images out of local steps: the drift, refusals, resuming, and certificates only where all is explained."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal

from seepage import Architecture, Batch, FedSGD, Inapplicable, Transcript, build, record
from seepage.attacks import GaussNewton, LocalSteps
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.attacks.gauss_newton.local_steps import _CutRound, _Search
from seepage.base.nn import norm
from seepage.federation.clients import FedAvg
from seepage.federation.types import ClientUpdate, Tensors
from seepage.testing import planted_inputs

SHAPE = (1, 8, 8)
CLIENT = FedAvg(lr=0.01, steps=3, batch_size=1)
NETWORK = Architecture("convnet", {"width": 16})
BRIEF = LocalSteps(turns=3, steps=8)


def planted(client: ClientUpdate = CLIENT, count: int = 1, **options: object) -> tuple[Transcript, Batch]:
    """Images of 8 bits behind a client's steps."""
    batch = Batch(to_levels(planted_inputs(count, SHAPE)), torch.arange(count))
    return record(build(NETWORK.with_options(**options), SHAPE, 4), batch, client=client), batch


def seen_of(client: ClientUpdate = CLIENT) -> tuple[_CutRound, Batch]:
    transcript, batch = planted(client)
    return BRIEF.prepare(transcript), batch


def apart(one: Tensors, other: Tensors) -> float:
    return float(norm({name: one[name] - other[name] for name in other}) / norm(other))


def test_the_truth_s_drift_leaves_the_first_gradient() -> None:
    seen, batch = seen_of()
    knowledge, params = seen.attacked.knowledge, seen.attacked.observed.params
    first = FedSGD()(knowledge.model, params, batch).tensors
    drift = seen.drift(batch.inputs, batch.labels)
    corrected = {name: seen.attacked.gradient[name] - tensor for name, tensor in drift.items()}
    assert apart(seen.attacked.gradient, first) > 1e-2
    assert apart(corrected, first) < 1e-4


def test_a_client_of_one_step_does_not_drift() -> None:
    seen, batch = seen_of()
    alone = replace(seen.attacked.knowledge, client=replace(CLIENT, steps=1))
    still = replace(seen, attacked=replace(seen.attacked, knowledge=alone))
    drift = still.drift(batch.inputs, batch.labels)
    assert float(norm(drift)) < 1e-4 * float(norm(seen.attacked.gradient))


def test_at_the_truth_the_equations_hold_and_the_sides_are_right() -> None:
    seen, batch = seen_of()
    equations = seen.equations(batch.inputs, batch.labels)
    with torch.no_grad():
        z = seen.structure.known(seen.network.run(batch.inputs))
    known = equations.known
    assert bool((z[known.on] > 0).all())
    assert bool((z[~known.on & ~known.near] < 1e-4).all())
    assert torch.allclose(known.value[known.on], z[known.on], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    ("client", "count", "options", "name"),
    [
        (FedSGD(), 1, {}, "single_step"),
        (FedAvg(lr=0.01, steps=1, batch_size=1), 1, {}, "single_step"),
        (FedAvg(lr=0.01, steps=2, batch_size=1), 2, {}, "order_unknown"),
        (FedAvg(lr=0.01, steps=2, batch_size=4), 4, {}, "too_few_classes"),
        (CLIENT, 1, {"activation": "leaky_relu"}, "no_relu"),
    ],
)
def test_what_it_refuses(client: ClientUpdate, count: int, options: dict[str, object], name: str) -> None:
    with refusal(name):
        LocalSteps().check(planted(client, count, **options)[0])


@pytest.mark.slow
def test_an_image_comes_back_to_the_last_bit_and_gauss_newton_alone_certifies_none() -> None:
    transcript, batch = planted()
    found = LocalSteps(turns=30, steps=60)(transcript, seed=0)
    assert torch.equal(found.inputs, batch.inputs)
    assert found.certified is not None
    assert bool(found.certified.all())
    assert found.status == "ok"
    try:
        other = GaussNewton(steps=5)(transcript, seed=0)
    except Inapplicable:
        return
    assert other.certified is None or not bool(other.certified.any())


def test_images_that_explain_less_are_not_certified() -> None:
    seen, batch = seen_of()
    search = _Search(seen, 0)
    search.labels = batch.labels
    near = batch.inputs.clone()
    near[0, 0, 0, 0] = (near[0, 0, 0, 0] + 0.1) % 1  # no image of 8 bits
    search._keep([near])
    assert not search.found
    search._keep([to_levels(near)])
    assert not search.found
    search._keep([batch.inputs])
    assert search.found
