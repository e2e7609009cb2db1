"""Members by the spans of inner layers: texts, adapters, heads; behind SGD and Adam; and in whose batch one was."""

import copy

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from small_adapter import network
from tests.attacks.test_membership import CLASSES, SHAPE, joined, small_resnet, some
from tests.attacks.test_membership_more import assert_calibrated, perceptron
from torch import nn

from seepage import Batch, GaussianNoise, build, observe, record
from seepage.attacks.membership import (
    LayerSpan,
    MatchedFilter,
    Membership,
    MembershipInference,
    MembershipTest,
    SpanOrFilter,
    infer_membership,
    whose,
)
from seepage.attacks.membership.matched_filter import Whitening, _Filter
from seepage.base.nn import next_tokens
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedSGD, gradient_behind
from seepage.federation.measured import Step
from seepage.federation.types import Transcript, Update

WORDS, LENGTH = 50, 6


def texts(n: int, seed: int) -> Batch:
    ids = torch.randint(WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, next_tokens(ids))


def gpt() -> nn.Module:
    return build(Spec("gpt", {"width": 64, "depth": 2}), (LENGTH,), WORDS, seed=0)


def stepped(
    model: nn.Module, batch: Batch, step: Step, optimizer: type[torch.optim.Optimizer], lr: float
) -> Transcript:
    """One step between two checkpoints."""
    own = copy.deepcopy(model)
    learned = {name: p for name, p in own.named_parameters() if p.requires_grad}
    F.cross_entropy(own(batch.inputs), batch.labels).backward()
    optimizer(learned.values(), lr=lr).step()  # type: ignore[call-arg]
    before = {name: p.detach() for name, p in model.named_parameters() if name in learned}
    moved = {name: p.detach() - before[name] for name, p in learned.items()}
    return observe(
        model, gradient_behind(before, Update(moved, "delta"), step, {})[0], tuple(batch.inputs.shape[1:]),
        batch_size=len(batch), client=FedSGD(mode="eval"),
    )  # fmt: skip


def adapters() -> nn.Module:
    torch.manual_seed(0)
    return network(SHAPE, CLASSES)


def head() -> nn.Module:
    model = small_resnet()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in dict(list(model.named_parameters())[-2:]))
    return model


STEPS = {"SGD": (Step.sgd(0.1), torch.optim.SGD, 0.1), "Adam": (Step.adam(1e-3), torch.optim.Adam, 1e-3)}


@pytest.mark.parametrize("optimizer", STEPS)
@pytest.mark.parametrize("federation", ["text", "adapters", "head"])
def test_members_are_identified_in_every_kind_of_federation(federation: str, optimizer: str) -> None:
    """Two examples behind one step between checkpoints: all members, and of 40 others hardly one."""
    make, draw = {"text": (gpt, texts), "adapters": (adapters, some), "head": (head, some)}[federation]
    model, private = make().eval(), draw(2, 1)
    seen = stepped(model, private, *STEPS[optimizer])
    found = infer_membership(seen, LayerSpan(), joined(private, draw(40, 2)), draw(400, 3))
    # Of Adam's step a head's large gradients leave little but their signs.
    level = 0.05 if (federation, optimizer) == ("head", "Adam") else 0.01
    hits = found.identified(level)
    assert bool(hits[:2].all())
    assert int(hits[2:].sum()) <= 40 * level + 3


@pytest.mark.full
def test_p_values_of_texts_and_of_the_larger_of_two_hold_on_nulls() -> None:
    model = gpt()
    for test in (LayerSpan(), SpanOrFilter()):
        draws = []
        for s in range(4):
            seen = record(model, texts(4, 10 * s))
            draws.append(infer_membership(seen, test, texts(150, 500 + s), texts(200, 100 + s)).p_values)
        assert_calibrated(torch.cat(draws))


@pytest.mark.parametrize("test", [LayerSpan(), SpanOrFilter()])
def test_the_same_seed_gives_the_same_bits_and_the_model_stays_as_it_was(test: MembershipTest) -> None:
    model, candidates, public = gpt(), texts(3, 5), texts(40, 3)
    seen = record(model, texts(4, 1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    one, again = (infer_membership(seen, test, candidates, public, seed=7) for _ in range(2))
    assert torch.equal(one.statistics, again.statistics)
    assert torch.equal(one.calibration, again.calibration)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_more_vectors_than_rows_leave_a_part_of_each() -> None:
    """16 texts of 6 tokens, in layers 64 wide: mixtures, and members stand out all the same."""
    private, hits, nulls = texts(16, 1), 0, 0
    found = infer_membership(record(gpt(), private), LayerSpan(), joined(private, texts(100, 2)), texts(400, 3))
    hits, nulls = (int(part.sum()) for part in found.identified(0.01).split([16, 100]))
    assert hits >= 8
    assert nulls <= 5


def test_noise_hides_and_one_who_knows_of_it_is_not_fooled() -> None:
    """Noise far above the gradient: p-values stay uniform, whether the attacker knows of it or not."""
    for known in ([], ["defense"]):
        seen = record(perceptron(), some(8, 1), defense=GaussianNoise(clip=1.0, sigma=10.0), known=known)
        found = infer_membership(seen, LayerSpan(), joined(some(8, 1), some(300, 2)), some(400, 3))
        assert int(found.identified(0.01)[:8].sum()) <= 2
        assert_calibrated(found.p_values[8:])


def test_the_larger_of_two_is_one_where_the_other_does_not_apply() -> None:
    alone = nn.Sequential(nn.Conv2d(1, CLASSES, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    seen, private = record(alone, some(1, 1)), some(1, 1)
    with refusal("no_linear_layer"):
        infer_membership(seen, LayerSpan(), private, some(200, 3))
    found = infer_membership(seen, SpanOrFilter(), private, some(200, 3))
    filtered = infer_membership(seen, MatchedFilter(), private, some(200, 3))
    assert found.p_values <= 2 * filtered.p_values
    assert SpanOrFilter().adapts(record(alone, private, defense=GaussianNoise(sigma=0.1), known=["defense"]).knowledge)


def test_an_adapter_whose_b_is_zero_says_nothing_by_its_span() -> None:
    """In the first round the gradient of A is zero, and that of B has as many rows as it reads entries."""
    torch.manual_seed(0)
    model = network(SHAPE, CLASSES, deviation=0.0)
    with refusal("full_span"):
        infer_membership(record(model, some(8, 1)), LayerSpan(), some(2, 5), some(100, 3))


def test_local_steps_move_the_vectors_a_little() -> None:
    private = texts(4, 1)
    seen = record(gpt(), private, client=FedAvg(lr=0.05, steps=4))
    found = infer_membership(seen, LayerSpan(), joined(private, texts(60, 2)), texts(400, 3))
    assert bool(found.identified(0.01)[:4].all())


def test_a_candidate_is_of_one_client_or_nobodys() -> None:
    """Four clients at the same weights: each member is its own client's; of 600 strangers one in a hundred is named."""
    model, public, strangers = perceptron(), some(400, 3), some(600, 9)
    batches = [some(4, 20 + k) for k in range(4)]
    seen = [record(model, batch) for batch in batches]
    inference = MembershipInference(LayerSpan(), seen[0], public)
    found, client = whose([inference.of(one[0], joined(*batches, strangers)) for one in seen])
    assert client[:16].tolist() == [k for k in range(4) for _ in range(4)]
    assert bool(found.identified(0.01)[:16].all())
    assert_calibrated(found.p_values[16:])
    with pytest.raises(SeepageError, match="same candidates"):
        whose([found, Membership(torch.ones(2), torch.ones(2), found.calibration, 5)])


def test_what_nobody_has_is_named_as_rarely_with_many_clients() -> None:
    """Twenty clients whose updates are noise: the level stays, where each tested alone would name one in five."""
    draw, named, alone = torch.Generator().manual_seed(0), 0, 0
    for _ in range(40):
        rows = [torch.randn(250, generator=draw) for _ in range(20)]
        parts = [Membership(row[:50], (row[:50, None] <= row[50:]).double().mean(1), row[50:], 0) for row in rows]
        named += int((whose(parts)[0].p_values <= 0.01).sum())
        alone += int((torch.stack([part.p_values for part in parts]).amin(0) <= 0.01).sum())
    assert named <= 2000 * 0.02
    assert alone > 2000 * 0.1


def test_the_rule_of_the_client_is_the_rounds_own() -> None:
    """A difference of weights says the same as the gradient behind it."""
    private, model = texts(3, 1), gpt()
    candidates, public = joined(private, texts(20, 2)), texts(200, 3)
    seen = [record(model, private, client=rule) for rule in (FedSGD(), FedAvg(lr=0.1, steps=1))]
    named = [infer_membership(one, LayerSpan(), candidates, public).identified(0.01).tolist() for one in seen]
    assert named[0][:3] == named[1][:3] == [True] * 3


@pytest.mark.parametrize("test", [LayerSpan(), SpanOrFilter()])
@pytest.mark.parametrize("public", [4, 9, 20])
def test_few_public_examples_are_enough_for_a_p_value(test: MembershipTest, public: int) -> None:
    private = texts(2, 1)
    found = infer_membership(record(gpt(), private), test, private, texts(public, 3))
    assert found.p_values.tolist() == pytest.approx([1 / (1 + len(found.calibration))] * 2)


def test_entries_of_which_a_sign_is_left_are_taken_as_they_are_expected() -> None:
    """Behind Adam: means of Gaussian draws of that sign, beside the filter's own formula."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(400, 5, generator=draw) * torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0]) + torch.arange(5.0) / 4
    whitening = Whitening.of(rows.clone())
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    found = _Filter(None, whitening, whitening.mean)._expected(1e-6 * signs, 4)  # type: ignore[arg-type]
    many = whitening.mean + torch.randn(200_000, 5, generator=draw) / (2 * whitening.scale)  # of four examples
    same = many.sign() == signs
    assert torch.allclose(found, (many * same).sum(0) / same.sum(0), rtol=0.03)
