"""Classes of clients that strangers brought, each by a small example: what is said of them, and what is not."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.exposure.labels import names_labels
from seepage.attacks.exposure.layers import read_alone
from seepage.attacks.reading.rows import MeasuredRows
from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.models import build

HERE = f"{Path(__file__).stem}"


class Headed(nn.Module):
    """Features, a projection, and the logits, as contrastive clients return them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.head = nn.Linear(20, 16), nn.Linear(16, 8), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        seen = self.body(x).tanh()
        made = self.side(seen)
        return seen, made, self.head(seen + 0 * made.sum(1, keepdim=True))


class Rows(nn.Sequential):
    """A network on standardized rows, of which nothing is stated."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


class Rated(nn.Module):
    """A user and an item, each with a table, as recommenders have them; tables of unlike length."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.head = nn.Embedding(12, 8), nn.Embedding(90, 8), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.user(x[:, 0].long()), self.item(x[:, 1].long())], 1))
        return logits


class Bag(nn.Module):
    """A classifier of texts; most rows of its table are never looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.body, self.head = nn.Embedding(300, 24), nn.Linear(24, 16), nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.word(ids).mean(1)).tanh())
        return logits


class Experts(nn.Module):
    """A gate sends each row to one of six experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(24, 6)
        self.each = nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 5)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(1).max(1)
        out = x.new_zeros(len(x), 5)
        for number, expert in enumerate(self.each):
            own = (chosen == number).nonzero()[:, 0]
            if len(own):
                out = out.index_add(0, own, expert(x[own]) * share[own, None])
        return out


class Masks(nn.Module):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x).relu())
        return logits


class Deep(nn.Sequential):
    """Hidden layers of rectifiers, some of which are dead for all examples."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
        )


class Fused(nn.Module):
    """A row of two sources, each of which has a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(10, 64), nn.Linear(6, 64), nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.one(x[:, :10]).relu(), self.other(x[:, 10:]).tanh()], 1))
        return logits


class ConvNormed(nn.Sequential):
    """A convolution behind whose outputs a batch norm stands."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 5))


class Fields(nn.Module):
    """Three fields that share a table behind offsets, as factorization machines have them; one number an example."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(60, 8), nn.Linear(24, 1)
        self.register_buffer("starts", torch.tensor([0, 10, 40]))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(x.long() + self.starts).flatten(1).relu())[:, 0]
        return logits


class Scaled(nn.Module):
    """A last layer of somebody's own, whose weight is made of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.way = nn.Parameter(torch.rand(7, 1)), nn.Parameter(torch.randn(7, 16))
        self.bias = nn.Parameter(torch.zeros(7))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.size * self.way, self.bias)


class Own(nn.Sequential):
    """Features, and the layer of somebody's own that makes the logits."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.ReLU(), Scaled())


class Squashed(nn.Sequential):
    """Probabilities of nine tags, each of its own sigmoid."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 9), nn.Sigmoid())


class Next(nn.Module):
    """A language model: a class at each place, the classes second."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.body, self.head = nn.Embedding(300, 24), nn.GRU(24, 24, batch_first=True), nn.Linear(24, 300)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.word(ids))[0])
        return logits.transpose(1, 2)


class Remade(nn.Sequential):
    """Layers whose weights are made of other parameters: by a direction and a length, or over a singular value."""

    def __init__(self) -> None:
        lengths, singular = nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm
        super().__init__(lengths(nn.Linear(20, 16)), nn.ReLU(), singular(nn.Linear(16, 16)), nn.ReLU())
        self.append(lengths(nn.Linear(16, 5)))


class Actions(nn.Sequential):
    """Values of actions, of which a step trains those that were taken, as in Q-learning."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 5))


class Chances(nn.Sequential):
    """Logistic regression, of whose sigmoids a softmax is taken."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(40, 10), nn.Sigmoid())


class Zeros(nn.Linear):
    """A regression that starts at zero, of whose labels the last bias feels nothing where each is there once."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


class Faint(nn.Module):
    """A layer of which hardly anything reaches the outputs, beside one that makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.faint, self.head = nn.Linear(20, 48), nn.Linear(48, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.body(x).relu()
        logits: Tensor = self.head(seen + 1e-3 * self.faint(seen))
        return logits


class Normed(nn.Sequential):
    """A frozen norm in front of what is trained."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Dropped(nn.Module):
    """Dropout between a layer and the batch norm behind it, as in the head of a classifier of point clouds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(40, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(F.dropout(self.first(x), 0.3, self.training)).relu())
        return logits


class Boxed(nn.Sequential):
    """A detector: four numbers of a box beside the logits of five classes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 9))


def boxes(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, :4], outputs.new_full((len(outputs), 4), 0.5)) + F.cross_entropy(
        outputs[:, 4:], labels
    )


def looked_at(
    folder: Path,
    name: str,
    batch: tuple[Tensor, Tensor],
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor],
    *,
    lr: float | None = 0.1,
    training: bool = True,
    rule: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **stated: object,
) -> Check:
    """What `seepage check` finds in two checkpoints of one step of SGD."""
    torch.manual_seed(0)
    model = globals()[name]()
    torch.save(model.state_dict(), folder / "before.pt")
    loss(model.train(training), *batch).backward()
    rule(model.parameters(), lr=1e-3 if lr is None else lr).step()
    torch.save(model.state_dict(), folder / "after.pt")
    shape = tuple(batch[0].shape[1:])
    own = Spec(f"tests.clients.{HERE}:{name}")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", architecture=own, input_shape=shape, lr=lr, **stated
    )
    found = check_capture(capture, Look(), named=True)
    return found.cases[0]


def fact(check: Check, name: str) -> tuple[str, str]:
    return next((one.value, one.origin) for one in check.facts if one.name == name)


def test_the_logits_of_a_tuple_are_what_all_else_goes_into(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(3, 20), torch.tensor([0, 3, 3])
    found = looked_at(tmp_path, "Headed", batch, lambda model, x, y: F.cross_entropy(model(x)[2], y))
    assert fact(found, "classes")[0].startswith("5,")
    assert fact(found, "labels")[0].startswith("classes 0, 3")
    model = build(Spec(f"tests.clients.{HERE}:Headed"), (20,), 5)
    assert model(torch.rand(2, 20)).shape == (2, 5)


def test_every_table_tells_its_codes_however_short_the_others_are(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.stack([torch.full((10,), 4), torch.randperm(90)[:10]], 1), torch.arange(10) % 2
    found = looked_at(tmp_path, "Rated", batch, lambda model, x, y: F.cross_entropy(model(x), y))
    said = {one.name: one.value for one in found.facts if "distinct code" in one.value}
    assert [value.split()[0] for value in said.values()] == ["1", "10"]


def test_next_tokens_are_counted_where_they_come_out_whole(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ids = (300 ** torch.rand(2, 21)).long().clamp(0, 299)
    targets = ids[:, 1:].clone()
    targets[1, 15:] = -100
    batch = ids[:, :-1], targets
    found = looked_at(tmp_path, "Next", batch, lambda model, x, y: F.cross_entropy(model(x), y), batch_size=2)
    (labels,) = found.exposure.of("labels")
    counts = torch.bincount(targets[targets >= 0], minlength=300).tolist()
    assert labels.evidence["places"] == sum(counts) == 35
    assert list(labels.evidence["counts"]) == counts


def test_batch_norms_that_stood_still_were_in_eval_mode(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(4, 20), torch.tensor([0, 1, 1, 2])
    for training in (True, False):
        found = looked_at(
            tmp_path, "Normed", batch, lambda model, x, y: F.cross_entropy(model(x), y), training=training
        )
        mode = "train mode" if training else "eval mode"
        assert mode in fact(found, "batch norm")[0].split(":")[0].split(",")[0]


def test_the_range_of_values_is_assumed_or_stated(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.randn(3, 20), torch.tensor([0, 3, 3])
    for stated, told in ((None, ("from 0 to 1", "assumed")), ((-3.0, 3.0), ("from -3 to 3", "stated"))):
        found = looked_at(tmp_path, "Headed", batch, lambda model, x, y: F.cross_entropy(model(x)[2], y), values=stated)
        assert fact(found, "values") == told


def test_rows_of_examples_outside_of_the_assumed_range_show_another(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.randn(3, 20), torch.tensor([0, 3, 3])
    found = looked_at(tmp_path, "Rows", batch, lambda model, x, y: F.cross_entropy(model(x), y), batch_size=3)
    words, origin = fact(found, "values")
    low, high = float(words.split()[1]), float(words.split()[3].strip(","))
    assert origin == "inferred"
    assert low <= batch[0].min()
    assert batch[0].max() <= high
    assert found.exposure.examples == 3


def test_dropout_in_front_of_a_batch_norm_leaves_the_rank_of_every_example(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(8, 40), torch.tensor([0, 3, 3, 5, 6, 9, 12, 15])
    found = looked_at(tmp_path, "Dropped", batch, lambda model, x, y: F.cross_entropy(model(x), y))
    assert int(fact(found, "batch size")[0].split()[0]) == 8


@pytest.mark.parametrize("stated", [{"batch_size": 1}, {}])
def test_signs_name_no_labels_of_a_loss_that_only_is_assumed(tmp_path: Path, stated: dict[str, int]) -> None:
    torch.manual_seed(1)
    batch = torch.rand(1, 20), torch.tensor([2])
    adam = Spec("fedavg", {"optimizer": "adam", "lr": 0.001, "steps": 1})
    found = looked_at(
        tmp_path, "Boxed", batch, lambda model, x, y: boxes(model(x), y), lr=None, rule=torch.optim.Adam, client=adam,
        **stated,
    )  # fmt: skip
    bias = torch.load(tmp_path / "after.pt")["2.bias"] - torch.load(tmp_path / "before.pt")["2.bias"]
    assert int((bias > 0).sum()) > 1  # more than there are examples
    assert fact(found, "loss")[1] == "assumed"
    assert fact(found, "half precision")[1] == "unknown"
    # Beside one example they are no cross-entropy's; of unknown many they rest on the loss.
    assert fact(found, "labels")[1] == ("unknown" if stated else "assumed")
    assert any(one.tensors for one in found.exposure.of("labels")) is not bool(stated)


@pytest.mark.parametrize("decay", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("beside", [False, True])
def test_a_decay_in_the_gradient_of_adam_is_found_by_rows_that_nobody_looked_up(
    tmp_path: Path, decay: float, beside: bool
) -> None:
    torch.manual_seed(5)
    ids, labels = torch.randint(0, 300, (4, 12)), torch.tensor([0, 1, 1, 3])
    rule = partial(torch.optim.AdamW if beside else torch.optim.Adam, weight_decay=decay)
    found = looked_at(
        tmp_path, "Bag", (ids, labels), lambda model, x, y: F.cross_entropy(model(x), y), lr=None, rule=rule
    )
    (codes,) = found.exposure.of("codes")
    own = set(ids.flatten().tolist())
    assert set(codes.evidence["rows"]) <= own
    assert codes.evidence["all"] is not (decay > 0 and not beside)
    if decay < 1e-2 or beside:
        assert set(codes.evidence["rows"]) == own
    told = fact(found, "weight decay")
    assert told[0].startswith(f"{decay:.3g} of the weights is in the gradient") is (decay > 0 and not beside)


def test_fields_that_share_a_table_take_codes_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(1)
    rows = torch.stack([torch.randint(0, most, (5,)) for most in (10, 30, 20)], 1)
    found = looked_at(
        tmp_path, "Fields", (rows, torch.rand(5)),
        lambda model, x, y: F.binary_cross_entropy_with_logits(model(x), y), client=Spec("fedsgd", {"loss": "bce"}),
    )  # fmt: skip
    assert fact(found, "classes")[0] == "2, by one logit"
    assert {one.name for one in found.facts} >= {"codes in table"}
    (codes,) = found.exposure.of("codes")
    own = set((rows + torch.tensor([0, 10, 40])).flatten().tolist())
    # The row of 9 moved in two numbers of eight, the same way, as a decay that is lost in rounding does.
    assert set(codes.evidence["rows"]) == own - {9}
    assert fact(found, "codes in table")[0].startswith("13 distinct codes, and perhaps 1 more")


def test_the_layer_behind_the_outputs_is_found_by_its_bias_or_by_their_order(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(3, 20), torch.tensor([0, 3, 6])
    found = looked_at(tmp_path, "Own", batch, lambda model, x, y: F.cross_entropy(model(x), y))
    assert fact(found, "classes") == ("7, the rows of 2, which makes the outputs, if outputs are classes", "assumed")
    tags = torch.randint(0, 2, (3, 9)).float()
    found = looked_at(tmp_path, "Squashed", (batch[0], tags), lambda model, x, y: F.binary_cross_entropy(model(x), y))
    assert fact(found, "classes")[0].startswith("9, the rows of 2, which makes the outputs")


def test_a_last_weight_that_is_made_of_others_still_names_labels(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(3, 20), torch.tensor([0, 3, 3])
    found = looked_at(tmp_path, "Remade", batch, lambda model, x, y: F.cross_entropy(model(x), y))
    assert fact(found, "labels")[0].startswith("classes 0, 3")


def taken(model: nn.Module, x: Tensor, actions: Tensor) -> Tensor:
    values: Tensor = model(x)
    return F.smooth_l1_loss(values.gather(1, actions[:, None])[:, 0], torch.linspace(-1.0, 1.0, len(x)))


@pytest.mark.slow
def test_a_loss_that_the_update_contradicts_hides_no_rows_and_tells_no_rate(tmp_path: Path) -> None:
    torch.manual_seed(1)
    x, actions = torch.randn(4, 20), torch.tensor([0, 2, 2, 1])
    found = looked_at(
        tmp_path, "Actions", (x, actions), taken, lr=None, rule=lambda some, **_: torch.optim.SGD(some, 0.05)
    )
    assert fact(found, "loss")[1] == "assumed"
    assert fact(found, "learning rate")[1] == "unknown"
    assert fact(found, "batch size") == ("4 or more, from the rank of 0.weight, augmented views counted", "inferred")
    # By hand: rows over their biases, of which some are one example's.
    before, after = (torch.load(tmp_path / f"{name}.pt") for name in ("before", "after"))
    moved = {name: (after[name] - before[name]).double() for name in before}
    rows = moved["0.weight"] / moved["0.bias"][:, None]
    near = torch.cdist(rows.nan_to_num(), x.double()) < 1e-2 * x.double().norm(dim=1)
    assert 0 < found.exposure.examples <= int((near.sum(0) >= 3).sum())
    # Two examples of one action pull the second layer along one direction: their mixtures look like examples.
    found_inside = {one.evidence["weight"]: one.evidence["found"] for one in found.exposure.of("layer")}
    assert found_inside["2.weight"] == found_inside["4.weight"] == 0


def test_entries_that_were_cut_off_tell_no_rank(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(4, 20), torch.tensor([0, 3, 3, 1])

    def cut(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for parameter in model.parameters():
            parameter.register_hook(lambda slope: slope.clamp(-0.004, 0.004))
        return F.cross_entropy(model(x), y)

    found = looked_at(tmp_path, "Actions", batch, cut, lr=None)
    assert fact(found, "optimizer")[0].startswith("assumed to be, as several may look alike, one step of SGD clipped")
    for layer in found.exposure.of("layer"):
        assert layer.evidence["rank"] <= 4
        assert layer.evidence["more"] or layer.evidence["full"]
    assert not found.exposure.of("span")


def test_a_rank_that_leaves_more_than_rounding_is_no_number_of_examples(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = 0.05 * torch.rand(8, 40), torch.tensor([0, 0, 0, 3, 3, 3, 5, 5])  # nearly one row of slopes for each label
    found = looked_at(tmp_path, "Chances", batch, lambda model, x, y: F.cross_entropy(model(x), y))
    (layer,) = found.exposure.of("layer")
    assert layer.evidence["rank"] < 8
    assert layer.evidence["more"]
    assert not found.exposure.of("span")


@pytest.mark.parametrize("error", [1e-6, 1e-4, 1e-3])
@pytest.mark.slow
def test_rows_that_agree_within_errors_are_one_examples_alone(error: float) -> None:
    found = wrong = 0
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        x, slopes = (torch.randn(size, generator=draw).double() for size in ((6, 30), (64, 6)))
        slopes[torch.rand(64, 6, generator=draw) < 0.7] = 0.0
        alone = (slopes != 0).sum(1) == 1
        rows = torch.cat([slopes @ x, slopes.sum(1, keepdim=True)], 1)
        spread = error * rows.abs().mean() * torch.ones_like(rows)
        seen = MeasuredRows.of(rows + spread * torch.randn(rows.shape, generator=draw), spread)
        count = read_alone(seen)
        true = int(((slopes[alone] != 0).sum(0) >= 3).sum())
        found, wrong = found + count, wrong + max(count - true, 0)
    assert found > 20
    assert wrong == 0


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.slow
def test_one_step_of_adam_is_told_under_a_loss_that_nobody_stated(tmp_path: Path, steps: int) -> None:
    torch.manual_seed(1)
    x, actions = torch.randn(16, 20), torch.randint(0, 5, (16,))

    def several(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        step = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(steps - 1):
            step.zero_grad()
            taken(model, x, y).backward()
            step.step()
        step.zero_grad()
        return taken(model, x, y)

    rule = torch.optim.Adam
    found = looked_at(tmp_path, "Actions", (x, actions), several, lr=None, rule=rule)
    assert fact(found, "loss")[1] == "assumed"
    words, origin = fact(found, "optimizer")
    assert ("one step of Adam" in words and origin == "assumed") is (steps == 1)
    assert fact(found, "labels")[1] == ("unknown" if steps == 1 else "assumed")


@pytest.mark.parametrize("lr", [0.1, None])
def test_terms_that_cancel_leave_rounding_and_contradict_no_loss(tmp_path: Path, lr: float | None) -> None:
    torch.manual_seed(1)
    batch = torch.rand(10, 64), torch.randperm(10)
    found = looked_at(tmp_path, "Zeros", batch, lambda model, x, y: F.cross_entropy(model(x), y), lr=lr)
    assert fact(found, "loss")[1] == "inferred"
    assert fact(found, "classes") == ("10, the rows of the last layer, which makes the outputs", "read")
    assert fact(found, "optimizer")[1] == "inferred"


class Plane(nn.Sequential):
    """Two outputs, of which a softmax's slopes are opposite whatever the optimizer is."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def points(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x), F.one_hot(y, 2).to(x))


def chosen(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize("lr", [0.1, None])
def test_two_entries_of_a_last_bias_contradict_a_softmax(tmp_path: Path, lr: float | None) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        batch = torch.rand(3, 20), torch.tensor([0, 1, 1])
        other = looked_at(tmp_path, "Plane", batch, points, lr=lr)
        assert fact(other, "loss")[1] == "assumed"
        assert fact(other, "labels") == ("not read, as the loss is not known", "unknown")
        assert fact(other, "classes")[1] == "assumed"
        same = looked_at(tmp_path, "Plane", batch, chosen, lr=lr)
        assert fact(same, "loss")[1] == "inferred"
        assert fact(same, "labels")[1] == "inferred"


def test_signs_do_not_say_that_outputs_are_classes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = torch.rand(3, 20), torch.tensor([0, 1, 3])
    found = looked_at(tmp_path, "Actions", batch, chosen, rule=torch.optim.Rprop)
    assert fact(found, "classes") == ("5, the rows of 4, which makes the outputs, if outputs are classes", "assumed")


def test_entries_of_one_size_show_no_softmax_by_their_sum(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = torch.rand(3, 20), torch.tensor([0, 1, 3])

    def even(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Absolute errors of six outputs, which cancel over the examples and not for each."""
        signs = torch.tensor([[1.0, 1, 1, 1, 1, -1], [1, -1, 1, -1, -1, -1], [-1, -1, -1, -1, 1, 1]])
        return F.l1_loss(model(x), model(x).detach() + signs)

    found = looked_at(tmp_path, "Six", batch, even)
    assert fact(found, "loss")[1] == "assumed"
    assert fact(found, "labels")[1] != "inferred"


class Six(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 6))


class Bare(nn.Module):
    """Rows of a parameter that the inputs index, and no table's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Parameter(torch.randn(50, 16)), nn.Linear(16, 24), nn.Linear(24, 4)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.table[ids].mean(1)).relu())
        return logits


def test_outputs_under_a_squared_error_may_be_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = torch.rand(3, 20), torch.tensor([0, 1, 1])
    client = Spec("fedsgd", {"loss": "mse"})
    for stated, origin in (({}, "assumed"), ({"target": "class"}, "read")):
        found = looked_at(tmp_path, "Plane", batch, points, client=client, **stated)
        assert fact(found, "classes")[1] == origin


class Tied(nn.Module):
    """A language model whose last layer is its table."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.read = nn.Embedding(120, 32), nn.Linear(32, 32)
        self.body, self.head = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 120, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(8 * self.body(self.read(self.word(ids)))[0])
        return logits.transpose(1, 2)


def test_rows_that_rounding_left_still_name_no_tokens_of_a_shared_table(tmp_path: Path) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 120, (1, 9))
    found = looked_at(tmp_path, "Tied", (ids[:, :-1], ids[:, 1:]), chosen, batch_size=1)
    (text,) = found.exposure.of("text")
    assert text.evidence["identified"] is None


def test_inputs_that_index_a_parameter_are_whole_numbers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = torch.randint(0, 50, (2, 7)), torch.tensor([1, 3])
    found = looked_at(tmp_path, "Bare", batch, chosen)
    assert fact(found, "labels")[0].startswith("classes 1, 3")
    assert found.exposure.examples == 0
    assert "values" not in [one.name for one in found.facts]


def test_tensors_of_small_slopes_do_not_hide_a_decay_beside_the_step(tmp_path: Path) -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        batch = torch.rand(3, 20), torch.tensor([0, 3, 3])
        rule = partial(torch.optim.AdamW, weight_decay=0.01)
        found = looked_at(
            tmp_path, "Faint", batch, lambda model, x, y: F.cross_entropy(model(x), y), lr=None, rule=rule
        )
        words, _ = fact(found, "optimizer")
        assert "one step of Adam" in words
        assert "beside a decay of 1e-05 of the weights" in words


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=0, label_smoothing=0.0).square()


def tags(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - F.one_hot(labels, 5)).square().mean()


@pytest.mark.parametrize(("loss", "named"), [("weighted", True), ("tags", True), ("squared", False)])
def test_a_loss_of_ones_own_names_labels_where_it_pulls_up_no_other_output(loss: str, named: bool) -> None:
    torch.manual_seed(0)
    assert names_labels(f"tests.clients.{HERE}:{loss}", nn.Linear(6, 5), (6,)) is named


def test_experts_that_the_first_made_up_examples_do_not_reach_are_read_too(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.randn(7, 24), torch.tensor([2, 1, 1, 2, 4, 3, 4])
    stated = Spec("fedsgd", {"loss": "cross_entropy"})
    found = looked_at(tmp_path, "Experts", batch, lambda model, x, y: F.cross_entropy(model(x), y), client=stated)
    torch.manual_seed(0)
    sent_to = Experts().gate(batch[0]).argmax(1).tolist()
    read = {one.evidence["layer"]: one.evidence for one in found.exposure.of("layer")}
    assert {int(name.split(".")[1]) for name in read if name.startswith("each")} == set(sent_to)
    for number in set(sent_to):
        assert read[f"each.{number}.0"]["rank"] == sent_to.count(number)
        assert read[f"each.{number}.0"]["found"] <= sent_to.count(number)
    alone = [number for number in set(sent_to) if sent_to.count(number) == 1]
    assert any(read[f"each.{number}.0"]["found"] for number in alone)


def test_a_weight_that_stood_still_has_no_rank_and_names_no_labels(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.rand(5, 20), torch.tensor([1, 1, 4, 3, 0])

    def biases(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
        return F.cross_entropy(model(x), y)

    found = looked_at(tmp_path, "Rows", batch, biases)
    assert fact(found, "keys")[0].endswith("; 2 of them did not change, such as 0.weight")
    assert fact(found, "batch size")[1] == "unknown"
    assert "rank that it can have" not in fact(found, "batch size")[0]
    assert not found.exposure.of("layer")
    (labels,) = found.exposure.of("labels")
    assert labels.tensors == ("2.bias",)
    assert 1 in labels.evidence["present"]
    assert set(labels.evidence["present"]) <= {0, 1, 3, 4}


@pytest.mark.parametrize("parts", [1, 2])
def test_batches_that_one_step_adds_up_have_no_variance_of_their_own(tmp_path: Path, parts: int) -> None:
    torch.manual_seed(1)
    batch = torch.rand(8, 1, 8, 8), torch.arange(8) % 5

    def added(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(x.chunk(parts), y.chunk(parts), strict=True)
        return torch.stack([F.cross_entropy(model(images), labels) for images, labels in pairs]).mean()

    found = looked_at(tmp_path, "ConvNormed", batch, added, steps=1)
    (all_of,) = found.exposure.of("batch-norm")
    assert all_of.evidence["modes"] == ["train"]
    assert (all_of.evidence["variances"] > 0) is (parts == 1)


def test_a_layer_that_reads_some_of_the_numbers_of_an_example_reads_no_features(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch, stated = (torch.rand(5, 16), torch.tensor([0, 3, 3, 1, 4])), Spec("fedsgd", {"loss": "cross_entropy"})
    found = looked_at(tmp_path, "Fused", batch, lambda model, x, y: F.cross_entropy(model(x), y), client=stated)
    read = {one.evidence["layer"]: (one.evidence["part"], one.evidence["of"]) for one in found.exposure.of("layer")}
    assert read == {"one": (10, 16), "other": (6, 16), "head": (0, 0)}
    assert found.exposure.examples == 0  # none is read whole
    (rows,) = (one for one in found.exposure.of("exact-rows") if "one.weight" in one.tensors)
    assert rows.evidence["part"] == 10
    assert f"and parts of {rows.vectors}" in found.exposure.line


@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_a_decay_is_read_off_the_convolution_that_makes_maps(tmp_path: Path, decay: float) -> None:
    torch.manual_seed(1)
    batch = torch.rand(2, 3, 8, 8), torch.randint(0, 4, (2, 8, 8))
    rule = partial(torch.optim.SGD, weight_decay=decay)
    found = looked_at(tmp_path, "Masks", batch, lambda model, x, y: F.cross_entropy(model(x), y), rule=rule)
    words, origin = fact(found, "weight decay")
    assert origin == "inferred"
    assert words.startswith("0.0001 of head.weight" if decay else "none that the last layer shows")


def test_entries_of_one_size_beside_zeros_are_at_no_threshold(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.randn(6, 16), torch.tensor([0, 1, 2, 3, 4, 0])

    def two(parameters: Iterator[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        own = list(parameters)
        trunk, head = torch.optim.Adam(own[:-2], 1e-3), torch.optim.SGD(own[-2:], lr)
        head.register_step_post_hook(lambda *_: trunk.step())
        return head

    found = looked_at(tmp_path, "Deep", batch, lambda model, x, y: F.cross_entropy(model(x), y), rule=two)
    assert not [one for one in found.exposure.defenses if one.name == "sparsified"]


def test_a_range_that_columns_of_codes_do_not_take_is_one_sentence(tmp_path: Path) -> None:
    torch.manual_seed(1)
    batch = torch.tensor([[3, 7], [5, 80]]), torch.tensor([0, 1])
    with pytest.raises(SeepageError, match="does not take numbers from -10 to 650"):
        looked_at(tmp_path, "Rated", batch, lambda model, x, y: F.cross_entropy(model(x), y), values=(-10.0, 650.0))
