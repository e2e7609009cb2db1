"""Updates of which nothing may be certified: mixtures, and batches that are not what is stated, behind any local step.

Run as a command, it attacks many and keeps how many certificates were false in `results/captured/nulls.jsonl`:
`PYTHONPATH=src:. python -m tests.attacks.nulls 0 2500`.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Update, attack, observe
from seepage.audit.values import shown_values
from seepage.errors import Inapplicable
from seepage.federation.clients import FedSGD
from seepage.federation.clients.one_step import gradient_behind
from seepage.federation.measured import Step
from seepage.federation.types import Batch, Tensors

SHAPE, READINGS, VALUES = (1, 6, 6), 8, 20
VALUES_EACH = 50
"""Of so many nulls one is a regression's."""
Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
STEPS: dict[str, tuple[Optimizer, Step]] = {
    "SGD 0.1": (lambda p: torch.optim.SGD(p, 0.1), Step.sgd(0.1)),
    "Adam 0.001": (lambda p: torch.optim.Adam(p, 1e-3), Step.adam(1e-3)),
    "Adam 0.01": (lambda p: torch.optim.Adam(p, 1e-2), Step.adam(1e-2)),
    "Adam 0.001, eps 0.001": (lambda p: torch.optim.Adam(p, 1e-3, eps=1e-3), Step.adam(1e-3, 1e-3)),
    "RMSprop 0.001": (lambda p: torch.optim.RMSprop(p, 1e-3), Step.rmsprop(1e-3)),
    "Adadelta 1": (torch.optim.Adadelta, Step.adadelta()),
}


def mixed(seed: int, draw: torch.Generator) -> tuple[nn.Sequential, Batch, int]:
    """A classifier of which every neuron is on for two examples at least; in half of the batches all have one label."""
    n, classes, hidden = (int(torch.randint(*ends, (), generator=draw)) for ends in ((2, 6), (2, 12), (12, 60)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    inputs = torch.rand((n, *SHAPE), generator=draw)
    inputs = inputs if seed % 3 else 0.8 * inputs[:1] + 0.2 * inputs  # near copies, whose slopes nearly agree
    labels = torch.randint(classes, (n,), generator=draw) if seed % 2 else torch.full((n,), seed % classes)
    with torch.no_grad():
        second = model[:2](inputs).topk(2, dim=0).values[1]
        model[1].bias += (0.05 - second).clamp(min=0) + 0.2 * torch.rand(hidden, generator=draw)  # type: ignore[operator]
    return model, Batch(inputs, labels), n


def miscounted(draw: torch.Generator) -> tuple[nn.Sequential, Batch, int]:
    """A regression with one example more or less than is stated."""
    n = int(torch.randint(2, 5, (), generator=draw))
    model = nn.Sequential(nn.Linear(READINGS, 16), nn.ReLU(), nn.Linear(16, VALUES))
    batch = Batch(torch.rand(n, READINGS, generator=draw), torch.rand(n, VALUES, generator=draw))
    return model, batch, n + (1 if n < 3 or torch.rand((), generator=draw) < 0.5 else -1)


def null(seed: int) -> tuple[str, Tensor, Batch]:
    """What `linear` certifies of the update of a seed, in a range of its own too: kind of null, guesses, the truth."""
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    values = seed % VALUES_EACH == 0
    model, batch, stated = miscounted(draw) if values else mixed(seed, draw)
    name = [*STEPS][seed // VALUES_EACH % len(STEPS)]
    make, step = STEPS[name]
    before: Tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    (F.mse_loss if values else F.cross_entropy)(model(batch.inputs), batch.labels).backward()
    make(model.parameters()).step()
    update, _ = gradient_behind(before, Update.from_states(before, model.state_dict()), step, {})
    model.load_state_dict(before)
    rule, shape = FedSGD(loss="mse" if values else "cross_entropy"), tuple(batch.inputs.shape[1:])
    within = partial(
        observe, model, update, shape, batch_size=stated, client=rule, target="value" if values else None
    )  # fmt: skip
    guesses = torch.empty(0, *shape)
    with suppress(Inapplicable):
        found = attack(within(), "linear")
        guesses = found.inputs[found.certified] if found.certified is not None else guesses
    # Rows of mixtures lie outside of [0, 1] too: no other range may make examples of them.
    wider = shown_values(lambda ends: within(value_range=ends))
    return (
        f"{'regression, miscounted' if values else 'mixtures'}, {name}",
        guesses if wider is None else torch.cat([guesses, wider.examples]),
        batch,
    )


def certified(guesses: Tensor, batch: Batch) -> tuple[int, int]:
    """Certified guesses, and those of them that are further than 40 dB from every example."""
    gaps = (guesses[:, None] - batch.inputs[None]).flatten(2).square().mean(2).sqrt().amin(1)
    return len(gaps), int((gaps > 0.01).sum())


def attacked(seeds: range) -> Iterator[tuple[int, str, int, int]]:
    """Each seed's kind, certificates, and false ones."""
    for seed in seeds:
        kind, guesses, batch = null(seed)
        yield seed, kind, *certified(guesses, batch)


def main() -> None:
    """Attack the nulls of seeds from the first argument on, as many as the second says, and keep a row of each kind."""
    from experiments.keeping import keep_measured

    start, count = (int(word) for word in sys.argv[1:3])
    began, tried, sure, false = time.process_time(), Counter[str](), Counter[str](), Counter[str]()
    for done, (seed, kind, known, wrong) in enumerate(attacked(range(start, start + count)), 1):
        tried[kind] += 1
        sure[kind] += known
        false[kind] += wrong
        if wrong:
            print(f"seed {seed}: {kind}: {wrong} false", flush=True)
        if done % 500 == 0:
            print(f"{done}: {false.total()} false, {time.process_time() - began:.0f} s of a core", flush=True)
    command = f"PYTHONPATH=src:. python -m tests.attacks.nulls {start} {count}"
    for kind in sorted(tried):
        facts: dict[str, Any] = {"nulls": tried[kind], "certified": sure[kind]}
        keep_measured("captured/nulls", kind, "false", false[kind], data="made up", command=command, **facts)


if __name__ == "__main__":
    main()
