r"""What two checkpoints around steps of Adam or AdamW still tell: labels, batch norm's statistics, and who was there.

python experiments/adaptive_updates.py --data ../shared/data/cifar10.npz
"""

from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from common import command, keep, parts
from torch import Tensor, nn

from seepage import Architecture, FedAvg, build, observe
from seepage.attacks.exposure import UpdateAnalysis, batch_statistics
from seepage.attacks.membership import MatchedFilter, infer_membership
from seepage.base.nn import captured_calls, generator
from seepage.federation.types import Batch, Tensors, Update
from seepage.measure.metrics.membership import area_under_curve

OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
NETWORKS = {"fc2": Architecture("fc2"), "convnet with batch norm": Architecture("convnet", {"batch_norm": True})}
LR, LEVEL = 1e-3, 0.05
OTHERS, PUBLIC = 64, 400


def drawn(test: Batch, seed: int, n: int) -> tuple[Batch, Batch, Batch]:
    """The client's examples, strangers, and public ones, all different."""
    order = torch.randperm(len(test), generator=generator(seed, "adaptive"))[: n + OTHERS + PUBLIC]
    cuts = order.split([n, OTHERS, PUBLIC])
    private, others, public = (Batch(test.inputs[places], test.labels[places]) for places in cuts)
    return private, others, public


def trained(model: nn.Module, batch: Batch, name: str, steps: int) -> tuple[Tensors, Tensors, dict[str, list[Tensor]]]:
    """PyTorch's own steps on one batch: the states before and after, and what each batch norm read at each step."""
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    norms = [key for key, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    optimizer, read = OPTIMIZERS[name](model.parameters(), lr=LR), {key: list[Tensor]() for key in norms}
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        with captured_calls(model, norms) as calls:
            F.cross_entropy(model(batch.inputs), batch.labels).backward()
        for key in norms:
            read[key].append(calls[key][0].input.detach())
        optimizer.step()
    after = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return before, after, read


def statistics_error(model: nn.Module, before: Tensors, after: Tensors, read: dict[str, list[Tensor]]) -> float | None:
    """Largest error of a mean, over the deviation of its channel in the batch, at the last step."""
    worst = None
    for found in batch_statistics(model, before, after):
        inputs = read[found.norm][-1].double()
        off = (found.mean - inputs.mean((0, 2, 3))).abs() / inputs.std((0, 2, 3)).clamp_min(1e-12)
        worst = max(worst or 0.0, float(off.max()))
    return worst


def main(*, data: str, n: int = 8, batches: int = 3, first: int = 6000) -> None:
    test = parts(data)[1]
    shape, seeds = tuple(test.inputs.shape[1:]), range(first, first + batches)
    for (network, named), optimizer, steps, seed in product(NETWORKS.items(), OPTIMIZERS, (1, 5), seeds):
        private, others, public = drawn(test, seed, n)
        model = build(named, shape, 10, seed=seed)
        before, after, read = trained(model, private, optimizer, steps)
        weights = {name for name, _ in model.named_parameters()}
        update = Update.from_states(*({k: v for k, v in state.items() if k in weights} for state in (before, after)))
        rule = FedAvg(lr=LR, optimizer="adam", steps=steps, batch_size=n)
        seen = observe(model, update, shape, batch_size=n, client=rule)
        labels, there = UpdateAnalysis(seen).labels, set(private.labels.tolist())
        known = set() if labels is None or not labels.believed else set(labels.present)
        candidates = Batch(*(torch.cat([getattr(b, what) for b in (private, others)]) for what in ("inputs", "labels")))
        found = infer_membership(seen, MatchedFilter(entries=1024), candidates, public, seed=seed)
        facts = {"network": network, "optimizer": optimizer, "steps": steps, "seed": seed, "n": n, "lr": LR}
        facts |= {"labels_there": len(there), "labels_right": len(known & there), "labels_wrong": len(known - there)}
        facts |= {"statistics_error": statistics_error(model, before, after, read), "level": LEVEL, "others": OTHERS}
        identified, false = ((found.p_values[part] <= LEVEL).sum() for part in (slice(n), slice(n, None)))
        facts |= {"identified": int(identified), "false": int(false), "data": Path(data).stem}
        auc = area_under_curve(found.statistics[:n], found.statistics[n:])
        keep("captured/adaptive", f"{network}, {optimizer}, steps {steps}", "auc", {**facts, "auc": float(auc)})


if __name__ == "__main__":
    command(main)
