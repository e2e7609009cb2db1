r"""Mistakes of differential privacy that public code had, and beside each its correct twin, as `prove` sees them.

    python experiments/mistakes.py              # all of it: mistakes and twins, Flower where it is installed, nulls
    seepage prove --of function:mistakes:uniform_noise --trust --epsilon 4.38     # one of them, in this folder

Each is a few lines with the logic of the code that `MISTAKES` names, on an update of four tensors of three entries.
A client's filter is `f(update)`, a server's mechanism `f(updates, weights)`. What is claimed is the epsilon of the
accountant for noise of multiplier `Z`, unless the mistake is in this number. Rows in results/prove/mistakes.jsonl:
three measurements of `CALLS` calls each, whose value is the lower bound without assumption; `aggregate_clipped` and
`uniform_noise` take more, since what is claimed of the one is above what so few calls can show, and few outputs of the
other pass for Gaussian ones. Flower itself is measured where it is installed: one environment for each version. In
results/prove/twins.jsonl, of each twin so many measurements of `CALLS` calls with other seeds, drawn many at once by
`torch.vmap` where it can, whose value is the share that contradicts what is stated. Nothing was tuned on them.
"""

import importlib.metadata
import importlib.util
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
from common import command, keep, kept
from torch import Tensor

from seepage.base.schema import Share
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured import Batched, MeasuredEpsilon, Measurement, OfClients

Tensors: TypeAlias = dict[str, Tensor]
Clients: TypeAlias = Sequence[Tensors]
Weights: TypeAlias = Sequence[float]

DELTA, CLIP, Z, CALLS = 1e-5, 1.0, 1.0, 4000
STATED = epsilon(sigma=Z, delta=DELTA)
SHAPES = dict.fromkeys(("conv.weight", "conv.bias", "head.weight", "head.bias"), (3,))
UNEQUAL, EQUAL = (1000.0, *9 * [10.0]), tuple(10 * [10.0])
STEPS, RATE, ROUNDS = 60, 0.1, 20
MODEL = {name: torch.full(shape, 0.8) for name, shape in SHAPES.items()}
STREAM = torch.Generator().manual_seed(7)
TARGET = 2**22  # levels of a quantized number


def clipped(update: Mapping[str, Tensor], clip: float = CLIP) -> Tensors:
    """At most `clip` long, all tensors together."""
    norm = float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())
    return {name: tensor * min(1.0, clip / max(norm, 1e-12)) for name, tensor in update.items()}


def noised(update: Mapping[str, Tensor], deviation: float = Z * CLIP) -> Tensors:
    return {name: tensor + deviation * torch.randn(tensor.shape) for name, tensor in update.items()}


def mean(updates: Clients, weights: Weights) -> Tensors:
    shares = torch.tensor(weights) / sum(weights)
    return {name: shares @ torch.stack([update[name] for update in updates]) for name in updates[0]}


def correct(update: Tensors) -> Tensors:
    return noised(clipped(update))


def noise_dropped(update: Tensors) -> Tensors:
    sent = clipped(update)
    noised(sent)  # which returns new tensors
    return sent


def weighted_mean(updates: Clients, weights: Weights) -> Tensors:
    return noised(mean([clipped(update) for update in updates], weights), Z * CLIP / len(updates))


def weighted_mean_correct(updates: Clients, weights: Weights) -> Tensors:
    share = max(weights) / sum(weights)
    return noised(mean([clipped(update) for update in updates], weights), Z * CLIP * share)


def aggregate_clipped(updates: Clients, weights: Weights) -> Tensors:
    aggregate = mean(updates, weights)
    norm = float(torch.cat([tensor.flatten() for tensor in aggregate.values()]).norm())
    return noised(clipped(aggregate), Z * min(1.0, CLIP / max(norm, 1e-12)))


def aggregate_clipped_correct(updates: Clients, weights: Weights) -> Tensors:
    """Of equal shares, whatever clients say of their weights."""
    return weighted_mean(updates, [1.0 for _ in weights])


def per_tensor(update: Tensors) -> Tensors:
    return noised({name: clipped({name: tensor})[name] for name, tensor in update.items()})


def per_tensor_correct(update: Tensors) -> Tensors:
    parts = {name: clipped({name: tensor})[name] for name, tensor in update.items()}
    return noised(parts, Z * CLIP * math.sqrt(len(parts)))


def noise_after_steps(gradient: Tensors) -> Tensors:
    """The client's examples all have this gradient; it takes local steps, then adds noise to the weights."""
    return noised({name: RATE * STEPS * tensor for name, tensor in clipped(gradient).items()})


def noise_after_steps_correct(gradient: Tensors) -> Tensors:
    return noised({name: RATE * STEPS * t for name, t in clipped(gradient).items()}, Z * RATE * STEPS * CLIP)


def noisy_steps(gradient: Tensors) -> Tensors:
    """Local steps that each clip and add noise of multiplier 4, as DP-SGD does."""
    step = clipped(gradient)
    return {name: RATE * (t + 4 * CLIP * torch.randn(STEPS, *t.shape)).sum(0) for name, t in step.items()}


def uniform_noise(update: Tensors) -> Tensors:
    return {name: tensor + Z * CLIP * torch.rand_like(tensor) for name, tensor in clipped(update).items()}


def fixed_seed(update: Tensors) -> Tensors:
    seeded = torch.Generator().manual_seed(42)
    return {name: t + Z * CLIP * torch.randn(t.shape, generator=seeded) for name, t in clipped(update).items()}


def fixed_seed_correct(update: Tensors) -> Tensors:
    """Seeded once, and never again."""
    return {name: t + Z * CLIP * torch.randn(t.shape, generator=STREAM) for name, t in clipped(update).items()}


def noise_by_rate(update: Tensors) -> Tensors:
    """The update is the difference of weights, of which the learning rate is a part already."""
    return noised(clipped(update), RATE * Z * CLIP)


def weights_clipped(update: Tensors) -> Tensors:
    """Entries of the weights are cut, not the update; what is sent are weights."""
    return noised({name: (MODEL[name] + tensor).clamp(-CLIP, CLIP) for name, tensor in update.items()})


def weights_clipped_correct(update: Tensors) -> Tensors:
    return {name: MODEL[name] + tensor for name, tensor in correct(update).items()}


def noise_twice(update: Tensors) -> Tensors:
    return noised(correct(update))


def quantized(update: Tensors, span: float) -> Tensors:
    """For secure aggregation: cut at the span, then integers, rounded up or down at random."""
    found = {}
    for name, tensor in update.items():
        scaled = (tensor.clamp(-span, span).double() + span) * TARGET / (2 * span)
        found[name] = (scaled + torch.rand(scaled.shape, dtype=scaled.dtype)).floor()
    return found


def span_below_zero(update: Tensors) -> Tensors:
    return quantized(correct(update), -8.0)


def span_above_zero(update: Tensors) -> Tensors:
    return quantized(correct(update), 8.0)


@dataclass(frozen=True)
class Mistake:
    """A mistake with what is claimed, and its twin.

    Attributes:
        name: What is wrong.
        seen: Where public code or its issues had it, as a link; empty where none was looked at.
        wrong: The function.
        right: Its twin.
        stated: The claimed epsilon.
        right_stated: That of the twin.
        weights: Of clients, for a server's function.
        rounds: Rounds that the claim is over.
        calls: Most calls of either.
    """

    name: str
    seen: str
    wrong: Callable[..., Tensors]
    right: Callable[..., Tensors]
    stated: float = STATED
    right_stated: float = STATED
    weights: tuple[float, ...] | None = None
    rounds: int = 1
    calls: int = CALLS


def link(repository: str, path: str, words: str) -> str:
    return f"[{words}](https://github.com/{repository}/{path})"


FEDBIOMED = ("fedbiomed/fedbiomed", "issues/1443", "Fed-BioMed issue 1443")
MISTAKES = (
    Mistake("noise added to a copy that is dropped", link("flwrlabs/flower", "pull/4677", "Flower 1.13.1")
            + ", `LocalDpMod`", noise_dropped, correct),
    Mistake("noise `z C / n` on a mean weighted by examples", "Flower 1.13.1 and 1.42.0, central DP without accountant",
            weighted_mean, weighted_mean_correct, weights=UNEQUAL),
    Mistake("clip and noise after the aggregate", link("raptor7197/caamas", "issues/36", "caamas") + " at aa94a01",
            aggregate_clipped, aggregate_clipped_correct, stated=8.0, weights=EQUAL, calls=30_000),
    Mistake("each tensor clipped, the update claimed", "named in " + link(*FEDBIOMED), per_tensor, per_tensor_correct),
    Mistake("noise for one step on weights of 60", link("fedbiomed/fedbiomed", "issues/1443", "Fed-BioMed")
            + " at 064b095, `_postprocess_dp`", noise_after_steps, noise_after_steps_correct),
    Mistake("epsilon of 1 step where a client takes 60", "named in "
            + link("KarhouTam/FL-bench", "pull/200", "FL-bench pull request 200"), noisy_steps, noisy_steps,
            epsilon(sigma=4.0, delta=DELTA), epsilon(sigma=4.0, rounds=STEPS, delta=DELTA)),
    Mistake("a fresh accountant in each of 20 rounds", link("TsingZ0/PFLlib", "issues/175", "PFLlib") + " at 5012fce",
            correct, correct, right_stated=epsilon(sigma=Z, rounds=ROUNDS, delta=DELTA), rounds=ROUNDS),
    Mistake("uniform noise for Gaussian", "named in " + link(*FEDBIOMED), uniform_noise, correct,
            calls=8000),
    Mistake("the same seed in each call", "", fixed_seed, fixed_seed_correct),
    Mistake("noise scaled by the learning rate", "", noise_by_rate, correct),
    Mistake("weights clipped in place of updates", "named in "
            + link("KanishJebaMathewM/Truxify", "issues/3844", "Truxify issue 3844"), weights_clipped,
            weights_clipped_correct),
    Mistake("noise added twice", "named in " + link(*FEDBIOMED), noise_twice, correct),
    Mistake("quantized with a clipping range below zero", link("flwrlabs/flower", "pull/7633", "Flower 1.42.0")
            + ", `quantize`", span_below_zero, span_above_zero),
)  # fmt: skip


def measured(mistake: Mistake, *, twin: bool, seed: int, calls: int | None = None) -> MeasuredEpsilon:
    torch.manual_seed(seed)
    np.random.seed(seed)  # which Flower's own code draws from
    STREAM.manual_seed(seed)
    call: Any = mistake.right if twin else mistake.wrong
    stated = mistake.right_stated if twin else mistake.stated
    how = Measurement(delta=DELTA, stated=stated, rounds=mistake.rounds, calls=calls or mistake.calls, seconds=None)
    return how.epsilon(call if mistake.weights is None else OfClients(call, mistake.weights), shapes=SHAPES, seed=seed)


def flower() -> Iterator[Mistake]:
    """The package as it is installed: what is new by the adapters of this package, 1.13 by ours below."""
    version = importlib.metadata.version("flwr")
    logging.getLogger("flwr").disabled = True
    mod, strategy = flower_1_13() if version.startswith("1.13.") else flower_now()
    yield Mistake(f"Flower {version}, `LocalDpMod`, sensitivity = clip", "", mod, mod, 1.0, 1.0)
    name = f"Flower {version}, `DifferentialPrivacyServerSideFixedClipping`"
    for clients, weights in (("one client of 1000 examples, nine of 10", UNEQUAL), ("ten clients of 10", EQUAL)):
        yield Mistake(f"{name}, {clients}", "", strategy, strategy, weights=weights, calls=2000)


def flower_now() -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    from flwr.clientapp.mod import LocalDpMod
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    from seepage.recorder.flower_filter import mod_filter, strategy_aggregate

    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(), Z, CLIP, 10)
    return mod_filter(LocalDpMod(CLIP, CLIP, 1.0, DELTA)), strategy_aggregate(wrapped)


def flower_1_13() -> tuple[Callable[..., Tensors], Callable[..., Tensors]]:
    from flwr.client.mod import LocalDpMod
    from flwr.common import Code, FitIns, FitRes, Message, Metadata, RecordSet, Status
    from flwr.common import ndarrays_to_parameters as packed
    from flwr.common import parameters_to_ndarrays as unpacked
    from flwr.common import recordset_compat as compat
    from flwr.common.context import Context
    from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    mod = LocalDpMod(CLIP, CLIP, 1.0, DELTA)
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), Z, CLIP, 10)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordSet(), run_config={})
    facts = Metadata(run_id=1, message_id="", src_node_id=0, dst_node_id=1, reply_to_message="", group_id="", ttl=60.0,
                     message_type="train")  # fmt: skip

    def fitted(update: Tensors, examples: float) -> Any:
        return FitRes(Status(Code.OK, ""), packed([t.numpy() for t in update.values()]), int(examples), {})

    def sent(update: Tensors) -> Tensors:
        def client(message: Any, context: Any) -> Any:
            return message.create_reply(compat.fitres_to_recordset(fitted(update, 1), keep_input=True))

        before = FitIns(packed([torch.zeros_like(t).numpy() for t in update.values()]), {})
        reply = mod(Message(facts, compat.fitins_to_recordset(before, keep_input=True)), context, client)
        left = unpacked(compat.recordset_to_fitres(reply.content, keep_input=True).parameters)
        return {name: torch.from_numpy(array.copy()) for name, array in zip(update, left, strict=True)}

    def aggregate(updates: Clients, weights: Weights) -> Tensors:
        strategy.current_round_params = [torch.zeros_like(t).numpy() for t in updates[0].values()]
        results = [(None, fitted(update, weight)) for update, weight in zip(updates, weights, strict=True)]
        left = unpacked(strategy.aggregate_fit(1, results, [])[0])
        return {name: torch.from_numpy(np.array(array)) for name, array in zip(updates[0], left, strict=True)}

    return sent, aggregate


def keep_measured(mistake: Mistake, *, twin: bool, seeds: int, package: bool = False) -> None:
    name = mistake.name + ", correct" * twin
    for seed in range(seeds):
        if (name, str(seed)) in kept("prove/mistakes"):
            continue
        clock = time.process_time()
        found = measured(mistake, twin=twin, seed=seed)
        fit = found.fit if found.fit is not None and found.fit.plausible else None
        row: dict[str, Any] = {"epsilon_low": found.low, "seed": seed, "twin": twin, "package": package}
        row |= {"mistake": mistake.name, "seen": mistake.seen, "stated": found.stated, "verdict": found.stated_verdict}
        row |= {"calls": found.calls, "cpu_s": round(time.process_time() - clock, 1), "ceiling": found.ceiling}
        row |= {"fit": None if fit is None else list(fit.epsilon), "deterministic": found.deterministic}
        row |= {"canary": found.canary, "statistic": found.statistic, "notes": list(found.notes)}
        keep("prove/mistakes", name, "epsilon_low", row)


def null(mistake: Mistake, seed: int) -> bool:
    """Whether one measurement of a twin contradicts it; its calls are those of `measured`, drawn many at once."""
    torch.manual_seed(seed)
    call = mistake.right
    if mistake.weights is not None:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], 3 * len(SHAPES))
        against = torch.from_numpy(-CLIP * signs / math.sqrt(len(signs))).float().split(3)
        call = OfClients(call, mistake.weights).beside(lambda: dict(zip(SHAPES, against, strict=True)))

    def many(update: Mapping[str, Tensor], count: int) -> Tensors:
        drawn: Tensors = torch.vmap(lambda _: call(update), randomness="different")(torch.arange(count))
        return drawn

    if call is fixed_seed_correct:  # whose generator is its own
        return measured(mistake, twin=True, seed=seed).contradicted
    how = Measurement(delta=DELTA, stated=mistake.right_stated, rounds=mistake.rounds, calls=CALLS, seconds=None)
    return how.epsilon(Batched(many), shapes=SHAPES, seed=seed).contradicted


def nulls(count: int) -> None:
    done = {name for name, _ in kept("prove/twins")}
    for mistake in sorted(MISTAKES, key=lambda one: one.right is fixed_seed_correct):  # the slow one last
        facts = {"stated": mistake.right_stated, "rounds": mistake.rounds, "calls": CALLS}
        name = f"{mistake.right.__name__}, epsilon {mistake.right_stated:.3g}"
        if name in done or not count:
            continue
        done.add(name)
        above = sum(null(mistake, 1000 + i) for i in range(count))
        rate = Share.count(above, count)
        row = {"share_contradicted": rate.share, "interval": rate.interval, "seed": 1000, "nulls": count, **facts}
        keep("prove/twins", name, "share_contradicted", row | {"contradicted": above})


def main(
    *,
    seeds: int = 3,
    count: Annotated[int, "null measurements of each twin; 0: none"] = 200,
) -> None:
    for mistake in MISTAKES:
        for twin in (False, True):
            keep_measured(mistake, twin=twin, seeds=seeds)
    if importlib.util.find_spec("flwr") is not None:
        for mistake in flower():
            keep_measured(mistake, twin=False, seeds=seeds, package=True)
    nulls(count)


if __name__ == "__main__":
    command(main)
