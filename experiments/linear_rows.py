r"""Rows of one example by division, as people train and as they save: losses, clipping, number formats, frozen layers.

python experiments/linear_rows.py ways --data ../shared/data/cifar10.npz
python experiments/linear_rows.py nulls --data ../shared/data/cifar10.npz --networks 300
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from common import Clock, Row, clocked, command, draw, focal, keep, measure, parts
from torch import Tensor, nn

from seepage import ATTACKS, Architecture, build, observe
from seepage.base.nn import frozen_randomness
from seepage.errors import Inapplicable
from seepage.federation.types import Batch, Reconstruction, Tensors, Update

Loss = Callable[[Tensor, Tensor], Tensor]

CLASSES, HIDDEN = 10, 256
SHARES = (0.5, 1.0, 1.5, 2.0)
"""Class weights, in turn."""


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    weights = torch.tensor(SHARES).repeat(-(-logits.shape[1] // len(SHARES)))[: logits.shape[1]]
    return F.cross_entropy(logits, labels, weight=weights)


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, label_smoothing=0.1)


def int8(tensor: Tensor) -> Tensor:
    """Integers from -127 to 127 with a step for each row, as weights are quantized; vectors stay as they are."""
    if tensor.ndim < 2:
        return tensor.clone()
    rows = tensor.flatten(1)
    step = rows.abs().amax(1, keepdim=True) / 127
    return ((rows / step).round() * step).reshape(tensor.shape)


@dataclass(frozen=True)
class Way:
    """How a client trains and saves.

    Attributes:
        loss: What it trains on.
        clip: The norm its gradient is clipped to.
        saved: What a checkpoint keeps of a tensor.
        narrow: Whether weights and activations are bfloat16 numbers.
        autocast: Whether it trains under bfloat16 autocast.
        frozen: Whether its first layer is frozen.
        rates: Learning rates.
    """

    loss: Loss = F.cross_entropy
    clip: float | None = None
    saved: Callable[[Tensor], Tensor] = torch.clone
    narrow: bool = False
    autocast: bool = False
    frozen: bool = False
    rates: tuple[float, ...] = (0.1,)


def bfloat16(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().float()


def float16(tensor: Tensor) -> Tensor:
    return tensor.half().float()


BOTH = (0.1, 0.01)
WAYS = {
    "cross-entropy": Way(),
    "label smoothing 0.1": Way(loss=smoothed),
    "class weights 0.5 to 2": Way(loss=weighted),
    "focal, gamma 2": Way(loss=focal),
    "clipped to a norm of 0.1": Way(clip=0.1),
    "first layer frozen": Way(frozen=True),
    "float16 weights": Way(saved=float16, rates=BOTH),
    "bfloat16 weights": Way(saved=bfloat16, rates=BOTH),
    "int8 weights": Way(saved=int8, rates=BOTH),
    "bfloat16 training": Way(saved=bfloat16, narrow=True, rates=BOTH),
    "bfloat16 autocast": Way(autocast=True, rates=BOTH),
    "label smoothing 0.1, float16 weights": Way(loss=smoothed, saved=float16),
    "clipped to a norm of 0.1, bfloat16 autocast": Way(clip=0.1, autocast=True),
}


def trained(model: nn.Module, batch: Batch, way: Way, lr: float) -> tuple[Tensors, Tensors]:
    """One step of PyTorch's own SGD: the checkpoints before and after. The model is left at the one before."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(way.saved(parameter))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if way.frozen:
        next(module for module in model.modules() if isinstance(module, nn.Linear)).requires_grad_(False)
    own, inputs = copy.deepcopy(model), batch.inputs
    if way.narrow:
        own, inputs = own.bfloat16(), inputs.bfloat16()
    learned = {name: parameter for name, parameter in own.named_parameters() if parameter.requires_grad}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way.autocast):
        loss = way.loss(own(inputs), batch.labels)
    loss.backward()
    if way.clip is not None:
        nn.utils.clip_grad_norm_(learned.values(), way.clip)
    torch.optim.SGD(learned.values(), lr=lr).step()
    return before, {name: way.saved(tensor.detach().float()) for name, tensor in learned.items()}


def alone(model: nn.Sequential, batch: Batch, *, layers: int) -> tuple[int, int]:
    """Examples with three rows of their own in the first layer, and rows that one example alone reaches."""
    with torch.no_grad():
        on = model[:layers](batch.inputs) > 0  # [n, m]
    own = on & (on.sum(0) == 1)
    return int((own.sum(1) >= 3).sum()), int(own.any(0).sum())


def attacked(model: nn.Module, before: Tensors, after: Tensors, batch: Batch, lr: float) -> tuple[Reconstruction, Row]:
    """`linear` on two checkpoints, with the truth only afterwards."""
    seen = observe(
        model, Update.from_states(before, after), tuple(batch.inputs.shape[1:]), batch_size=len(batch), lr=lr
    )
    clock = Clock()
    with clocked(clock):
        found = ATTACKS["linear"]()(seen, seed=0)
    return found, {"cpu_s": clock.cpu, "notes": list(found.notes)}


def judged(found: Reconstruction, batch: Batch) -> Row:
    """Certified guesses, those of them that are farther from any example than stated, and the errors."""
    if not len(found) or found.certified is None or found.objective is None:
        return {"certified_examples": 0, "false": 0, "exact": 0.0}
    apart = (found.inputs[:, None] - batch.inputs[None]).flatten(2).double().square().mean(2).sqrt()  # [k, n]
    errors, sure = apart.amin(1), found.certified.cpu()
    # Without rounding an example is known exactly: what is farther than 60 dB is another.
    stated = found.objective.double().clamp(min=1e-3)
    row = {**measure(found, batch), "guesses": len(found), "certified_examples": int(sure.sum())}
    row["false"] = int((sure & (errors > stated)).sum())
    if bool(sure.any()):
        row |= {"stated": float(found.objective[sure].max()), "error": float(errors[sure].max())}
    return row


def ways(data: str, test: Batch, sizes: Sequence[int], seeds: range) -> None:
    """Every way of training and saving on the same batches and networks."""
    rates = [(name, lr) for name, way in WAYS.items() for lr in way.rates]
    for (name, lr), n, seed in product(rates, sizes, seeds):
        batch, shape = draw(test, n, seed), tuple(test.inputs.shape[1:])
        model = build(Architecture("fc2", {"hidden": HIDDEN}), shape, CLASSES, seed=seed)
        assert isinstance(model, nn.Sequential)
        before, after = trained(model, batch, WAYS[name], lr)
        own, rows = alone(model, batch, layers=4)
        facts = {"way": name, "lr": lr, "n": n, "seed": seed, "data": data}
        facts |= {"owning_three_rows": own, "rows_alone": rows}
        try:
            found, cost = attacked(model, before, after, batch, lr)
            row = {**judged(found, batch), **cost}
        except Inapplicable as refused:
            row = {"certified_examples": 0, "false": 0, "refused": str(refused)}
        keep("closed/rows", f"{name}, lr {lr:g}, n {n}", "certified_examples", {**facts, **row})


KINDS = ("photographs", "noise", "near copies", "table")
NULL_SHAPE = (3, 8, 8)


def examples(kind: str, n: int, images: Tensor, order: torch.Generator) -> Tensor:
    """`[n, 3, 8, 8]` examples of several natures."""
    if kind == "noise":
        return torch.rand((n, *NULL_SHAPE), generator=order)
    if kind == "table":  # rows that differ by a tenth
        middle = torch.rand((1, *NULL_SHAPE), generator=order)
        return (middle + 0.1 * torch.randn((n, *NULL_SHAPE), generator=order)).clamp(0, 1)
    photos = F.avg_pool2d(images[torch.randint(len(images), (n,), generator=order)], 4)
    return photos if kind == "photographs" else 0.8 * photos[:1] + 0.2 * photos


def null_network(seed: int, images: Tensor) -> tuple[nn.Sequential, Batch, dict[str, Any]]:
    """A network of which every row is a mixture: each neuron is on for two examples at least."""
    order = torch.Generator().manual_seed(seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=order))]

    n, classes, hidden = one_of(2, 3, 4, 8), one_of(2, 3, 10, 40), one_of(16, 64, 256)
    kind, activation = one_of(*KINDS), one_of(nn.ReLU, nn.ReLU, nn.GELU, nn.Tanh, nn.Softplus)
    scale, lr, alike = one_of(1.0, 1.0, 3.0), one_of(1.0, 0.1, 0.01), one_of(True, False)
    with frozen_randomness(seed):
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, hidden), activation(), nn.Linear(hidden, classes))
    inputs = examples(kind, n, images, order)
    labels = torch.randint(classes, (1 if alike else n,), generator=order).expand(n).clone()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)  # three times the weights: a network that is sure, as trained ones are
        if activation is nn.ReLU:
            second = model[:2](inputs).topk(2, dim=0).values[1]  # [m]
            model[1].bias += (0.05 - second).clamp(min=0) + 0.2 * torch.rand(hidden, generator=order)
    facts = {"n": n, "classes": classes, "hidden": hidden, "kind": kind, "activation": activation.__name__}
    return model, Batch(inputs, labels), {**facts, "scale": scale, "lr": lr, "one_label": alike}


def nulls(data: str, images: Tensor, seeds: range) -> None:
    """Networks where no row comes from one example: what is certified there is false."""
    for name, way in WAYS.items():
        if way.frozen:
            continue
        certified, guesses, kinds = 0, 0, Counter[str]()
        for seed in seeds:
            model, batch, facts = null_network(seed, images)
            try:
                found, _ = attacked(model, *trained(model, batch, way, facts["lr"]), batch, facts["lr"])
            except Inapplicable:
                continue
            kinds[facts["kind"]] += 1
            guesses += len(found)
            certified += 0 if found.certified is None else int(found.certified.sum())
        facts = {"way": name, "networks": sum(kinds.values()), "kinds": dict(kinds), "guesses": guesses}
        facts |= {"data": data, "first_seed": seeds.start}
        keep("closed/null-rows", name, "certified", {**facts, "certified": certified})


def main(
    what: Literal["ways", "nulls"],
    *,
    data: str,
    n: tuple[int, ...] = (1, 2, 4, 8),
    batches: int = 3,
    networks: int = 300,
    first: Annotated[int, "first seed"] = 5000,
) -> None:
    test, name = parts(data)[1], Path(data).stem
    if what == "ways":
        ways(name, test, n, range(first, first + batches))
    else:
        nulls(name, test.inputs, range(first, first + networks))


if __name__ == "__main__":
    command(main)
