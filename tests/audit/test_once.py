"""What is costly is done once: a round's update when it is recorded, a model and a round's file for each attack."""

import pickle
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from seepage.audit.attack import Source, Task, attack_cases
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.record import record_cases
from seepage.base.executor import LocalExecutor, Plan
from seepage.base.nn import generator
from seepage.base.registry import Spec
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.transcript import recorded
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.types import LocalProblem, Update

DIGITS = """
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 24 }
attack = [{ use = "linear" }]
"""
SETTINGS = {
    "one gradient": (DIGITS + "batch = { size = 2, count = 3 }", FedSGD, 3),
    "local steps": (
        DIGITS + 'batch = { size = 2, count = 2 }\nclient = { use = "fedavg", steps = 2, batch_size = 1 }',
        FedAvg,
        2,
    ),
    "a sum of clients": (DIGITS + "batch = { size = 4, count = 2 }\nclient = { clients = 2 }", FedSGD, 4),
    "trained meanwhile": (
        """
data = { use = "digits", size = 8 }
model = { use = "vertical", channels = 8 }
batch = { size = 4 }
rounds = { design = "partitions", count = 5, samples = 12, optimizer = "adam", lr = 1e-4 }
knowledge = { known = ["indices"] }
attack = [{ use = "cafe" }]
""",
        FedSGD,
        5,
    ),
}


@pytest.mark.parametrize(("recipe", "rule", "updates"), SETTINGS.values(), ids=SETTINGS)
def test_recording_asks_the_rule_once_for_each_update(
    recipe: str, rule: type[FedSGD | FedAvg], updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    compute = rule.compute

    def counted(self: FedSGD, problem: LocalProblem) -> Update:
        asked.append(len(problem.batch))
        return compute(self, problem)  # type: ignore[arg-type]

    monkeypatch.setattr(rule, "compute", counted)
    record_cases(resolve_cases(tomllib.loads(recipe)), tmp_path)
    assert len(asked) == updates


def recorded_case(folder: Path) -> Source:
    tables = tomllib.loads(DIGITS + 'batch = { size = 2, count = 3 }\nknowledge = { known = ["labels"] }')
    recipes = resolve_cases(tables)
    record_cases(recipes, folder)
    return Source("case", folder / "observed", None, trust=True)


def test_an_attack_opens_its_model_and_each_round_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, found = recorded_case(tmp_path), Counter[str]()
    opened, read = recorded._open_knowledge, recorded.read_tensors
    monkeypatch.setattr(recorded, "_open_knowledge", lambda *a: found.update(["model"]) or opened(*a))
    monkeypatch.setattr(
        recorded, "read_tensors", lambda path, *a, **k: found.update([Path(path).name]) or read(path, *a, **k)
    )
    recipe = Recipe(attack=(Spec("inverting_gradients", {"steps": 2}),))
    attack_cases([replace(source, recipe=recipe)], tmp_path, 1)
    # Three rounds, attacked one by one.
    rounds = {f"{t:06d}.safetensors": 1 for t in range(3)}
    assert found == {"model": 3, "model.safetensors": 3} | rounds


def test_an_open_transcript_holds_no_more_rounds_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded_case(tmp_path)
    transcript = open_transcript(tmp_path / "observed")
    first = transcript[0]
    assert transcript[0] is first
    size = (tmp_path / "observed" / "rounds" / "000000.safetensors").stat().st_size
    monkeypatch.setattr(recorded, "MAX_CACHED_BYTES", 2 * size)
    for t in range(3):
        assert transcript[t].t == t
    assert sorted(transcript._cache.rounds) == [1, 2]
    monkeypatch.setattr(recorded, "MAX_CACHED_BYTES", 0)
    assert transcript[0] is not first
    assert list(transcript._cache.rounds) == [0]
    save_transcript(transcript, tmp_path / "again")
    for name in ("rounds/000000.safetensors", "rounds/000002.safetensors", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "observed" / name).read_bytes()


class Collecting(LocalExecutor):
    """Runs nothing and keeps what it was to run."""

    def __init__(self) -> None:
        object.__setattr__(self, "tasks", [])
        object.__setattr__(self, "devices", [])

    def run(self, works, plan: Plan, folder: Path, done) -> None:  # type: ignore[no-untyped-def]
        self.tasks.extend(works)  # type: ignore[attr-defined]
        self.devices.append({work.device for work in works})  # type: ignore[attr-defined]


def tasks_of(folder: Path, tables: str) -> list[Task]:
    recipes = resolve_cases(tomllib.loads(tables))
    record_cases(recipes, folder)
    sources = [
        Source(recipe.case, folder / "observed" / recipe.case, None, trust=True, recipe=recipe) for recipe in recipes
    ]
    executor = Collecting()
    attack_cases(sources, folder, 1, on=executor)
    tasks: list[Task] = executor.tasks  # type: ignore[attr-defined]
    return tasks


GRID = """
seed = 5
data = { use = "digits", size = 8 }
model = { use = "fc2", hidden = 24 }
batch = { size = 1, count = 3 }
attack = [{ use = "linear" }, { use = "dlg", steps = 1 }, { use = "dlg", steps = 2 }]
grid = { "training.steps" = [0, 1] }
"""


def test_every_attack_case_and_round_has_a_seed_of_its_own_that_stays(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path / "a", GRID)
    seeds = {(task.case, task.name, task.t): task.seed for task in tasks}
    assert len(seeds) == len(tasks) == 2 * 3 * 3
    assert len(set(seeds.values())) == len(seeds), "no two pieces of work draw the same numbers"
    assert all(0 <= seed < 2**31 for seed in seeds.values())
    # A seed hangs on what is attacked, not on what else the run does or in which order.
    swapped = GRID.replace("[0, 1]", "[1, 0]").replace('{ use = "linear" }, ', "")
    fewer = {(task.case, task.name, task.t): task.seed for task in tasks_of(tmp_path / "b", swapped)}
    assert fewer.items() <= seeds.items()
    assert len(fewer) == 2 * 2 * 3
    # And it is the documented one.
    wanted = generator(5, "attack/steps-1/dlg-2", 2).initial_seed() % 2**31
    assert seeds["steps-1", "dlg-2", 2] == wanted
    another = {task.seed for task in tasks_of(tmp_path / "c", GRID.replace("seed = 5", "seed = 6"))}
    assert not another & set(seeds.values())


def test_no_recipe_travels_to_a_worker(tmp_path: Path) -> None:
    """Its seed would draw the truth again: what is sent does not so much as name it."""
    source = Source("case", tmp_path, None, recipe=Recipe(name="whose-seed", seed=7))
    for one in (source, source.for_attack()):
        sent = pickle.dumps(one)
        assert b"Recipe" not in sent
        assert b"whose-seed" not in sent
        assert pickle.loads(sent).recipe == Recipe()
