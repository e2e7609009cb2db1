"""Clients whose rows look like one example's and are a mixture: small heads, losses of one slope, weights of zero."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Architecture
from seepage.attacks.exposure.inference import infer_steps
from seepage.attacks.exposure.labels import names_labels
from seepage.audit.capture import Capture
from seepage.audit.captured import attack_captured
from seepage.audit.checking import Check, Look, check_capture
from seepage.audit.recorded import AttackRequest
from seepage.audit.row import Row
from seepage.base.registry import Spec

SGD = partial(torch.optim.SGD, lr=0.1)
HERE = f"tests.clients.{Path(__file__).stem}"
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Tuned(nn.Sequential):
    """A frozen backbone and a new head of two classes, as people fine-tune."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
        self[0].requires_grad_(False)


class Whole(nn.Sequential):
    """A network of two classes, all of it trained."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 2))


class Forecast(nn.Module):
    """Blocks whose forecasts are added up, each behind its own layers, as of N-BEATS."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.ends = nn.Linear(20, 48), nn.Linear(20, 48), nn.Linear(48, 6)
        self.back = nn.Linear(48, 26)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.back(self.first(x).relu())
        return seen[:, 20:] + self.ends(self.second(x - seen[:, :20]).relu())


class Level(nn.Sequential):
    """Logistic regression from zero, as scikit-learn starts it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 6))
        nn.init.zeros_(self[0].weight)
        nn.init.zeros_(self[0].bias)


class Embedding(nn.Sequential):
    """Points of a plane, which a triplet loss moves."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 48), nn.PReLU(), nn.Linear(48, 2))


def checked(
    folder: Path,
    made: Callable[[], nn.Module],
    batch: tuple[Tensor, Tensor],
    loss: Loss,
    *,
    rule: Callable[..., torch.optim.Optimizer] = SGD,
    **stated: object,
) -> Check:
    """What `seepage check` finds in two checkpoints of one step."""
    torch.manual_seed(0)
    model = made()
    torch.save(model.state_dict(), folder / "before.pt")
    loss(model, *batch).backward()
    rule([p for p in model.parameters() if p.requires_grad]).step()
    torch.save(model.state_dict(), folder / "after.pt")
    own = Spec(f"{HERE}:{made.__qualname__}")
    capture = Capture(
        before=folder / "before.pt",
        after=folder / "after.pt",
        architecture=own,
        input_shape=tuple(batch[0].shape[1:]),
        **stated,
    )
    return check_capture(capture, Look(), named=True).cases[0]


def attacked(folder: Path, made: str, *attacks: str) -> Sequence[Row]:
    """What attacks make of the two checkpoints that `checked` left, of two rows at a rate of 0.1."""
    files = {name: folder / f"{name}.pt" for name in ("before", "after")}
    own = Architecture(f"{HERE}:{made}")
    capture = Capture(**files, architecture=own, input_shape=(20,), lr=0.1, batch_size=2)
    request = AttackRequest(attacks=[{"use": name} for name in attacks], out=folder / "run", jobs=1)
    return attack_captured(capture, request).result.rows


def softmax(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def rows(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, 20, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
def test_a_head_of_two_classes_shows_no_vector_of_a_batch(tmp_path: Path, seed: int) -> None:
    """Its gradient has rank one whatever came in, which was taken for a batch of one and its mixture for a vector."""
    found = checked(tmp_path, Tuned, (rows(4, seed), torch.tensor([0, 1, 1, 0])), softmax)
    assert found.exposure.vectors == 0
    assert found.exposure.batch_size is None
    assert next(fact.origin for fact in found.facts if fact.name == "batch size") == "unknown"
    (layer,) = found.exposure.of("layer")
    assert (layer.evidence["rank"], layer.evidence["full"]) == (1, True)


def test_one_example_of_two_classes_is_counted_and_read(tmp_path: Path) -> None:
    """By the layer in front of its features, whose rank the head does not bound."""
    found = checked(tmp_path, Whole, (rows(1), torch.tensor([1])), softmax)
    assert (found.exposure.batch_size, found.exposure.examples) == (1, 1)


def test_a_stated_batch_of_one_is_read_off_a_head_of_two_classes(tmp_path: Path) -> None:
    found = checked(tmp_path, Tuned, (rows(1), torch.tensor([1])), softmax, batch_size=1)
    assert found.exposure.vectors == 1


def test_a_loss_of_one_slope_shows_no_vector_where_nobody_stated_the_loss(tmp_path: Path) -> None:
    """Of absolute errors all slopes are one, so that rows agree on the mean of all examples' features."""
    batch = rows(8), torch.full((8, 6), 50.0)
    found = checked(tmp_path, Forecast, batch, lambda model, x, y: F.l1_loss(model(x), y))
    assert found.exposure.vectors == 0


def test_weights_of_zero_show_no_example_of_one_label(tmp_path: Path) -> None:
    """Each example has the same softmax there, so that their mean gives the very update of all of them."""
    found = checked(tmp_path, Level, (rows(5), torch.full((5,), 2)), softmax)
    assert found.exposure.vectors == 0


@pytest.mark.full
def test_a_span_is_said_of_fewer_inputs_than_neurons_and_as_a_least_number(tmp_path: Path) -> None:
    def triplets(model: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        return F.triplet_margin_loss(*model(x).split(2), margin=9.0)

    for size, word in ((None, "at least"), (6, "its")):
        found = checked(tmp_path, Embedding, (rows(6), torch.zeros(6)), triplets, batch_size=size)
        spans = found.exposure.of("span")
        assert spans
        assert all(one.evidence["rank"] < one.evidence["neurons"] for one in spans)
        assert all(f"the span of {word} 6" in one.message for one in spans)
        assert all(one.message.endswith("applies") for one in spans)  # neurons prove that the optimizer is SGD


class Pooled(nn.Module):
    """A classifier of texts by the largest responses of a few filters, as of Kim (2014), with a row of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.seen = nn.Embedding(60, 8, padding_idx=0), nn.Conv1d(8, 2, 3)
        self.head = nn.Linear(2, 3)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.seen(self.word(ids).transpose(1, 2)).relu().amax(2))
        return logits


class Counted(nn.Module):
    """A classifier of texts by the mean of their vectors, with a row of padding or without."""

    def __init__(self, padding: int | None = 0) -> None:
        super().__init__()
        self.word, self.head = nn.Embedding(60, 8, padding_idx=padding), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.word(ids).tanh().mean(1))
        return logits


def unpadded() -> nn.Module:
    return Counted(None)


@pytest.mark.parametrize(("made", "whole"), [(Pooled, False), (Counted, False), (unpadded, True)])
def test_a_number_of_tokens_is_read_where_each_leaves_a_gradient(
    tmp_path: Path, made: Callable[[], nn.Module], whole: bool
) -> None:
    """Padding has none, nor what a pool passes by: what moved is no count of what was there."""
    ids = torch.randint(0, 60, (3, 12), generator=torch.Generator().manual_seed(0))
    ids[0, 9:] = 0
    found = checked(tmp_path, made, (ids, torch.tensor([0, 1, 2])), softmax)
    (tokens,) = (fact for fact in found.facts if fact.name == "tokens")
    (codes,) = found.exposure.of("codes")
    assert set(codes.evidence["rows"]) <= set(ids.flatten().tolist())
    assert (codes.evidence["all"], tokens.origin) == ((True, "read") if whole else (False, "inferred"))
    assert codes.evidence["all"] is (len(codes.evidence["rows"]) == len(ids.unique()))


class Tagger(nn.Module):
    """A tag at each token."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.head = nn.Embedding(200, 16), nn.Linear(16, 9)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.word(ids).tanh())
        return logits.transpose(1, 2)


@pytest.mark.parametrize("seed", range(40))
def test_tags_that_are_all_there_tell_no_rate(seed: int) -> None:
    """Three of nine that stand at places about equally often moved alike, which was read as a rate of a third."""
    torch.manual_seed(seed)
    model, ids = Tagger(), torch.randint(0, 200, (4, 24))
    tags = torch.randint(0, 9, ids.shape)
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    softmax(model, ids, tags).backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    moved = {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}
    model.load_state_dict(before)
    found = infer_steps(model, moved, (24,), 9, lr=None, steps=None)
    assert found is None or found.lr == pytest.approx(0.05, rel=0.2)


def test_even_batches_tell_hardly_ever_a_rate_that_is_off() -> None:
    """Of even batches as large as people train on, rates of a half were read where three classes moved alike."""
    wrong = told = 0
    for seed in range(60):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 10))
        x, y = torch.rand(32, 20), torch.randint(0, 10, (32,))
        slope = torch.autograd.grad(softmax(model, x, y), list(model.parameters()))
        moved = {name: -0.05 * one for (name, _), one in zip(model.named_parameters(), slope, strict=True)}
        found = infer_steps(model, moved, (20,), 10, lr=None, steps=None)
        told += found is not None
        wrong += found is not None and abs(found.lr / 0.05 - 1) > 0.2
    assert wrong <= 1
    assert told < 6


class Odds(nn.Sequential):
    """Logistic regression of one logit."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 1))


class Lion(torch.optim.Optimizer):
    """The first step of Lion (Chen et al. 2023): the sign of the gradient, and a decay beside it."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 1e-3, decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * (p.grad.sign() + group["decay"] * p)


def logit(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())


@pytest.mark.parametrize(
    "rule",
    [
        Lion,
        partial(Lion, decay=1.0),
        partial(torch.optim.Rprop, lr=1e-3),
        partial(torch.optim.Adam, lr=1e-3),
    ],
    ids=["lion", "lion with decay", "rprop", "adam"],
)
@pytest.mark.parametrize(("made", "size"), [(Odds, 1), (Odds, 4), (Whole, 1), (Whole, 4)])
def test_entries_of_one_size_show_signs_and_no_example(
    tmp_path: Path, rule: Callable[..., torch.optim.Optimizer], made: type[nn.Module], size: int
) -> None:
    """A row of Adam's first step was divided by its bias's, proved by the update that signs give, and called exact."""
    loss, stated = (logit, {"client": Spec("fedsgd", {"loss": "binary"})}) if made is Odds else (softmax, {})
    batch = rows(size) - 0.5, torch.tensor([1, 0, 1, 1][:size])
    found = checked(tmp_path, made, batch, loss, rule=rule, batch_size=size, **stated)
    assert found.exposure.examples == 0
    (words,) = (fact for fact in found.facts if fact.name == "optimizer")
    assert "Adam" in words.value
    assert words.origin == "assumed"
    if made is Odds or "Adam" not in str(rule):  # of which a gradient near epsilon tells more
        assert all(name in words.value for name in ("signSGD", "Lion", "Rprop"))
        assert "0.001" in words.value


@pytest.mark.parametrize("seed", range(3))
def test_a_step_of_sgd_on_one_row_is_still_read(tmp_path: Path, seed: int) -> None:
    found = checked(
        tmp_path,
        Odds,
        (rows(1, seed), torch.tensor([1])),
        logit,
        batch_size=1,
        client=Spec("fedsgd", {"loss": "binary"}),
    )
    assert found.exposure.examples == 1


@pytest.mark.parametrize(
    ("made", "stated", "begins", "origin"),
    [
        (Whole, {}, "2", "read"),
        (Embedding, {}, "2", "assumed"),  # points of a plane
        (Forecast, {}, "6", "assumed"),  # values
        (Forecast, {"client": Spec("fedsgd", {"loss": "mse"}), "target": "value"}, "none: 6 outputs", "read"),
        (Forecast, {"client": Spec("fedsgd", {"loss": f"{HERE}:apart"})}, "6", "assumed"),
    ],
)
def test_outputs_are_called_classes_where_a_loss_of_classes_is_shown(
    tmp_path: Path, made: type[nn.Module], stated: dict[str, object], begins: str, origin: str
) -> None:
    """Boxes, points and thresholds are rows of a last layer, too, and were read as classes."""
    loss = softmax if made is Whole else lambda model, x, y: apart(model(x), y)
    x = rows(4)
    y = torch.tensor([0, 1, 1, 0]) if made is Whole else x[:, : 2 if made is Embedding else 6]
    found = checked(tmp_path, made, (x, y), loss, **stated)
    (classes,) = (fact for fact in found.facts if fact.name == "classes")
    assert classes.value.startswith(begins)
    assert classes.origin == origin


def apart(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.l1_loss(outputs, targets)


class Routed(nn.Module):
    """Experts whose outputs are added up by a gate's shares."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(20, 3), nn.ModuleList(nn.Linear(20, 7) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(1)
        return torch.stack([shares[:, k, None] * expert(x) for k, expert in enumerate(self.experts)]).sum(0)


class Gated(Routed):
    """Wider experts behind a gate of few neurons, which is called first; all of them read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 7)) for _ in range(3))


class Wide(nn.Module):
    """A wide layer from input to outputs beside a deep part."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(20, 7), nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 7))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.wide(x) + self.deep(x)
        return out


@pytest.mark.parametrize("made", [Gated, Wide])
def test_of_several_layers_that_read_the_input_that_of_most_neurons_is_read(
    tmp_path: Path, made: type[nn.Module]
) -> None:
    """Only the first that is called was looked at, and nothing proved of two examples that each expert shows."""
    labels = torch.tensor([3, 5])
    found = checked(tmp_path, made, (rows(2), labels), softmax, batch_size=2, lr=0.1, client=Spec("fedsgd"))
    reads = {one.evidence["layer"]: one.evidence for one in found.exposure.of("layer")}
    narrow, *others = [name for name, one in reads.items() if one["reads"] == "input"]
    assert found.exposure.examples == 2
    assert reads[narrow]["found"] == 0
    assert all(reads[other]["found"] == 2 for other in others[:1])
    assert others == (["deep.0"] if made is Wide else ["experts.0.0", "experts.1.0", "experts.2.0"])
    (row,) = attacked(tmp_path, made.__name__, "linear")
    assert row.certified is not None
    assert row.certified.n == 2


class Chosen(nn.Module):
    """Each example goes to one expert, that of its largest share."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(20, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Linear(40, 7)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(1).max(1)
        out = x.new_zeros(len(x), 7)
        for k, expert in enumerate(self.experts):
            own = (chosen == k).nonzero().squeeze(1)
            if len(own):
                out = out.index_add(0, own, share[own, None] * expert(x[own]))
        return out


@pytest.mark.parametrize("seed", range(3))
def test_of_experts_that_see_some_examples_nothing_false_is_said_of_all(tmp_path: Path, seed: int) -> None:
    """`check` ended in a traceback, or said of outputs and columns what held of one expert."""
    batch = rows(2, seed), torch.tensor([3, 5])
    batch[0][:, :10] *= torch.tensor([[1.0], [0.0]])  # ten numbers that are zero in one example alone
    found = checked(tmp_path, Chosen, batch, softmax, batch_size=2, lr=0.1)
    assert {fact.name for fact in found.facts}.isdisjoint({"other outputs", "inputs"})
    assert all(one.evidence["reads"] == "features" for one in found.exposure.of("layer") if "expert" in str(one.lines))
    tried = attacked(tmp_path, "Chosen", "linear", "cocktail_party")
    assert {row.status for row in tried} <= {"ok", "inapplicable"}
    assert all(row.certified is None or row.certified.n <= 2 for row in tried)


class Lifted(nn.Sequential):
    """Outputs behind an activation that rises."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 7), nn.Softplus())


@pytest.mark.parametrize("made", [Routed, Lifted])
@pytest.mark.parametrize("seed", range(4))
def test_a_last_bias_whose_outputs_rise_with_it_names_classes(tmp_path: Path, made: type[nn.Module], seed: int) -> None:
    """Of a mixture of experts "the network changes what it returns, as a ReLU does" hid both labels."""
    labels = torch.randint(7, (3,), generator=torch.Generator().manual_seed(seed))
    found = checked(tmp_path, made, (rows(3, seed), labels), softmax, batch_size=3, lr=0.1)
    (labelled,) = found.exposure.of("labels")
    assert set(labelled.evidence["present"]) == set(labels.tolist())
    assert labelled.evidence["signed"]
    assert "softmax" in labelled.evidence["condition"]
    assert not found.exposure.of("features")


class Window(nn.Module):
    """Values of the last of a window's vectors."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0][:, -1])
        return out


class Doubled(Window):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("made", "size", "rule"),
    [(Window, 1, SGD), (Window, 2, SGD), (Doubled, 1, SGD), (Window, 1, partial(torch.optim.Adam, lr=0.1))],
    ids=["one example", "two examples", "scaled outputs", "adam"],
)
def test_the_targets_of_one_example_are_read_off_a_last_layer(
    tmp_path: Path, made: type[nn.Module], size: int, rule: Callable[..., torch.optim.Optimizer]
) -> None:
    batch = rows(size).reshape(size, -1)[:, :12].reshape(size, 4, 3), torch.tensor([[0.7, -2.0, 31.5]] * size)
    squares = lambda model, x, y: F.mse_loss(model(x), y)  # noqa: E731
    stated = {"client": Spec("fedsgd", {"loss": "mse"}), "target": "value", "lr": 0.1, "batch_size": size}
    found = checked(tmp_path, made, batch, squares, rule=rule, **stated).exposure.of("targets")
    if made is Window and size == 1 and rule is SGD:
        assert found[0].evidence["targets"] == pytest.approx([0.7, -2.0, 31.5], rel=1e-4)
    else:
        assert not found


@pytest.mark.parametrize("seed", range(6))
def test_a_loss_of_values_of_ones_own_names_no_labels(seed: int) -> None:
    """Where all outputs were above zero, an absolute error pulled up those of drawn labels alone."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 4))
    nn.init.constant_(model[0].bias, 0.5)
    assert not names_labels(f"{HERE}:apart", model, (20,))
    assert names_labels("torch.nn.functional:cross_entropy", model, (20,))
    assert names_labels("torch.nn.functional:binary_cross_entropy_with_logits", model, (20,))
    assert names_labels("torch.nn.functional:binary_cross_entropy", model.append(nn.Sigmoid()), (20,))


def test_the_look_for_a_range_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All examples of a batch of values were solved for in range after range, minutes long, in a command of seconds."""
    monkeypatch.setattr("seepage.audit.values.LOOKED", 0.0)
    stated = {"client": Spec("fedsgd", {"loss": "mse"}), "target": "value"}
    batch = 9 * rows(1), torch.zeros(1, 6)
    squares = lambda model, x, y: F.mse_loss(model(x), y)  # noqa: E731
    (tmp_path / "late").mkdir()
    (tmp_path / "open").mkdir()
    late = checked(tmp_path / "late", Forecast, batch, squares, batch_size=1, **stated)
    monkeypatch.undo()
    free = checked(tmp_path / "open", Forecast, batch, squares, batch_size=1, **stated)
    assert [next(fact.origin for fact in one.facts if fact.name == "values") for one in (late, free)] == [
        "assumed",
        "inferred",
    ]
