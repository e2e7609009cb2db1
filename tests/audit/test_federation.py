"""A federation against plain FedAvg by hand, and stopped and resumed to the same bits."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage import Batch, FedAvg, FedSGD, GaussianNoise, SeepageError
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.plans import Federation
from seepage.audit.simulate.federation import CheckpointFolder, Clients, FederationState, federate
from seepage.base.nn import state_of
from seepage.federation.defenses import ZeroSumNoise
from seepage.federation.types import ClientUpdate, Tensors
from seepage.measure.privacy.accounting import epsilon
from seepage.report.frontier.utility import FederatedSetting

DRAW = torch.Generator().manual_seed(0)
LABELS = torch.arange(120) % 3
INPUTS = torch.rand(120, 6, generator=DRAW) + torch.nn.functional.one_hot(LABELS, 6) * 0.7


def lookup(places: Tensor) -> Batch:
    return Batch(INPUTS[places], LABELS[places], places)


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def clients(rule: ClientUpdate | None = None, **options: object) -> Clients:
    parts = list(torch.arange(96).tensor_split(8))
    return Clients(
        network(), rule or FedAvg(lr=0.2, batch_size=4), parts, lookup, test=lookup(torch.arange(96, 120)), **options
    )  # type: ignore[arg-type]


def same(a: Tensors, b: Tensors) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("shares", [(12,) * 8, (4, 6, 8, 10, 12, 14, 18, 24)])
def test_a_round_is_the_mean_over_examples_of_what_its_clients_send(shares: tuple[int, ...]) -> None:
    all_ = replace(clients(), parts=list(torch.arange(96).split(list(shares))))
    plan, start = Federation(rounds=1, clients=8, share=0.5), state_of(all_.model)
    stage = federate(all_, start, plan)
    chosen = all_.chosen(0, plan)
    assert len(chosen) == 4
    total: Tensors = {name: torch.zeros_like(p) for name, p in start[0].items()}
    for client in chosen:
        rule = FedAvg(lr=0.2, batch_size=4).for_round(0, client)
        own = rule(all_.model, start[0], lookup(all_.parts[client]), buffers=start[1])
        for name, tensor in own.tensors.items():
            total[name] += tensor * len(all_.parts[client]) / sum(len(all_.parts[one]) for one in chosen)
    for name, tensor in stage.params.items():
        torch.testing.assert_close(tensor, start[0][name] + total[name])


def test_the_promise_is_to_the_client_that_took_part_in_most_rounds() -> None:
    plan, noise = Federation(rounds=6, clients=8, share=0.5), GaussianNoise(sigma=2.0, clip=1.0)
    shy = clients(defense=noise)
    most = max(sum(client in shy.chosen(t, plan) for t in range(6)) for client in range(8))
    found = shy.promise(plan)
    assert found is not None
    assert (found.rounds, found.epsilon) == (most, epsilon(sigma=2.0, rounds=most))
    assert 1 < most < 6
    assert clients().promise(plan) is None


@pytest.mark.parametrize("proportional", [False, True])
def test_masks_that_cancel_leave_the_training_as_it_is(proportional: bool) -> None:
    plan, plain = Federation(rounds=2, clients=8, share=0.5), clients()
    masked = replace(plain, defense=ZeroSumNoise(sigma=0.5, proportional=proportional))
    states = [federate(every, state_of(plain.model), plan).params for every in (plain, masked)]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, atol=1e-5, rtol=1e-4)


def test_gradients_are_stepped_down() -> None:
    plan = Federation(rounds=1, clients=8, share=1.0, lr=0.3)
    all_ = clients(FedSGD(mode="eval"))
    start = state_of(all_.model)
    stage = federate(all_, start, plan)
    pooled = FedSGD(mode="eval")(all_.model, start[0], lookup(torch.arange(96)), buffers=start[1])
    for name, tensor in stage.params.items():
        torch.testing.assert_close(tensor, start[0][name] - 0.3 * pooled.tensors[name])


def test_it_learns_and_says_how_well() -> None:
    stage = federate(clients(), state_of(network()), Federation(rounds=30, clients=8, share=0.5))
    assert stage.t == 30
    assert stage.accuracies[-1][0] == 30
    assert stage.accuracies[-1][1] > 0.8 > stage.accuracies[0][1] - 0.3
    assert int(stage.buffers["1.num_batches_tracked"]) == 30


def test_running_statistics_follow_the_clients() -> None:
    """After many rounds at frozen weights they are the data's own, as the clients' batches see them."""
    all_ = clients(FedSGD())
    stage = federate(all_, state_of(all_.model), Federation(rounds=80, clients=8, share=1.0, lr=1e-9))
    with torch.no_grad():
        hidden = all_.model[0](INPUTS[:96])  # type: ignore[operator]
    torch.testing.assert_close(stage.buffers["1.running_mean"], hidden.mean(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("defense", [None, GaussianNoise(sigma=0.01, clip=1.0)])
def test_a_stopped_federation_goes_on_to_the_same_bits(tmp_path: Path, defense: GaussianNoise | None) -> None:
    all_, plan = clients(defense=defense), Federation(rounds=20, clients=8, share=0.3, examples=6)
    start = state_of(all_.model)
    whole = federate(all_, start, plan)

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 13:
            raise Stop

    kept = CheckpointFolder(tmp_path)
    with pytest.raises(Stop):
        federate(all_, start, plan, checkpoints=kept, progress=stop)
    seen: list[int] = []
    resumed = federate(all_, start, plan, checkpoints=kept, progress=lambda done, total: seen.append(done))
    assert seen[0] == 14
    assert same(whole.params, resumed.params)
    assert same(whole.buffers, resumed.buffers)
    assert whole.accuracies == resumed.accuracies


def test_however_often_it_is_stopped_no_stage_stays_that_nobody_asked_for(tmp_path: Path) -> None:
    all_, start, plan, kept = (
        clients(),
        state_of(network()),
        Federation(rounds=9, clients=8),
        CheckpointFolder(tmp_path),
    )

    def stopped_after(rounds: int) -> Callable[[int, int], None]:
        def progress(done: int, total: int) -> None:
            if done >= rounds:
                raise KeyboardInterrupt

        return progress

    for rounds in (2, 4, 7):
        with pytest.raises(KeyboardInterrupt):
            federate(all_, start, plan, checkpoints=kept, progress=stopped_after(rounds))
        assert [path.name for path in tmp_path.glob("*.safetensors")] == [f"{rounds:06d}.safetensors"]
    # Killed between the writing of a stage and the removal of the one before.
    for suffix in (".json", ".safetensors"):
        shutil.copy(tmp_path / f"000007{suffix}", tmp_path / f"000003{suffix}")
    found = federate(all_, start, plan, checkpoints=kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000009.json", "000009.safetensors"]
    assert same(found.params, federate(all_, start, plan).params)
    # Those that were asked for stay, whatever starts from them.
    with pytest.raises(KeyboardInterrupt):
        federate(all_, start, Federation(rounds=14, clients=8), checkpoints=kept, progress=stopped_after(11))
    federate(all_, start, Federation(rounds=14, clients=8), checkpoints=kept)
    assert [path.stem for path in sorted(tmp_path.glob("*.json"))] == ["000009", "000014"]


def test_a_later_stage_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    all_, start = clients(), state_of(network())
    kept = CheckpointFolder(tmp_path)
    federate(all_, start, Federation(rounds=5, clients=8), checkpoints=kept)
    seen: list[int] = []
    later = federate(
        all_, start, Federation(rounds=9, clients=8), checkpoints=kept, progress=lambda done, _: seen.append(done)
    )
    assert seen == [6, 7, 8, 9]
    assert same(later.params, federate(all_, start, Federation(rounds=9, clients=8)).params)
    assert (tmp_path / "000005.safetensors").exists(), "stages that were asked for stay"
    assert {path.stem for path in tmp_path.glob("*.safetensors")} == {"000005", "000009"}


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    federate(clients(), state_of(network()), Federation(rounds=2, clients=8), checkpoints=CheckpointFolder(tmp_path))
    other = nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
    with pytest.raises(SeepageError, match="does not fit the model"):
        CheckpointFolder(tmp_path).latest(2, FederationState(0, *state_of(other)))


def test_the_model_is_left_as_it_was() -> None:
    all_ = clients()
    before = {name: tensor.clone() for name, tensor in all_.model.state_dict().items()}
    federate(all_, state_of(all_.model), Federation(rounds=2, clients=8))
    assert same(before, dict(all_.model.state_dict()))


def test_clients_without_data_never_take_part() -> None:
    all_ = clients()
    all_ = Clients(all_.model, all_.rule, [*all_.parts[:2], torch.arange(0)], lookup)
    assert {client for t in range(30) for client in all_.chosen(t, Federation(clients=3, share=0.3))} == {0, 1}
    nobody = Clients(all_.model, all_.rule, [torch.arange(0)], lookup)
    with pytest.raises(SeepageError, match="holds any example"):
        federate(nobody, state_of(all_.model), Federation(rounds=1, clients=1))


def test_a_federation_that_blows_up_says_so() -> None:
    with pytest.raises(SeepageError, match="not finite"):
        federate(clients(FedAvg(lr=1e30, batch_size=4)), state_of(network()), Federation(rounds=50, clients=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rounds": -1}, "rounds must be a whole number >= 0"),
        ({"clients": 0}, "clients must be a whole number >= 1"),
        ({"share": 0.0}, "share must be a number > 0 and <= 1"),
        ({"share": 1.5}, "share must be a number > 0 and <= 1"),
        ({"examples": 0}, "examples must be a whole number >= 1"),
        ({"lr": 0.0}, "lr must be a number > 0"),
    ],
)
def test_impossible_plans_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        Federation(**options)  # type: ignore[arg-type]


def test_epsilon_is_that_of_the_client_that_takes_part_most_often() -> None:
    all_, plan = clients(), Federation(rounds=5, clients=8, share=0.5)
    setting = FederatedSetting(Recipe(attack=()), plan, all_, state_of(all_.model), 0)
    taken = [sum(client in all_.chosen(t, plan) for t in range(5)) for client in range(8)]
    assert min(taken) < max(taken) == len(setting.busiest())
