"""Updates that hold a part of the model: what is missing was not sent, and is never taken for zero."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusal
from safetensors.torch import save_file
from torch import nn

from seepage import ATTACKS, Architecture, Batch, Inapplicable, Update, attack, build, exposure, observe, record
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.errors import SeepageError
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.defenses import Withhold
from seepage.federation.models.naming import in_own_names
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.types import Round

NET = Architecture("fc2", {"hidden": 12})
FROZEN = Architecture("fc2", {"hidden": 12, "frozen": ["2.*"]})
PRIVATE = Batch(torch.rand((2, 1, 4, 4), generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
ONE = Batch(PRIVATE.inputs[:1], PRIVATE.labels[:1])


def whole(batch: Batch = ONE) -> Update:
    return record(build(NET, (1, 4, 4), 3), batch)[0].update


def part(*names: str) -> Update:
    sent = whole().tensors
    return Update({name: sent[name] for name in names})


def test_what_is_missing_was_not_sent_and_is_no_error() -> None:
    model = build(NET, (1, 4, 4), 3)
    seen = observe(model, part("2.weight", "2.bias"), (1, 4, 4), batch_size=1)[0]
    assert seen.withheld == ("4.weight", "4.bias")
    gradient = seen.gradient(FedSGD())
    assert "4.weight" not in gradient
    with refusal("not_sent", "'4.weight'"):
        gradient["4.weight"]


def test_names_and_shapes_of_another_model_stay_errors() -> None:
    model = build(NET, (1, 4, 4), 3)
    with pytest.raises(SeepageError, match=r"'9.weight'"):
        observe(model, Update({**part("2.bias").tensors, "9.weight": torch.zeros(1)}), (1, 4, 4))
    with pytest.raises(SeepageError, match=r"'2.bias' has shape \(3,\), expected \(12,\)"):
        observe(model, Update({"2.bias": torch.zeros(3)}), (1, 4, 4))
    with pytest.raises(SeepageError, match="lacks"):
        observe(model, Update({}), (1, 4, 4))


def test_frozen_parameters_have_a_gradient_of_nobody() -> None:
    model = build(FROZEN, (1, 4, 4), 3)
    seen = record(model, ONE)
    assert set(seen[0].update.tensors) == {"4.weight", "4.bias"}
    assert seen[0].withheld == ()
    assert exposure(seen).sent.line == "sent: 2 of 4 tensors, 39 of 243 numbers; frozen: 2"
    with refusal("not_sent", "'2.weight'"):
        attack(seen, "linear")


def test_a_frozen_parameter_that_does_not_move_may_come_along_and_no_other() -> None:
    model = build(FROZEN, (1, 4, 4), 3)
    sent = dict(whole().tensors)
    with pytest.raises(SeepageError, match=r"'2.weight'"):
        observe(model, Update(sent), (1, 4, 4))
    still = {name: torch.zeros_like(t) if name.startswith("2.") else t for name, t in sent.items()}
    assert set(observe(model, Update(still), (1, 4, 4))[0].update.tensors) == {"4.weight", "4.bias"}


def test_matching_compares_what_was_sent() -> None:
    """The dummy's other gradients have no say: at the truth the objective is zero, and it is not where all counted."""
    model = build(NET, (1, 4, 4), 3)
    seen = observe(model, part("2.weight", "2.bias"), (1, 4, 4), batch_size=1, labels=ONE.labels)
    preset = ATTACKS["inverting_gradients"](steps=3)
    at_truth = preset.objective_at(seen, ONE.inputs, ONE.labels)
    assert at_truth < preset.objective_at(seen, 1 - ONE.inputs, ONE.labels) / 10
    found = attack(seen, preset)
    assert found.inputs.shape == (1, 1, 4, 4)


QUICK = {
    "linear": {},
    "cocktail_party": {"polish": False},
    "spear": {"samples": 64, "starts": 16},
    "rgap": {},
    "gauss_newton": {"steps": 1},
    "gradient_matching": {"steps": 2},
    "dlg": {"steps": 2},
}


@pytest.mark.parametrize("use", list(ATTACKS))
def test_every_attack_says_what_it_lacks(use: str) -> None:
    """Of one tensor alone each attack gives a result, or says in one sentence why not."""
    for kept in ("2.weight", "4.weight", "4.bias"):
        seen = observe(build(NET, (1, 4, 4), 3), part(kept), (1, 4, 4), batch_size=1)
        words = "attacked; with what was sent"
        try:
            if use in QUICK:
                attack(seen, use, options=QUICK[use])
            else:
                ATTACKS[use]().check(seen)
        except Inapplicable as refused:
            words = str(refused)
        assert "\n" not in words, kept
        assert ";" in words, kept


def test_local_steps_move_what_is_withheld() -> None:
    """The client trains its head too, so the rule that an attack repeats must: by hand, two steps of SGD."""
    model, rule = build(NET, (1, 4, 4), 3), FedAvg(lr=0.5, steps=2, batch_size=2, shuffle=False)
    seen = record(model, PRIVATE, client=rule, defense=Withhold(tensors=["4.*"]))[0]
    twin = build(NET, (1, 4, 4), 3)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(twin(PRIVATE.inputs), PRIVATE.labels).backward()
        optimizer.step()
    moved = dict(twin.named_parameters())
    assert set(seen.update.tensors) == {"2.weight", "2.bias"}
    for name, tensor in seen.update.tensors.items():
        assert torch.allclose(tensor, moved[name] - seen.params[name], atol=1e-6)
    guess = rule(model, seen.params, PRIVATE).tensors
    assert torch.allclose(guess["2.weight"], seen.update.tensors["2.weight"], atol=1e-6)


def test_a_personal_layer_stops_what_must_run_the_network() -> None:
    model = build(NET, (1, 4, 4), 3)
    own = ["4.weight", "4.bias"]
    seen = observe(model, part("2.weight", "2.bias"), (1, 4, 4), batch_size=1, personal=own)
    found = attack(seen, "linear")
    assert torch.allclose(found.inputs, ONE.inputs, atol=1e-4)
    assert not found.certified.any()
    with refusal("own_weights", "'4.bias'"):
        attack(seen, "inverting_gradients")
    assert "the client's own: 2 ('4.bias', '4.weight')" in exposure(seen).sent.line


@pytest.mark.parametrize("personal", [(), ("4.weight", "4.bias")])
def test_a_folder_keeps_what_was_sent_and_what_not(tmp_path: Path, personal: tuple[str, ...]) -> None:
    model = build(NET, (1, 4, 4), 3)
    sent = part("2.weight", "2.bias")
    seen = observe(model, sent, (1, 4, 4), batch_size=1, architecture=NET, personal=personal)
    save_transcript(seen, tmp_path)
    again = open_transcript(tmp_path)
    assert set(again[0].update.tensors) == {"2.weight", "2.bias"}
    assert again[0].personal == frozenset(personal)
    assert again[0].withheld == (() if personal else ("4.weight", "4.bias"))
    with refusal("not_sent", "'4.bias'"):
        again.select(0, ["4.bias"]) if not again._cache.rounds else again[0].gradient(FedSGD())["4.bias"]


def test_files_of_a_personal_head(tmp_path: Path) -> None:
    """Neither file has the head: it is the client's own. One that came back alone has nothing to be compared with."""
    model = build(NET, (1, 4, 4), 3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = {name: before[name] - 0.1 * tensor for name, tensor in whole().tensors.items()}
    body = ["2.weight", "2.bias"]
    save_file({name: before[name] for name in body}, tmp_path / "before.safetensors")
    save_file({name: after[name] for name in body}, tmp_path / "after.safetensors")
    save_file(after, tmp_path / "all.safetensors")
    capture = Capture(
        before=tmp_path / "before.safetensors", after=tmp_path / "after.safetensors", lr=0.1, steps=1,
        architecture=NET, input_shape=(1, 4, 4), num_classes=3, batch_size=1,
    )  # fmt: skip
    words = observe_files(capture, tmp_path / "seen")
    assert words[-1] == "sent: 2 of 4 tensors, 204 of 243 numbers; the client's own: 2 ('4.bias', '4.weight')"
    found = attack(tmp_path / "seen", "linear")
    assert torch.allclose(found.inputs, ONE.inputs, atol=1e-3)
    lone = replace(capture, after=tmp_path / "all.safetensors")
    with pytest.raises(SeepageError, match=r"lacks 4.weight, 4.bias, which .*all.safetensors has|lacks '4.weight'"):
        observe_files(lone, tmp_path / "other")


class Tied(nn.Module):
    """One matrix used twice, as a language model's embedding and output layer are."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 5, bias=False), nn.Linear(16, 5, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x.flatten(1)) + self.first(x.flatten(1)).tanh()


def test_a_tied_weight_has_one_gradient_and_two_names() -> None:
    torch.manual_seed(0)
    model = Tied()
    seen = record(model, ONE)[0]
    assert list(seen.update.tensors) == ["first.weight"]
    # By hand: both uses add up, as in PyTorch's own backward pass.
    nn.functional.cross_entropy(model(ONE.inputs), ONE.labels).backward()
    assert torch.allclose(seen.update.tensors["first.weight"], model.first.weight.grad, atol=1e-6)
    again = observe(model, Update({"last.weight": model.first.weight.grad}), (1, 4, 4), batch_size=1)[0]
    assert torch.equal(again.update.tensors["first.weight"], model.first.weight.grad)
    both = {"first.weight": torch.ones(5, 16), "last.weight": torch.zeros(5, 16)}
    with pytest.raises(SeepageError, match="one parameter"):
        in_own_names(both, model, "the update")


def test_recipes_say_what_is_trained() -> None:
    net = build(Architecture("fc2", {"hidden": 4, "trainable": ["4.*"]}), (1, 4, 4), 3)
    assert [name for name, p in net.named_parameters() if p.requires_grad] == ["4.weight", "4.bias"]
    with pytest.raises(SeepageError, match=r"'top.\*'"):
        build(Architecture("fc2", {"frozen": ["top.*"]}), (1, 4, 4), 3)
    with pytest.raises(SeepageError, match="no parameter of the model would be trained"):
        build(Architecture("fc2", {"frozen": ["*"]}), (1, 4, 4), 3)
    with pytest.raises(SeepageError, match="trainable or frozen"):
        build(Architecture("fc2", {"frozen": ["2.*"], "trainable": ["4.*"]}), (1, 4, 4), 3)


def test_a_round_of_nothing_is_refused() -> None:
    with pytest.raises(SeepageError, match="lacks"):
        Round(0, {"w": torch.ones(2)}, Update({}))
