r"""The epsilon of filters that really run: broken ones are contradicted, honest ones are not, and the bounds hold.

python experiments/prove.py functions
python experiments/prove.py frameworks      # needs seepage[flower], seepage[nvflare] and seepage[opacus]
python experiments/prove.py nulls

`functions` and `frameworks`: each case is measured by `seepage.measure.privacy.measured` with 120,000 calls, its
default, but for code that takes longer, of frameworks and of `dp_sgd`, with what 20 seconds allow; three seeds each.
One row of results/prove/filters.jsonl each, whose value is the lower bound of epsilon without assumption; `cpu_s` are
seconds of the processor. `nulls`: a thousand Gaussian mechanisms and a thousand others, whose epsilon is known, drawn
at random and measured with 3,000 calls each; the value is the share of bounds above the truth, with its interval of
Clopper and Pearson, in results/prove/nulls.jsonl. Nothing was tuned on them.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from common import command, keep, kept
from torch import Tensor

from seepage.base.schema import Share
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured import SHAPES, MeasuredEpsilon, Measurement, Pair, measure_defense

DELTA, SECONDS = 1e-5, 20.0
Tensors = Mapping[str, Tensor]
Measure = Callable[[int], MeasuredEpsilon]


@dataclass(frozen=True)
class Case:
    """A filter with what is claimed of it.

    Attributes:
        name: What it is.
        false: Whether what is stated of it is.
        measure: Measures it with a seed.
        truth: Its epsilon, where one is known.
    """

    name: str
    false: bool
    measure: Measure
    truth: float | None = None


def norm(update: Tensors) -> float:
    return float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())


def noisy(deviation: float, clip: float = 1.0) -> Callable[[Tensors], dict[str, Tensor]]:
    """Clip the whole update, then add noise."""

    def call(update: Tensors) -> dict[str, Tensor]:
        shrink = min(1.0, clip / max(norm(update), 1e-12))
        return {name: shrink * t + deviation * torch.randn(t.shape) for name, t in update.items()}

    return call


def noise_first(update: Tensors) -> dict[str, Tensor]:
    """Noise, then the clip: a long update drowns the noise."""
    sent = {name: t + torch.randn(t.shape) for name, t in update.items()}
    shrink = min(1.0, 1.0 / norm(sent))
    return {name: shrink * t for name, t in sent.items()}


def old_svt(update: Tensors) -> dict[str, Tensor]:
    """Sparse vector technique with the fault of NVIDIA/NVFlare issue 343: some chosen values leave without noise.

    Entries whose noisy size exceeds a noisy threshold are accepted, and a tenth of all is drawn from these. The drawn
    ones get noise, those not accepted become zero, and those accepted and not drawn leave clipped, as they are.
    """
    gamma, size = 1e-5, sum(t.numel() for t in update.values())
    upload = math.ceil(0.1 * size)
    flat = torch.cat([t.flatten() for t in update.values()]).double().numpy().clip(-gamma, gamma)
    draw = np.random.default_rng()
    threshold = 1e-6 + draw.laplace(scale=gamma / 0.1)
    accepted = np.abs(flat) + draw.laplace(scale=2 * gamma / 0.1, size=size) >= threshold
    drawn = draw.choice(np.flatnonzero(accepted), upload) if accepted.any() else np.zeros(0, dtype=int)
    sent = np.where(accepted, flat, 0.0)
    sent[drawn] = flat[drawn] + draw.laplace(scale=2 * gamma / 0.1, size=len(drawn))
    parts = torch.from_numpy(sent).float().split([t.numel() for t in update.values()])
    return {name: part.reshape(t.shape) for (name, t), part in zip(update.items(), parts, strict=True)}


def functions() -> Iterator[Case]:
    """Filters as plain functions, called one by one."""
    defaults = 1e-4 * math.sqrt(2 * math.log(1.25 / DELTA)) / 10

    def measured(call: Callable[[Tensors], Any], stated: float, **options: Any) -> Measure:
        clip = options.pop("clip", 1.0)
        how = Measurement(delta=DELTA, stated=stated, seconds=None, **options)
        return lambda seed: how.epsilon(call, clip=clip, seed=seed)

    for name, deviation, stated in (
        ("clip 1, sensitivity 1e-4, epsilon 10", defaults, 10.0),
        ("sensitivity a tenth of the clip", 0.1 * math.sqrt(2 * math.log(1.25 / DELTA)) / 10, 10.0),
    ):
        true = epsilon(sigma=deviation, delta=DELTA)
        yield Case(name, True, measured(noisy(deviation), stated, computed=true), true)
    yield Case("noise before the clip", True, measured(noise_first, 10.0), None)
    yield Case("forgotten noise", True, measured(noisy(0.0), 10.0), math.inf)
    yield Case("forgotten clip", True, measured(noisy(1.0, clip=math.inf), 10.0), None)
    yield Case("a planted SVT that sends true values", True, measured(old_svt, 10.0, clip=1e-5), math.inf)
    true = epsilon(sigma=2.4, rounds=20, delta=DELTA)
    yield Case("sigma 2.4, 20 rounds", False, measured(noisy(2.4), 10.0, computed=true, rounds=20), true)
    from seepage.federation.defenses import DPSGD

    true = epsilon(sigma=1.0, delta=DELTA)
    step = DPSGD(sigma=1.0, clip=1.0)
    yield Case(
        "our dp_sgd, sigma 1",
        False,
        lambda seed: measure_defense(step, Measurement(delta=DELTA, stated=true, seconds=SECONDS), seed=seed),
        true,
    )


def frameworks() -> Iterator[Case]:
    """The real code of Flower, NVFlare and Opacus, as installed."""
    from flwr.clientapp.mod import LocalDpMod
    from nvflare.app_common.filters import PercentilePrivacy, SVTPrivacy

    from seepage.recorder import flower_filter, nvflare_filter

    def of_mod(sensitivity: float) -> Measure:
        mod = LocalDpMod(1.0, sensitivity, 10.0, DELTA)
        call, deviation = flower_filter.mod_filter(mod), sensitivity * math.sqrt(2 * math.log(1.25 / DELTA)) / 10
        computed = epsilon(sigma=deviation, delta=DELTA)  # it clips to 1
        how = Measurement(delta=DELTA, stated=10.0, computed=computed, seconds=SECONDS)
        return lambda seed: how.epsilon(call, seed=seed)

    def of_filter(each: Any, stated: float | None, **options: Any) -> Measure:
        call, own = nvflare_filter.dxo_filter(each), stated
        if own is None:  # what its own accountant adds up: threshold, queries and release
            before = each.get_privacy_spent()
            call({name: torch.zeros(tuple(shape)) for name, shape in SHAPES.items()})
            own = each.get_privacy_spent() - before
        how = Measurement(delta=DELTA, stated=own, seconds=SECONDS)
        return lambda seed: how.epsilon(call, clip=float(each.gamma), seed=seed, **options)

    for name, sensitivity, false in (("1e-4", 1e-4, True), ("0.1", 0.1, True)):
        yield Case(f"Flower LocalDpMod, clip 1, sensitivity {name}, epsilon 10", false, of_mod(sensitivity))
    yield Case("NVFlare PercentilePrivacy, defaults", True, of_filter(PercentilePrivacy(), 10.0))
    yield Case("NVFlare SVTPrivacy, its accountant's epsilon", False, of_filter(SVTPrivacy(), None))
    yield Case("NVFlare SVTPrivacy, with a single number", True, of_filter(SVTPrivacy(), None, shapes=SINGLE))
    yield Case("Opacus step, noise multiplier 1", False, opacus_step, epsilon(sigma=1.0, delta=DELTA))


SINGLE = {"weight": (6, 8), "bias": (6,), "scale": ()}


def opacus_step(seed: int) -> MeasuredEpsilon:
    from opacus import PrivacyEngine
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    from seepage.recorder.opacus_steps import step_pairs

    torch.manual_seed(seed)
    net, data = nn.Linear(8, 3), TensorDataset(torch.rand(32, 8), torch.randint(3, (32,)))
    model, optimizer, _ = PrivacyEngine(accountant="rdp").make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.0, max_grad_norm=1.0,
    )  # fmt: skip
    pairs = step_pairs(model, optimizer, F.cross_entropy, *data[:2], seed=seed)
    true = epsilon(sigma=1.0, delta=DELTA)
    return Measurement(delta=DELTA, stated=true, computed=true, unit="example", seconds=SECONDS).pairs(pairs)


def measure_cases(cases: Iterator[Case], seeds: int, only: Sequence[str]) -> None:
    done = kept("prove/filters")
    for case in cases:
        for seed in range(seeds):
            if (case.name, str(seed)) in done or (only and case.name not in only):
                continue
            torch.manual_seed(seed)
            np.random.seed(seed)  # which the frameworks' own code draws from
            clock = time.process_time()
            found = case.measure(seed)
            facts = {key: value for key, value in found.table().items() if key not in ("low", "line", "tried", "fit")}
            fit = {} if found.fit is None else {f"fit_{key}": value for key, value in found.table()["fit"].items()}
            facts |= {"false": case.false, "cpu_s": round(time.process_time() - clock, 1), **fit}
            facts["truth"] = "Infinity" if case.truth == math.inf else case.truth
            keep("prove/filters", case.name, "epsilon_low", {"epsilon_low": found.low, "seed": seed, **facts})


def known(draw: np.random.Generator, law: str) -> tuple[Pair, float, int]:
    """A mechanism of a law, with its epsilon and number of rounds."""
    truth = float(draw.uniform(0.1, 4))

    def pair(sample: Callable[[int, int], np.ndarray], direction: np.ndarray | None = None) -> Pair:
        def side(which: int) -> Callable[[int, int], np.ndarray]:
            return lambda trials, rounds: sample(which, trials * rounds).reshape(trials, rounds, -1)

        return Pair(law, side(0), side(1), direction)

    if law == "gaussian":
        width, rounds = int(draw.integers(1, 6)), int(draw.integers(1, 4))
        shift = truth * np.ones(width) / math.sqrt(width)
        made = pair(
            lambda which, n: which * shift + draw.normal(size=(n, width)), shift if draw.random() < 0.5 else None
        )
        return made, epsilon(sigma=1 / truth, rounds=rounds, delta=DELTA), rounds
    if law == "laplace":
        return pair(lambda which, n: which * truth + draw.laplace(size=(n, 1)), np.ones(1)), truth, 1
    if law == "response":
        chance = 1 / (1 + math.exp(truth))
        return pair(lambda which, n: (draw.random((n, 1)) < (1 - chance if which else chance)) * 1.0), truth, 1
    # The difference of two geometric variables on a count: discrete Laplace noise (Ghosh et al. 2009).
    p = 1 - math.exp(-truth)
    return pair(lambda which, n: which + draw.geometric(p, (n, 1)) - draw.geometric(p, (n, 1)) * 1.0), truth, 1


def nulls(count: int) -> None:
    for law, number in (("gaussian", count), *((law, -(-count // 3)) for law in ("laplace", "response", "geometric"))):
        draw, above, fits, fits_above = np.random.default_rng(7), 0, 0, 0
        shares = []
        for _ in range(number):
            pair, truth, rounds = known(draw, law)
            found = Measurement(delta=DELTA, stated=truth, rounds=rounds, calls=3000, seconds=None).pairs([pair])
            above += found.low > truth
            shares.append(found.low / truth)
            if found.fit is not None and found.fit.plausible:
                fits += 1
                fits_above += found.fit.epsilon[0] > truth
        rate = Share.count(above, number)
        row = {"share_above": rate.share, "interval": rate.interval, "seed": 7, "nulls": number, "above": above}
        row |= {"median_share_of_truth": float(np.median(shares))}
        keep("prove/nulls", f"{law}, without assumption", "share_above", row)
        if law == "gaussian":
            fit = Share.count(fits_above, fits)
            row = {"share_above": fit.share, "interval": fit.interval, "seed": 7, "nulls": number}
            row |= {"above": fits_above, "plausible": fits}
            keep("prove/nulls", f"{law}, by Gaussian fit", "share_above", row)


def main(
    what: Literal["functions", "frameworks", "nulls"],
    *,
    seeds: int = 3,
    only: Annotated[tuple[str, ...], "names of cases"] = (),
    count: Annotated[int, "Gaussian mechanisms, and others, for nulls"] = 1000,
) -> None:
    warnings.simplefilter("ignore")  # Opacus warns of its ordinary random numbers
    if what == "nulls":
        nulls(count)
    else:
        measure_cases(functions() if what == "functions" else frameworks(), seeds, only)


if __name__ == "__main__":
    command(main)
