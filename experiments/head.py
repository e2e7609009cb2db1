r"""How exactly `head_features` finds the features of every example in the last layer's gradient, and whether it knows.

python experiments/head.py --data ../shared/data/cifar10.npz --classes 10 --n 1 4 8 9
python experiments/head.py --data ../shared/data/cifar10.npz --classes 24 --n 1 4 8 16
python experiments/head.py --data ../shared/data/cifar100.npz --classes 100 --n 1 4 8 16 32 64
python experiments/head.py --data ../shared/data/cifar10.npz --classes 10 --n 4 8 --networks variants \
    --states fresh "100 steps, momentum"

The network of the default audit (`convnet`, 32x32 color, its normalization in front), fresh or trained by SGD (learning
rate 0.02, batches of 32). With 24 classes the ten of CIFAR-10 are spread over 24 made-up ones by the image's place.
Batches are of test images from the 300th on; the first 300 were for development, and so were the networks trained for
1,000 steps, which are expensive. One row of results/head/features.jsonl per setting, over all its batches: the largest
relative error of the examples that the solution calls known. The truth is the model's own forward pass in double
precision.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from common import Row, at, command, descend_once, draws, keep, parts
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from seepage.api import record
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.errors import Inapplicable
from seepage.federation.models import convnet
from seepage.federation.types import Batch, Update

DEVELOPMENT = 300
TRAINING = {
    "fresh": (0, 0.0),
    "100 steps": (100, 0.0),
    "100 steps, momentum": (100, 0.9),
    "1,000 steps": (1000, 0.0),
    "1,000 steps, momentum": (1000, 0.9),
}
"""Steps and momentum."""
VARIANTS: dict[str, dict[str, Any]] = {
    "no bias": {"bias": False},
    "GELU": {"activation": "gelu"},
    "leaky ReLU": {"activation": "leaky_relu"},
    "sigmoid": {"activation": "sigmoid"},
    "labels not known": {"known": False},
    "float16 update": {"dtype": torch.float16},
    "bfloat16 update": {"dtype": torch.bfloat16},
}
NETWORKS = 2
"""Networks of a kind; batches take them in turn."""
FIRST_SEED = 10
"""Of batches, and of networks trained for up to 100 steps; those trained for longer have the seeds 0 and 1."""


def spread(batch: Batch, classes: int) -> Batch:
    """The batch with its labels as `classes` classes."""
    labels = batch.labels
    if int(labels.max()) < 10 < classes:
        labels = labels + 10 * (torch.arange(len(labels)) % 3)
    return Batch(batch.inputs, labels % classes)


def network(
    train: Batch, classes: int, state: str, seed: int, activation: str = "relu", bias: bool = True
) -> nn.Module:
    steps, momentum = TRAINING[state]
    torch.manual_seed(seed)
    model = convnet((3, 32, 32), classes, activation=activation)  # type: ignore[arg-type]
    if not bias:
        model[-1] = nn.Linear(model[-1].in_features, classes, bias=False)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    batches = draws(train, steps, 32, torch.Generator().manual_seed(seed))
    descend_once(f"head/{classes}/{steps}/{momentum:g}/{seed}/{activation}/{bias}", model, optimizer, batches)
    return model.eval()


def drawn(test: Batch, n: int, seed: int, *, distinct: bool) -> Batch:
    """Test images for scoring, in the order of their labels."""
    draw = torch.Generator().manual_seed(1000 + seed)
    places = DEVELOPMENT + torch.randperm(len(test) - DEVELOPMENT, generator=draw)
    if distinct:
        first = {int(test.labels[place]): int(place) for place in places.flip(0)}
        places = torch.tensor([first[label] for label in dict.fromkeys(test.labels[places].tolist())])
    chosen = places[:n]
    chosen = chosen[test.labels[chosen].argsort(stable=True)]
    return at(test, chosen)


def compared(found: HeadFeatures, truth: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Relative error of each example, and its error over the stated noise; best order among equal labels."""
    away = torch.cdist(found.features, truth) + 1e9 * (found.labels[:, None] != labels)
    places = linear_sum_assignment(away.numpy())[1]
    error = (found.features - truth[places]).norm(dim=1)
    relative = error / truth[places].norm(dim=1)
    return relative.where(found.labels == labels[places], torch.inf), error / truth.shape[1] ** 0.5 / found.noise


def one(
    model: nn.Module, batch: Batch, *, known: bool = True, dtype: torch.dtype | None = None
) -> dict[str, Any] | None:
    """Errors of one batch; None where the method says that it does not apply."""
    transcript = record(model, batch)
    seen = transcript[0]
    if dtype is not None:
        tensors = {name: tensor.to(dtype).float() for name, tensor in seen.update.tensors.items()}
        seen = type(seen)(seen.t, seen.params, Update(tensors), seen.buffers, seen.batch_size)
    start = time.process_time()
    try:
        found = head_features(seen, transcript.knowledge, batch.labels if known else None)
    except Inapplicable:
        return None
    seconds = time.process_time() - start
    with torch.no_grad():
        truth = model[:-1].double()(batch.inputs.double())  # type: ignore[index]
    model.float()
    relative, standard = compared(found, truth, batch.labels)
    return {"relative": relative, "standard": standard, "known": found.known, "doubt": found.doubt, "cpu_s": seconds}


def row_of(results: list[Row | None], n: int) -> Row:
    """What all batches of a setting say together."""
    there = [result for result in results if result is not None]
    if not there:
        return {"error": None, "solved": 0}
    known = torch.cat([result["known"] for result in there])
    relative, standard = (torch.cat([result[key] for result in there]) for key in ("relative", "standard"))
    return {
        "error": float(relative[known].max()) if known.any() else None,
        "solved": len(there),
        "known": int(known.sum()),
        "examples": len(results) * n,
        "median_error": float(relative.median()),
        "false_known": int((relative[known] > 1e-2).sum()),
        "largest_error_in_noise": float(standard[known].max()) if known.any() else None,
        "median_error_in_noise": float(standard[known].median()) if known.any() else None,
        "undoubted_batches": sum(result["doubt"] is None for result in there),
        "cpu_s": max(result["cpu_s"] for result in there),
    }


def settings(networks: str, states: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    if networks == "variants":
        yield from ((name, {"state": state, **how}) for name, how in VARIANTS.items() for state in states)
    else:
        yield from (("ReLU", {"state": state}) for state in states)


def main(
    *,
    data: str,
    classes: int = 10,
    n: tuple[int, ...] = (1, 4, 8),
    networks: Literal["relu", "variants"] = "relu",
    states: Annotated[tuple[str, ...], TRAINING] = tuple(TRAINING),
    batches: int = 5,
) -> None:
    torch.set_num_threads(1)
    train, test = (spread(part, classes) for part in parts(data))
    for (name, how), size in product(settings(networks, states), n):
        state, known, dtype = how["state"], how.get("known", True), how.get("dtype")
        made = {key: how[key] for key in ("activation", "bias") if key in how}
        first = FIRST_SEED if TRAINING[state][0] <= 100 else 0
        for distinct in (True, False):
            results: list[Row | None] = []
            for number in range(batches):
                model = network(train, classes, state, first + number % NETWORKS, **made)
                batch = drawn(test, size, FIRST_SEED + number, distinct=distinct)
                results.append(one(model, batch, known=known, dtype=dtype))
            labels = "distinct" if distinct else "as drawn"
            facts = {"features": name, "classes": classes, "state": state, "n": size, "labels": labels}
            row = row_of(results, size)
            row |= {**facts, "batches": len(results), "data": Path(data).stem}
            words = ", ".join(str(fact) for fact in facts.values())
            keep("head/features", words, "error", row)


if __name__ == "__main__":
    command(main)
