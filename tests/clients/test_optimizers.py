"""Clients whose optimizer changes tensors by sizes of their own: LARS, groups of parameters, LAMB, Adafactor."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.exposure.balance import balance_of, homogeneous_pairs
from seepage.attacks.exposure.rules import adaptive_step, factored
from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.base.registry import Spec
from seepage.federation.measured import Formats

HERE = f"tests.clients.{Path(__file__).stem}"


class Rows(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 6))


class Maps(nn.Sequential):
    def __init__(self) -> None:
        body = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3), nn.LeakyReLU(), nn.Flatten()
        super().__init__(*body, nn.Linear(16, 10))


class Trust(torch.optim.Optimizer):
    """LARS and LAMB: each tensor's step has the length of its weights, of LARS that of matrices alone."""

    def __init__(self, parameters: Iterable[nn.Parameter], kind: str, lr: float) -> None:
        super().__init__(list(parameters), {"kind": kind, "lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for p in group["params"]:
            assert p.grad is not None
            step = p.grad / (p.grad.abs() + 1e-8) if group["kind"] == "lamb" else p.grad
            sized = group["kind"] == "lamb" or p.ndim > 1
            share = (1.0 if group["kind"] == "lamb" else 0.01) * p.norm() / step.norm() if sized else 1.0
            p.add_(step * share, alpha=-group["lr"])


class Centralized(torch.optim.SGD):
    """Gradient centralization: each row of a weight's gradient less its mean."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if p.ndim > 1:
                p.grad -= p.grad.flatten(1).mean(1).view(-1, *[1] * (p.ndim - 1))
        super().step()


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    """A head that learns ten times as fast, as in fine-tuning."""
    own = [*model.children()]
    body = [p for one in own[:-1] for p in one.parameters()]
    return torch.optim.SGD([{"params": body, "lr": 0.01}, {"params": own[-1].parameters(), "lr": 0.1}])


RULES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.05),
    "nesterov": lambda model: torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True),
    "lars": lambda model: Trust(model.parameters(), "lars", 1.0),
    "groups": grouped,
    "lamb": lambda model: Trust(model.parameters(), "lamb", 0.01),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters(), lr=0.01),
    "adam": lambda model: torch.optim.Adam(model.parameters(), 1e-3),
    "adadelta": lambda model: torch.optim.Adadelta(model.parameters(), 1.0),
    "rprop": lambda model: torch.optim.Rprop(model.parameters(), 1e-3),
}


def trained(
    kind: type[nn.Module], rule: str, count: int, seed: int, *, steps: int = 1, values: bool = False
) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor], Tensor]:
    """The network, its weights before and after a client's steps, and the examples of the first."""
    torch.manual_seed(seed)
    model, shape = kind(), (20,) if kind is Rows else (3, 8, 8)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    optimizer, seen = RULES[rule](model), torch.rand(count, *shape)
    for step in range(steps):
        x = seen if step == 0 else torch.rand(count, *shape)
        y = torch.randint(0, 6, (count,))
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), torch.randn_like(model(x))) if values else F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return model, before, {name: t.clone() for name, t in model.state_dict().items()}, seen


def checked(folder: Path, kind: type[nn.Module], rule: str, count: int, seed: int, **stated: object) -> Check:
    _, before, after, seen = trained(kind, rule, count, seed)
    torch.save(before, folder / "before.pt")
    torch.save(after, folder / "after.pt")
    capture = Capture(
        before=folder / "before.pt", after=folder / "after.pt", architecture=Spec(f"{HERE}:{kind.__name__}"),
        input_shape=tuple(seen.shape[1:]), **stated,
    )  # fmt: skip
    return check_capture(capture, Look(), named=True).cases[0]


def fact(check: Check, name: str) -> tuple[str, str]:
    return next((one.value, one.origin) for one in check.facts if one.name == name)


@pytest.mark.parametrize("kind", [Rows, Maps])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("rule", [*RULES])
def test_neurons_tell_one_step_at_one_rate_from_all_else(kind: type[nn.Module], rule: str, values: bool) -> None:
    shape = (20,) if kind is Rows else (3, 8, 8)
    for seed in range(3):
        for steps in (1, 2):
            model, before, after, _ = trained(kind, rule, 1 + 3 * seed, seed, steps=steps, values=values)
            moved = {name: after[name] - before[name] for name in before}
            found = balance_of(model, shape, moved, before)
            if rule in ("sgd", "nesterov") and steps == 1:
                assert found is not None
                assert not found.rates
            elif rule in ("lars", "groups") and steps == 1:
                assert found is not None
                names, slopes = [*found.rates], slope(kind, before, 1 + 3 * seed, seed, values=values)
                true = [float(moved[name].norm() / slopes[name]) for name in names]
                assert [rate * true[0] for rate in found.rates.values()] == pytest.approx(true, rel=1e-3)
            else:
                assert found is None


class Upward(nn.Module):
    """A convolution that is transposed, whose weight has its inputs first, and a scale of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.last = nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 16, 2, 2), nn.Conv2d(16, 2, 1)
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.up(self.down(x).relu() * self.weight).tanh())
        return logits


def test_weights_of_any_shape_are_looked_at() -> None:
    assert homogeneous_pairs(Upward(), (3, 8, 8)) == []


def slope(
    kind: type[nn.Module], before: dict[str, Tensor], count: int, seed: int, *, values: bool
) -> dict[str, Tensor]:
    """Norms of the gradient by hand: what SGD at a rate of one moves."""
    _, _, after, _ = trained(kind, "sgd", count, seed, values=values)
    return {name: (after[name] - before[name]).norm() / 0.05 for name in before}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_noise_and_clipped_entries_keep_no_balance(steps: int, scale: float) -> None:
    for seed in range(20):
        model, before, after, _ = trained(Rows, "sgd", 4, seed, steps=steps)
        moved = {name: after[name] - before[name] for name in before}
        spread = scale * torch.cat([t.flatten() for t in moved.values()]).std()
        noisy = {name: t + spread * torch.randn(t.shape) for name, t in moved.items()}
        cut = {name: t.clamp(-spread, spread) for name, t in moved.items()}
        assert balance_of(model, (20,), noisy, before) is None
        assert balance_of(model, (20,), cut, before) is None


@pytest.mark.parametrize("rule", ["lars", "groups"])
def test_tensors_with_rates_of_their_own_are_read_at_one(tmp_path: Path, rule: str) -> None:
    found = checked(tmp_path, Rows, rule, 1, 3)
    words, origin = fact(found, "optimizer")
    assert origin == "inferred"
    assert words.startswith("SGD with rates of their own")
    assert found.exposure.examples == 1
    assert fact(found, "learning rate")[1] == "inferred"


@pytest.mark.parametrize("rule", ["lamb", "adafactor"])
def test_steps_that_keep_no_rows_show_no_example(tmp_path: Path, rule: str) -> None:
    for count in (1, 4):
        found = checked(tmp_path, Rows, rule, count, count)
        assert found.exposure.examples == found.exposure.vectors == 0
        assert not found.exposure.of("span")
        words, _ = fact(found, "optimizer")
        assert ("Adafactor" if rule == "adafactor" else "LAMB") in words
        assert fact(found, "labels")[1] == "assumed"


@pytest.mark.parametrize("share", [3e-4, 0.003, 0.019])
def test_signs_of_sizes_that_hardly_differ_are_signs(share: float) -> None:
    for kind in (Rows, Maps):
        torch.manual_seed(0)
        before = {name: t.clone() for name, t in kind().state_dict().items()}
        last, moved = len(before) - 1, {}
        for place, (name, t) in enumerate(before.items()):
            moved[name] = t - 0.01 * (1 + share * place / last) * torch.randn_like(t).sign() - t
        found = adaptive_step(moved, before)
        assert found is not None
        assert "one size of its own" in found.other


@pytest.mark.parametrize("rule", [one for one in RULES if one != "adafactor"])
def test_no_other_optimizer_is_taken_for_adafactor(rule: str) -> None:
    for seed in range(10):
        for count in (1, 2, 4, 16):
            for kind in (Rows, Maps):
                _, before, after, _ = trained(kind, rule, count, seed)
                moved = {name: after[name] - before[name] for name in before}
                assert factored(moved, before, Formats()) is None


@pytest.mark.parametrize("rule", ["adagrad", "nadam", "rmsprop"])
def test_neurons_that_one_of_several_steps_reached_are_not_adafactors(rule: str) -> None:
    """Their entries are of one size each, which weighs out every row by itself: 39 of 1,500 such clients were named."""
    made = {"adagrad": torch.optim.Adagrad, "nadam": torch.optim.NAdam, "rmsprop": torch.optim.RMSprop}[rule]
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 5))
        before = {name: t.clone() for name, t in model.state_dict().items()}
        optimizer = made(model.parameters(), lr=1e-3)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.rand(1, 30)), torch.randint(5, (1,))).backward()
            optimizer.step()
        moved = {name: t - before[name] for name, t in model.state_dict().items()}
        assert factored(moved, before, Formats()) is None, seed


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15])
def test_signs_under_noise_in_half_precision_are_not_adafactors(share: float) -> None:
    """Rows of one pattern weigh one another out whatever the rule: a step of NAdam under noise was named."""
    for seed in range(20):
        torch.manual_seed(seed)
        before = {name: t.half().float() for name, t in Rows().state_dict().items()}
        signs = {name: 2e-3 * torch.randn_like(t).sign() for name, t in before.items()}
        moved = {
            name: (t + signs[name] * (1 + share * torch.randn_like(t))).half().float() - t for name, t in before.items()
        }
        assert factored(moved, before, Formats(stored="float16")) is None, seed


def test_steps_of_one_rate_are_counted_by_neurons(tmp_path: Path) -> None:
    found = checked(tmp_path, Rows, "sgd", 16, 0)
    assert fact(found, "local steps")[0].startswith("1, as several would")
    assert fact(found, "local steps")[1] == "inferred"


class Logit(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 1))


@pytest.mark.parametrize("stated", [False, True])
def test_zeros_and_ones_are_read_where_somebody_states_sgd(tmp_path: Path, stated: bool) -> None:
    torch.manual_seed(0)
    model, row = Logit(), (torch.rand(1, 20) > 0.6).float()
    torch.save(model.state_dict(), tmp_path / "before.pt")
    F.binary_cross_entropy_with_logits(model(row)[:, 0], torch.ones(1)).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    own = Spec("fedavg", {"loss": "bce", "lr": 0.1, "steps": 1}) if stated else Spec("fedsgd", {"loss": "bce"})
    capture = Capture(
        before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Spec(f"{HERE}:Logit"), client=own,
        input_shape=(20,), batch_size=1,
    )  # fmt: skip
    found = check_capture(capture, Look(), named=True).cases[0]
    assert found.exposure.examples == stated
    assert any("of SGD on zeros and ones" in note for note in found.exposure.notes) is not stated
    assert found.exposure.of("labels")[0].evidence["present"] == (1,)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_leftovers_of_rank_are_no_batch_size(tmp_path: Path, noise: float) -> None:
    for seed in range(3):
        _, before, after, seen = trained(Rows, "sgd", 12, seed, values=True)
        sent = {name: (t + noise * (t - before[name]).std() * torch.randn(t.shape)) for name, t in after.items()}
        torch.save(before, tmp_path / "before.pt")
        torch.save({name: t.half() if not noise else t for name, t in sent.items()}, tmp_path / "after.pt")
        capture = Capture(
            before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Spec(f"{HERE}:Rows"),
            input_shape=tuple(seen.shape[1:]), client=Spec("fedsgd", {"loss": "mse"}), target="value",
        )  # fmt: skip
        found = check_capture(capture, Look(), named=True).cases[0]
        assert found.exposure.batch_size is None
        assert fact(found, "batch size")[1] == "unknown"


def test_several_steps_on_other_batches_are_never_called_one() -> None:
    """Nor where their directions have next to nothing to do with each other, at rates down to rounding."""
    told = 0
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        width, steps = (20, 100, 784)[seed % 3], 1 + seed % 4
        hidden = (16, 128)[seed // 12 % 2]
        model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 10))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        rule = torch.optim.SGD(model.parameters(), lr=10 ** float(-4 + 3 * torch.rand((), generator=draw)))
        for _ in range(steps):
            rule.zero_grad()
            x, y = torch.randn(4, width, generator=draw), torch.randint(10, (4,), generator=draw)
            F.cross_entropy(model(x), y).backward()
            rule.step()
        moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
        found = balance_of(model, (width,), moved, before)
        single = found is not None and found.single
        assert not single or steps == 1, seed
        told += single
    assert told >= 2


def test_rows_of_centralized_gradients_are_no_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over its bias a row is one example less its mean, which was called an example exactly."""
    monkeypatch.setitem(RULES, "centralized", lambda model: Centralized(model.parameters(), 0.05))
    for seed in range(3):
        found = checked(tmp_path, Rows, "centralized", 3, seed).exposure
        assert [one.name for one in found.defenses] == ["centered"]
        assert (found.examples, found.at_least) == (0, 3)
        plain = checked(tmp_path, Rows, "sgd", 3, seed).exposure
        assert plain.defenses == ()
        assert plain.examples


class OfMaps(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 32), nn.ReLU(), nn.Linear(32, 6)
        )


@pytest.mark.parametrize("kind", [Rows, OfMaps])
def test_steps_on_the_same_examples_count_these_once(tmp_path: Path, kind: type[nn.Module]) -> None:
    """Four steps on three gave the second layer twelve inner vectors, and the client "at least 12 examples"."""
    more = []
    for seed in range(3):
        torch.manual_seed(seed)
        model, x, y = kind(), torch.rand(3, *((20,) if kind is Rows else (3, 8, 8))), torch.tensor([0, 1, 4])
        torch.save(model.state_dict(), tmp_path / "before.pt")
        optimizer = torch.optim.SGD(model.parameters(), 0.2)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.save(model.state_dict(), tmp_path / "after.pt")
        asked = Capture(
            before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Spec(f"{HERE}:{kind.__name__}"),
            input_shape=tuple(x.shape[1:]),
        )  # fmt: skip
        check = check_capture(asked, Look(), named=True).cases[0]
        more.append((check.exposure.at_once or 0) > 3)
        assert check.exposure.at_least == (3 if kind is Rows else None)
        value, origin = fact(check, "batch size")
        assert (value.split()[0], origin) == ("3", "inferred") if kind is Rows else origin in ("assumed", "unknown")
        stated = check_capture(replace(asked, batch_size=3), Look(), named=True).cases[0].exposure
        assert any("cannot give" in note for note in stated.notes) == more[-1]
    assert any(more)
