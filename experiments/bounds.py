r"""Does any attack on a noisy update beat the bound of its setting? All rows of results/ with noise, and their bounds.

python experiments/bounds.py psnr --data ../shared/data/cifar10.npz --tiny ../shared/data/tiny_imagenet_64.npz
python experiments/bounds.py psnr --only "defenses/leakage" --budget 30
python experiments/bounds.py membership
python experiments/bounds.py attained --data ../shared/data/cifar10.npz

`psnr`: builds the setting of each row again (network, weights, private examples, defense), computes the bound in
decibels with the training examples of its data as public ones, and writes one row of results/bounds/psnr.jsonl per
setting with what every attack of that setting reached. A score that is a mean of decibels over examples stands beside
the mean of the examples' bounds, a median beside their median. `membership`: results/bounds/membership.jsonl, the true
positive rates of the rows behind clipped noise beside Phi(Phi^-1(alpha) + mu). `attained`: the best attacks there are,
in results/bounds/attained.jsonl, on real updates of CIFAR-10 that the real defense noised 1,000 times: a likelihood
ratio between two batches that differ in one image, and the most likely of N candidates. Settings that are there are
skipped.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import defenses as study_of_defenses
import generative
import patches
import torch
from common import draw, fit, kept, parts, trained_fc2
from torch import nn

import seepage.federation.data
from seepage.api import record
from seepage.audit.recipe.files import find_recipe, read_recipe
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.simulate.setting import Setting
from seepage.base.nn import generator, norm
from seepage.base.schema import Share
from seepage.federation.clients import FedSGD
from seepage.federation.defenses import GaussianNoise
from seepage.federation.models import build
from seepage.federation.types import Architecture, Batch, ClientUpdate, ClientView, Defense, Tensors, Update
from seepage.measure.bounds import BoundOptions, gaussian_auc, gaussian_tpr, upper_bounds
from seepage.papers.items import find_item
from seepage.papers.records import RESULTS, Record, keep_measured, read_file
from seepage.report.frontier.sweep import sweep_of

MOST_PUBLIC = 600
STATED = ("gaussian_noise", "unit_norm_noise", "laplace_noise", "dp_sgd")
"""Defenses that state the strength of their noise; OUTPOST and zero-sum noise state none."""
CLASSES = patches.CLASSES


@dataclass(frozen=True)
class Attacked:
    """One update of a setting."""

    model: nn.Module
    batch: Batch
    client: ClientUpdate | None = None
    params: Tensors | None = None
    buffers: Tensors | None = None
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """A setting with what its attacks reached.

    Attributes:
        study: Where the rows are.
        name: What the setting is called there.
        defense: What the client does.
        updates: The attacked updates.
        public: Examples that are not private.
        reached: For each row its score in decibels and the score's interval.
        median: Whether the scores are medians over examples; else means.
        rounds: How often each batch was sent.
    """

    study: str
    name: str
    defense: Defense | None
    updates: Sequence[Attacked]
    public: Batch
    reached: dict[str, tuple[float, float, float]]
    median: bool = False
    rounds: int = 1
    facts: dict[str, Any] = field(default_factory=dict)


def scores(rows: Sequence[Record], key: str) -> dict[str, tuple[float, float, float]]:
    """The best score of each row, with its interval where it has one."""
    found: dict[str, tuple[float, float, float]] = {}
    for row in rows:
        value = row.facts.get(key) if row.facts.get(key) is not None else row.value
        if value is None:
            continue
        low, high = row.interval or (row.facts.get("psnr_low") or value, row.facts.get("psnr_high") or value)
        if row.row not in found or value > found[row.row][0]:
            found[row.row] = (value, low, high)
    return found


def shown(data: Any, places: torch.Tensor) -> Batch:
    batch = data.batch(places[torch.randperm(len(places), generator=torch.Generator().manual_seed(1))][:MOST_PUBLIC])
    return Batch(batch.inputs, batch.labels)


def leakage(_: argparse.Namespace) -> Iterator[Case]:
    """results/defenses/leakage.jsonl: faces of 16 pixels, fresh networks."""
    rows = read_file(RESULTS / "defenses" / "leakage.jsonl")
    data = seepage.federation.data.load("faces", size=16)
    for parts_of in study_of_defenses.GRID:
        name = study_of_defenses.words(parts_of)
        if not any(word in name for word in STATED):
            continue
        for case, (use, _size, _attacks) in study_of_defenses.CASES.items():
            model = build(Architecture(use), (1, 16, 16), 2, seed=0)
            updates = [Attacked(model, batch, seed=i) for i, batch in enumerate(study_of_defenses.truth(case, 4))]
            mine = [row for row in rows if row.facts["defense"] == name and row.facts["case"] == case]
            yield Case(
                "defenses/leakage",
                f"{name}, {case}",
                study_of_defenses.make(parts_of),
                updates,
                shown(data, data.train),
                scores(mine, "psnr_median"),
                median=True,
            )


def frontier(_: argparse.Namespace) -> Iterator[Case]:
    """results/defenses/frontier.jsonl and known.jsonl: digits, a federation's network."""
    for study, recipe in (
        ("defenses/frontier", find_recipe("frontier")),
        ("defenses/known", Path("experiments/recipes/known.toml")),
    ):
        rows = read_file(RESULTS / f"{study}.jsonl")
        for entry in sweep_of(read_recipe(recipe)).entries:
            if not any(word in entry.name for word in STATED):
                continue
            for case, who in ((entry.recipe, "oblivious"), (entry.known, "knows")):
                if case is None:
                    continue
                mine = [row for row in rows if row.row == f"{entry.name}, attacker {who}"]
                yield of_recipe(study, f"{entry.name}, attacker {who}", case, scores(mine, "psnr_median"), median=True)


def of_recipe(study: str, name: str, case: Any, reached: dict[str, tuple[float, float, float]], **more: Any) -> Case:
    """The case of a recipe's case."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting.of(case).after_federation(Path(folder))
    params, buffers = setting.state
    client = case.make_client()
    updates = [Attacked(setting.model, batch, client, params, buffers, case.seed) for batch in setting.batches]
    public = shown(setting.dataset, setting.dataset.train if len(setting.dataset.train) else setting.unseen)
    return Case(study, name, case.make_defense(), updates, public, reached, **more)


def averaged(_: argparse.Namespace) -> Iterator[Case]:
    """results/defenses/averaged.jsonl: a digit sent 200 times, read once and on average."""
    rows = read_file(RESULTS / "defenses" / "averaged.jsonl")
    (case,) = resolve_cases(read_recipe(Path("experiments/recipes/averaged.toml")))
    for attack, rounds in (("linear", 1), ("averaged", 200)):
        mine = [row for row in rows if row.facts["attack"] == attack]
        yield of_recipe("defenses/averaged", f"{rounds} rounds", case, scores(mine, "psnr"), rounds=rounds)


def cocktail(given: argparse.Namespace) -> Iterator[Case]:
    """results/cpa/noise.jsonl: a trained fully connected network, 8 images of 64 pixels."""
    rows = read_file(RESULTS / "cpa" / "noise.jsonl")
    model, test = trained_fc2(given.tiny, hidden=256, epochs=20)
    train, _rest = parts(given.tiny)
    public = Batch(train.inputs[:MOST_PUBLIC], train.labels[:MOST_PUBLIC])
    seeds = sorted({int(seed) for row in rows for seed in row.seeds})
    for sigma in (1e-4, 1e-3, 1e-2):
        for seed in seeds:
            batch = draw(test, 8, seed)
            length = float(norm(record(model, batch)[0].update.tensors))
            mine = [row for row in rows if row.facts["sigma"] == sigma and str(seed) in row.seeds]
            yield Case(
                "cpa/noise",
                f"sigma {sigma:g}, batch {seed}",
                GaussianNoise(sigma=sigma, clip=min(1.0, length)),
                [Attacked(model, batch)],
                public,
                scores(mine, "psnr"),
            )


def table_3(given: argparse.Namespace) -> Iterator[Case]:
    """results/reproduce/cpa-table-3.jsonl: the same from a recipe."""
    rows = read_file(RESULTS / "reproduce" / "cpa-table-3.jsonl")
    item = find_item("cpa/table-3")
    for case in resolve_cases(item.at("small", given.tiny, 0, "tiny_imagenet")):
        if not case.defense:
            continue
        mine = [row for row in rows if row.facts["case"] == case.name]
        yield of_recipe("cpa/table-3", case.name, case, scores(mine, "psnr"))


def transformers(given: argparse.Namespace) -> Iterator[Case]:
    """results/transformers/patches.jsonl: a small vision transformer, one image of 32 pixels, five times."""
    rows = read_file(RESULTS / "transformers" / "patches.jsonl")
    train, test = parts(given.data)
    public = Batch(train.inputs[:MOST_PUBLIC], train.labels[:MOST_PUBLIC])
    for setting in patches.SMALL:
        if not isinstance(setting.defense, GaussianNoise):
            continue
        updates = []
        for seed in range(patches.IMAGES):
            model = build(Architecture("vit", setting.options), tuple(train.inputs.shape[1:]), CLASSES, seed=seed)
            if setting.epochs:
                key = f"vit/{given.data}/{setting}/{seed}"
                fit(model, train, epochs=setting.epochs, size=128, seed=seed, key=key)
            updates.append(Attacked(model, draw(test, 1, seed), setting.client, seed=seed))
        mine = [row for row in rows if row.row == setting.name]
        yield Case("transformers/patches", setting.name, setting.defense, updates, public, scores(mine, "psnr"))


def generated(given: argparse.Namespace) -> Iterator[Case]:
    """results/generative/small.jsonl: one image of a fresh ConvNet, attackers with generators."""
    rows = [
        row for row in read_file(RESULTS / "generative" / "small.jsonl") if row.facts.get("defense") == "noise 0.01"
    ]
    data = seepage.federation.data.load(given.data, size=32)
    chosen = data.private[torch.randperm(len(data.private), generator=generator(0, "victims"))[:1]]
    model = build(generative.CONVNET, data.input_shape, len(data.classes), seed=0)
    yield Case(
        "generative/small",
        "noise 0.01",
        generative.DEFENSES["noise 0.01"],
        [Attacked(model, data.batch(chosen))],
        shown(data, data.train),
        scores(rows, "psnr"),
    )


SOURCES = (leakage, frontier, averaged, transformers, generated, table_3, cocktail)


def measure(case: Case, budget: float) -> None:
    """One row: the bound of a setting, and what was reached."""
    clock, examples, widths, words, reasons = time.process_time(), [], [], set(), set()
    for update in case.updates:
        options = BoundOptions(public=case.public, rounds=case.rounds, seed=update.seed, budget_seconds=budget)
        bounds = upper_bounds(
            update.model,
            update.batch,
            client=update.client,
            defense=case.defense,
            params=update.params,
            buffers=update.buffers,
            options=options,
        )
        found = bounds.of("psnr_db")
        if found is None:
            reasons |= set(bounds.reasons)
            continue
        examples += found.examples
        widths.append((found.interval[0] - found.value, found.interval[1] - found.value))
        words.add(found.assumption)
    facts: dict[str, Any] = {"rows_of": case.study, "rounds": case.rounds, "reached": case.reached, **case.facts}
    facts |= {"median": case.median, "reasons": sorted(reasons), "cpu_s": time.process_time() - clock}
    value = interval = None
    if examples:
        value = (statistics.median if case.median else statistics.fmean)(examples)
        low, high = (statistics.fmean(ends) for ends in zip(*widths, strict=True))
        interval = (value + low, value + high)
        best = max((score for score, _low, _high in case.reached.values()), default=None)
        facts |= {"examples": len(examples), "looser": sum("looser" in one for one in words)}
        facts |= {"best": best, "beyond": None if best is None else best - interval[1]}
    keep_measured("bounds/psnr", f"{case.study}: {case.name}", "psnr", value, interval=interval, **facts)
    print(case.study, case.name, value, interval, facts.get("best"), sorted(reasons), flush=True)


def psnr_rows(given: argparse.Namespace) -> None:
    done = {row for row, _ in kept("bounds/psnr")}
    for source in SOURCES:
        if given.only and source.__name__ not in given.only:
            continue
        for case in source(given):
            if case.reached and f"{case.study}: {case.name}" not in done:
                measure(case, given.budget)


def membership_rows(_: argparse.Namespace) -> None:
    """Named members and areas behind clipped noise, beside the bounds of one update."""
    done = kept("bounds/membership")
    for row in read_file(RESULTS / "membership" / "tests.jsonl"):
        if "clip 1, noise" not in row.row:
            continue
        sigma = float(row.row.rsplit(" ", 1)[1])
        # Whole updates are clipped to 1; one example more or less moves them by up to twice that.
        mu = 2 / sigma
        for seed, area in row.seeds.items():
            if (row.row, seed) in done:
                continue
            facts = {"sigma": sigma, "mu": mu, "auc": area, "auc_interval": row.interval, "auc_bound": gaussian_auc(mu)}
            facts |= {
                key: row.facts[key]
                for key in ("identified", "identified_interval", "false", "false_interval", "members")
            }
            # The rate of false alarms is itself measured: the bound at its upper end is what nothing may exceed.
            facts |= {"bound_at_upper_false": gaussian_tpr(row.facts["false_interval"][1], mu)}
            bound = gaussian_tpr(0.01, mu)
            keep_measured("bounds/membership", row.row, "tpr", bound, seed=int(seed), **facts)


DRAWS, LEVEL = 1000, 0.05


def noised(update: Tensors, defense: Defense, toward: torch.Tensor, seed: int) -> torch.Tensor:
    """`[DRAWS, k]` what each draw of the defended update has along `k` directions `[k, P]`."""
    view = ClientView(nn.Identity(), {}, Batch(torch.zeros(1, 1), torch.zeros(1).long()), FedSGD())
    draw = generator(seed, "noise of the best attack")
    rows = []
    for _ in range(DRAWS):
        sent = defense(Update(update), view, generator=draw).tensors
        rows.append(toward @ torch.cat([tensor.flatten() for tensor in sent.values()]))
    return torch.stack(rows)


def flat(update: Tensors, clip: float) -> torch.Tensor:
    whole = torch.cat([tensor.flatten() for tensor in update.values()])
    return whole * min(1.0, clip / float(whole.norm()))


def attained_rows(given: argparse.Namespace) -> None:
    """The best attacks on real updates, beside the bounds."""
    done = kept("bounds/attained")
    _train, test = parts(given.data)
    for seed in range(3):
        model = build(Architecture("lenet"), tuple(test.inputs.shape[1:]), CLASSES, seed=seed)

        def update(batch: Batch, model: nn.Module = model) -> Tensors:
            return record(model, batch)[0].update.tensors

        whole = draw(test, 32, seed)
        for n, sigma in itertools.product((1, 8), (0.1, 0.5, 1.0, 2.0)):
            name = f"likelihood ratio, one of {n} images, sigma {sigma:g}"
            if (name, str(seed)) in done:
                continue
            there = torch.arange(n)
            other = torch.cat([there[:-1], torch.tensor([31])])  # another image in the place of the last
            pair = [update(Batch(whole.inputs[places], whole.labels[places])) for places in (there, other)]
            defense = GaussianNoise(sigma=sigma, clip=1.0)
            apart = flat(pair[0], 1.0) - flat(pair[1], 1.0)
            toward = (apart / apart.norm())[None]
            member, outsider = (noised(one, defense, toward, 2 * seed + i)[:, 0] for i, one in enumerate(pair))
            threshold = outsider.sort().values[-round(LEVEL * DRAWS)]
            rate = Share.count(int((member >= threshold).sum()), DRAWS)
            bound, here = gaussian_tpr(LEVEL, 2 / sigma), gaussian_tpr(LEVEL, float(apart.norm()) / sigma)
            facts = {"n": n, "sigma": sigma, "bound": bound, "this_pair": here, "apart": float(apart.norm())}
            keep_measured(
                "bounds/attained", name, "tpr", rate.share, seed=seed, interval=rate.interval, data="cifar10", **facts
            )
        for count, sigma in itertools.product((2, 16), (0.1, 0.5, 1.0, 2.0)):
            name = f"most likely of {count} images, sigma {sigma:g}"
            if (name, str(seed)) in done:
                continue
            defense = GaussianNoise(sigma=sigma, clip=1.0)
            singles = [
                update(Batch(x[None], y[None])) for x, y in zip(whole.inputs[:count], whole.labels, strict=False)
            ]
            toward = torch.stack([flat(one, 1.0) for one in singles])  # [N, P]
            hits = 0
            for number, one in enumerate(singles):
                # The likelihood of candidate c is -|y - u_c|^2, that is y u_c - |u_c|^2 / 2.
                scores_of = noised(one, defense, toward, 100 * seed + number) - toward.square().sum(1) / 2
                hits += int((scores_of[: DRAWS // count].argmax(1) == number).sum())
            rate = Share.count(hits, DRAWS // count * count)
            facts = {"count": count, "sigma": sigma, "bound": gaussian_tpr(1 / count, 1 / sigma)}
            keep_measured(
                "bounds/attained", name, "share", rate.share, seed=seed, interval=rate.interval, data="cifar10", **facts
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["psnr", "membership", "attained"])
    parser.add_argument("--data", default="../shared/data/cifar10.npz")
    parser.add_argument("--tiny", default="../shared/data/tiny_imagenet_64.npz")
    parser.add_argument("--only", nargs="+", help="names of sources: " + ", ".join(one.__name__ for one in SOURCES))
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for the bound of one update")
    given = parser.parse_args()
    {"psnr": psnr_rows, "membership": membership_rows, "attained": attained_rows}[given.what](given)


if __name__ == "__main__":
    main()
