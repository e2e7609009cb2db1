"""What public models do that small ones do not: outputs in objects, odd layouts, tokens, layers with no derivative."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, Transcript, attack, build, observe, record
from seepage.attacks import dlg
from seepage.attacks.exposure import exposure
from seepage.attacks.network import AttackedRound
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.problem import Problem
from seepage.attacks.text.layers import Reader
from seepage.base.nn import captured_calls, forward, logits_in
from seepage.base.second_derivatives import twice_differentiable
from seepage.errors import SeepageError

CLASSES = 3
EVAL = FedSGD(mode="eval")


class PointwiseLast(nn.Module):
    """As ConvNeXt: a convolution, then fully connected layers over the channels of each position."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.point, self.head = nn.Conv2d(3, 6, 2, 2), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.point(self.stem(x).permute(0, 2, 3, 1)))
        logits: Tensor = self.head(y.mean((1, 2)))
        return logits


class Recurrent(nn.Module):
    """Over vectors, or over tokens."""

    def __init__(self, *, tokens: bool = False) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Embedding(20, 4) if tokens else nn.Identity()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, CLASSES)
        self.cudnn: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.cudnn.append(torch.backends.cudnn.enabled)
        logits: Tensor = self.head(self.lstm(self.embed(x))[0][:, -1])
        return logits


class Squeezed(nn.Module):
    """As MobileNetV3: channels are weighed by a hard sigmoid, of a module or of a function."""

    def __init__(self, gate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.squeeze, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        logits: Tensor = self.head((y * self.gate(self.squeeze(y.mean((2, 3), keepdim=True)))).mean((2, 3)))
        return logits


class WrittenOut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 3).clamp(0, 6) / 6


class Tagger(nn.Module):
    """As BERT for sequences: an embedding, attention that is called by keyword, and a pooled token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.pooler, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attention(query=x, key=x, value=x)[0]
        logits: Tensor = self.head(torch.tanh(self.pooler(x[:, 0])))
        return logits


def private(shape: tuple[int, ...], n: int = 1) -> Tensor:
    """Values, or tokens where an example is a sequence of numbers."""
    draw = torch.Generator().manual_seed(0)
    return torch.rand((n, *shape), generator=draw) if len(shape) > 1 else torch.randint(20, (n, *shape), generator=draw)


def seen(model: nn.Module, shape: tuple[int, ...] = (3, 8, 8), n: int = 1, client: FedSGD = EVAL) -> Transcript:
    return record(model, Batch(private(shape, n), torch.arange(n) % CLASSES), client=client)


@pytest.mark.parametrize(
    ("model", "shape"), [(PointwiseLast(), (3, 8, 8)), (Recurrent(), (6, 4))], ids=["pointwise", "recurrent"]
)
def test_l_bfgs_takes_gradients_of_any_layout(model: nn.Module, shape: tuple[int, ...]) -> None:
    found = attack(seen(model, shape), dlg(steps=2))
    assert found.history[-1][1] <= found.history[0][1]


def test_a_recurrent_layer_runs_without_cudnn_in_every_pass() -> None:
    """cuDNN's has no backward pass in eval mode, and its backward pass has no derivative."""
    model = Recurrent()
    before = torch.backends.cudnn.enabled
    forward(model, {}, torch.rand(2, 6, 4))
    assert model.cudnn == [False]
    assert torch.backends.cudnn.enabled is before


def test_a_hard_sigmoid_is_differentiated_twice() -> None:
    hard, written = Squeezed(nn.Hardsigmoid()), Squeezed(WrittenOut())
    written.load_state_dict(hard.state_dict())
    x, y = torch.rand(2, 3, 8, 8), torch.tensor([0, 2])
    gradients = []
    for model in (hard, written):
        transcript = seen(model, n=2)
        problem = Problem.of(transcript[0], transcript.knowledge, Cosine(), None)
        gradients.append(problem.evaluate(x, y).by_inputs)
    assert gradients[0].abs().max() > 0
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-9)


def test_an_operation_without_a_second_derivative_is_named() -> None:
    with refusal("no_derivatives"):
        attack(seen(Squeezed(F.hardsigmoid)), dlg(steps=2))


def test_other_errors_of_a_model_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot"), twice_differentiable(nn.Identity()):
        torch.rand(2, 3) @ torch.rand(2, 3)


def test_batch_norm_over_one_value_is_said_in_a_sentence() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 8), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, CLASSES))
    with pytest.raises(SeepageError, match=r"\(3, 8, 8\)"):
        seen(model, client=FedSGD())[0]
    assert seen(model)[0].batch_size == 1  # in eval mode there is nothing in the way


def test_other_mistakes_in_a_value_stay_what_they_are() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        forward(Broken(), {}, torch.rand(1, 3))


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Wrapped(nn.Module):
    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.body, self.head, self.wrap = nn.Linear(12, 8), nn.Linear(8, CLASSES), wrap

    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.body(x.flatten(1)))
        return self.wrap(self.head(hidden), hidden)


@pytest.mark.parametrize("wrap", [Output, lambda logits, hidden: {"hidden": hidden, "logits": logits}])
def test_logits_are_found_in_an_object_or_a_dictionary(wrap: Callable[[Tensor, Tensor], Any]) -> None:
    found = attack(seen(Wrapped(wrap), (3, 2, 2)), "linear")
    assert torch.allclose(found.inputs, private((3, 2, 2)), atol=1e-4)


class Overwriting(nn.Module):
    """Normalizes its inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        logits: Tensor = self.head(torch.relu(self.body(x.flatten(1))))
        return logits


def test_a_model_that_writes_to_its_inputs_changes_no_batch_and_is_attacked() -> None:
    batch = Batch(private((3, 2, 2)), torch.tensor([1]))
    transcript = record(Overwriting(), batch)
    assert transcript[0].batch_size == 1
    assert torch.equal(batch.inputs, private((3, 2, 2)))
    assert len(attack(transcript, dlg(steps=2))) == 1
    assert torch.allclose(attack(transcript, "linear").inputs, batch.inputs, atol=1e-4)


def test_layers_that_take_no_empty_batch_are_unmixed_behind() -> None:
    """The network behind a layer is run without examples, which an instance norm with statistics does not take."""
    norm = nn.InstanceNorm2d(4, track_running_stats=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    assert attack(seen(model, n=2), "cocktail_party").space == "feature"


def test_of_a_tuple_of_outputs_the_first_is_taken() -> None:
    assert logits_in((torch.ones(1, 3), torch.zeros(1, 3))).sum() == 3
    with pytest.raises(SeepageError, match=r"tuple.*logits"):
        logits_in(("logits", torch.ones(1, 3)))


def test_calls_by_keyword_and_tuples_are_captured() -> None:
    model = Tagger()
    with captured_calls(model, ["attention", "pooler"]) as calls:
        model(torch.zeros(2, 5, dtype=torch.long))
    assert calls["attention"][0].input.shape == calls["attention"][0].output.shape == (2, 5, 8)
    assert calls["pooler"][0].input.shape == (2, 8)


def test_a_network_over_tokens_is_looked_at_and_unmixed() -> None:
    model = Tagger()
    transcript = seen(model, (5,))
    assert exposure(transcript).of("labels")
    found = attack(transcript, "cocktail_party")
    with captured_calls(model, ["pooler"]) as calls, torch.no_grad():
        model(private((5,)))
    assert found.space == "feature"
    # What the pooler read of the one example, up to sign and scale.
    assert F.cosine_similarity(found.inputs, calls["pooler"][0].input).abs() > 0.999


OVER_TOKENS = {
    "dlg": "tokens",
    "spear": "no_relu",
    "linear": "input_not_read",
    "rgap": "network",
    "patch_embedding": "no_images",
    "gauss_newton": "no_images",
}


@pytest.mark.parametrize("use", OVER_TOKENS)
def test_what_a_network_over_tokens_does_not_allow_is_refused(use: str) -> None:
    for model in (Tagger(), Recurrent(tokens=True)):
        with refusal(OVER_TOKENS[use], "token_sequences"):
            attack(seen(model, (5,)), use)


def test_a_network_that_takes_no_shorter_texts_is_given_none() -> None:
    """The search for shorter texts ended in an IndexError of the embedding: nothing stands for -1 there."""
    ours = build(Architecture("gpt", {"width": 8}), (5,), 20)
    for model, takes in ((Tagger(), False), (ours, True)):
        labels = torch.zeros(1, 5, dtype=torch.int64) if takes else torch.tensor([1])
        transcript = record(model, Batch(private((5,)), labels), client=EVAL)
        assert Reader(AttackedRound.of(transcript)).takes_shorter is takes


def test_an_update_over_tokens_can_be_observed() -> None:
    model = Tagger()
    transcript = seen(model, (5,))
    again = observe(model, transcript[0].update, (5,), batch_size=1, client=EVAL)
    assert again.knowledge.num_classes == CLASSES


def test_gauss_newton_says_that_layers_read_positions() -> None:
    with refusal("network", "patch_embedding"):
        attack(seen(PointwiseLast(), n=2), "gauss_newton")


def test_rgap_says_that_the_order_of_layers_is_not_known() -> None:
    with refusal("network", "PointwiseLast"):
        attack(seen(PointwiseLast()), "rgap")


@pytest.mark.parametrize("use", ["linear", "spear", "dlg", "patch_embedding"])
def test_over_tokens_no_refusal_recommends_an_attack_that_refuses_too(use: str) -> None:
    with refusal(OVER_TOKENS[use], "token_sequences") as refused:
        attack(seen(Recurrent(tokens=True), (5,)), use)
    assert "inverting_gradients" not in refused.value.remedy
    assert "gradient_matching" not in refused.value.remedy
