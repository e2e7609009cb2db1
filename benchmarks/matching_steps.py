"""Seconds per gradient-matching step: exact, first-order, a plain double-backward loop, and breaching.

    python benchmarks/matching_steps.py [--nets convnet resnet10 resnet18 vgg16] [--batches 1 16 64] [--rounds 3]

Two objectives. `ig`: one minus the cosine, and total variation (Inverting Gradients). `fedleak`: mean L1 plus cosine
over the largest half of the dummy gradient's entries, total variation, and a blended direction, which takes a second
evaluation at a point 1e-3 further along the gradient (FedLeak).

`--peak` runs one step of each in a process of its own instead and reports how far the peak of memory rises. breaching
is timed where it is installed; it has no FedLeak. One record of results/matching/steps.jsonl per network, batch and
objective.
"""

from harness import (
    OBJECTIVES,
    Step,
    apart,
    blended,
    breaching_step,
    emit,
    engine_step,
    medians,
    parsed,
    plain_fedleak,
    plain_step,
    problem,
    rise,
    turns,
)

from seepage.attacks.search.distances import L1, Cosine
from seepage.attacks.search.first_order import FirstOrderProblem
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.problem import Problem

SAMPLED = TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5, sample=100_000)


def steps(name: str, batch: int, objective: str) -> dict[str, Step]:
    """What is compared; the first-order problem is fitted once beforehand, as the attack does."""
    exact, inputs, labels = problem(name, batch, objective)
    first = FirstOrderProblem(**vars(exact))
    first.evaluate(inputs[:1], labels[:1])
    if objective == "ig":
        return {
            "plain loop": lambda: plain_step(exact, inputs, labels),
            "exact": lambda: engine_step(exact, inputs, labels),
            "first order": lambda: engine_step(first, inputs, labels),
            **breaching_step(exact, inputs, labels),
        }
    sampled = FirstOrderProblem(**{**vars(exact), "distance": SAMPLED}, reach=first.reach)

    def own(found: Problem) -> Step:
        return lambda: blended(lambda at: engine_step(found, at, labels), inputs)

    plain: dict[str, Step] = {"plain loop": lambda: plain_fedleak(exact, inputs, labels)}
    return {**plain, "exact": own(exact), "first order": own(first), "first order, sampled": own(sampled)}


def times(name: str, batch: int, objective: str, rounds: int) -> tuple[str, dict[str, object]]:
    taken = medians(turns(steps(name, batch, objective), rounds))
    rows = {
        key: {
            "ms": round(wall * 1e3, 1),
            "cpu_ms": round(cpu * 1e3, 1),
            "images_per_cpu_s": round(batch / cpu, 1),
            "times_faster": round(taken["plain loop"].processor / cpu, 2),
        }
        for key, (wall, cpu) in taken.items()
    }
    best = max(row["times_faster"] for key, row in rows.items() if key not in ("plain loop", "breaching"))
    return "times_faster", {"rounds": rounds, "steps": rows, "times_faster": best}


def peaks(name: str, batch: int, objective: str) -> tuple[str, dict[str, object]]:
    rises = {key: float(apart(__file__, "--one", name, batch, objective, key)) for key in steps(name, 1, objective)}
    return "peak_rise_first_order_mib", {
        "peak_rise_mib": rises,
        "peak_rise_first_order_mib": rises.get("first order"),
    }


def one(name: str, batch: str, objective: str, key: str) -> None:
    steps(name, 1, objective)[key]()  # library buffers are there before the first look
    print(rise(steps(name, int(batch), objective)[key]))


def main() -> None:
    options = parsed(
        __doc__, nets=["convnet", "resnet10", "resnet18", "vgg16"], batches=[1, 16, 64], objectives=list(OBJECTIVES),
        rounds=3, peak=False, one=[""],
    )  # fmt: skip
    if options.one != [""]:
        return one(*options.one)
    for name in options.nets:
        for batch in options.batches:
            for objective in options.objectives:
                given = name, batch, objective
                metric, row = peaks(*given) if options.peak else times(*given, options.rounds)
                facts = {"model": name, "image": 32, "batch": batch, "objective": objective}
                emit("steps", f"{name}, batch {batch}, {objective}", metric, row, **facts)
    return None


if __name__ == "__main__":
    main()
