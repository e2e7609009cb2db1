r"""Who was in the batch behind the update of a language model or a vision transformer: full, LoRA and head-only.

python experiments/members.py gpt bert vit      small networks, half an hour of a core
python experiments/members.py gpt2 vit_b_32     networks of their published size, random weights (also
                                                'vit_b_32 with a head drawn')
python experiments/members.py gpt bert vit --steps 5 --optimizers SGD
python experiments/members.py beside            picking from a list that holds the truth; whose a candidate is
python experiments/members.py behind            noise and dropout

One step of SGD (rate 0.1) or Adam (0.001) between two float32 checkpoints, dropout off. Adapters (query and value, or
what holds both; of vision transformers the first of a block's two layers) were trained for ten steps of AdamW on other
examples before, so that no B is zero. 400 public examples (200 teach, 200 calibrate), 220 at the published sizes;
batches of 32, 8 and 1 (one, three and four of each seed; at the published sizes one), as many others as members; a
candidate is named where its p-value is 0.01 or less.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
from common import Row, at, command, keep
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, FedSGD, GaussianNoise, build, observe, record
from seepage.attacks.membership import MEMBERSHIP_TESTS, MembershipInference, whose
from seepage.base.nn import frozen_randomness, generator
from seepage.base.schema import Share
from seepage.errors import Inapplicable
from seepage.federation.clients import FedAvg, gradient_behind
from seepage.federation.measured import Step
from seepage.federation.types import Transcript, Update
from seepage.measure.metrics.membership import area_interval, area_under_curve

STUDY, PUBLIC, LEVEL, SIZES = "membership/layers", 400, 0.01, {1: 4, 8: 3, 32: 1}
OPTIMIZERS = {"SGD": (torch.optim.SGD, Step.sgd(0.1), 0.1), "Adam": (torch.optim.Adam, Step.adam(1e-3), 1e-3)}
GPT = {"n_embd": 256, "n_layer": 4, "n_head": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A network, its data, the layers that adapters are put on, and its head."""

    use: Architecture
    data: str
    options: dict[str, Any]
    adapted: str
    head: str | None
    batches: int = 1
    """Of a size: the small networks' number over this."""
    public: int = PUBLIC
    pixels: int | None = None
    """That images are enlarged to."""
    drawn: str | None = None
    """A layer whose weights are zero as built, and are drawn here."""


NETWORKS = {
    "gpt": Network(Architecture("causal_lm:gpt2", GPT), "python_reference", {"tokens": 32}, r".*attn\.c_attn", None),
    "bert": Network(
        Architecture("text_classifier:bert", BERT), "python_reference", {"tokens": 32, "label_column": "topic"},
        r".*\.(query|value)", "classifier",
    ),
    "vit": Network(
        Architecture("vit", {"width": 192, "depth": 4, "hidden": 768}), "../shared/data/cifar10.npz", {}, r".*mlp\.0",
        "head",
    ),
    "gpt2": Network(
        Architecture("causal_lm:gpt2", {name: 0.0 for name in GPT if name.endswith("pdrop")}), "python_reference",
        {"tokens": 32}, r".*attn\.c_attn", None, 2, 220,
    ),
    "vit_b_32": Network(
        Architecture("torchvision:vit_b_32"), "../shared/data/cifar10.npz", {}, r".*mlp\.0", "heads", 2, 220, 224
    ),
    "vit_b_32 with a head drawn": Network(
        Architecture("torchvision:vit_b_32"), "../shared/data/cifar10.npz", {}, r".*mlp\.0", "heads", 2, 220, 224,
        "heads.head",
    ),
}  # fmt: skip


def examples(network: Network, seed: int) -> tuple[Batch, Batch, Batch, tuple[int, ...], int]:
    """Others that train adapters, public ones, and private ones with non-members; the shape, and the classes."""
    data = seepage.federation.data.load(network.data, **network.options)
    order = torch.randperm(len(data), generator=generator(seed, "members"))
    parts = [data.batch(part) for part in order[:1200].tensor_split([80, 80 + network.public])]
    others, public, private = (Batch(sized(one.inputs, network.pixels), one.labels) for one in parts)
    return others, public, private, tuple(public.inputs.shape[1:]), len(data.classes)


def sized(inputs: Tensor, pixels: int | None) -> Tensor:
    return inputs if pixels is None else F.interpolate(inputs, size=(pixels, pixels), mode="bilinear")


def federated(model: nn.Module, federation: str, network: Network, others: Batch) -> nn.Module:
    """The network with the parameters that the federation trains."""
    if federation == "head":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(str(network.head) in name.split("."))
        return model
    if federation == "full":
        return model
    rank = int(federation.split()[-1])
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=network.adapted)
    peft.inject_adapter_in_model(config, model)
    learned = [(name, p.requires_grad_("lora_" in name)) for name, p in model.named_parameters()]
    optimizer = torch.optim.AdamW([p for _, p in learned if p.requires_grad], lr=1e-3)
    for part in torch.arange(len(others)).split(8):
        optimizer.zero_grad()
        F.cross_entropy(model(others.inputs[part]), others.labels[part]).backward()
        optimizer.step()
    return model


def sent(model: nn.Module, batch: Batch, optimizer: str, shape: tuple[int, ...], steps: int = 1) -> Transcript:
    """One step, or several, between two checkpoints, as the server reads it."""
    kind, step, lr = OPTIMIZERS[optimizer]
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in learned.items()}
    own = kind(learned.values(), lr=lr)
    for _ in range(steps):
        own.zero_grad()
        F.cross_entropy(model.train()(batch.inputs), batch.labels).backward()
        own.step()
    moved = {name: p.detach() - before[name] for name, p in learned.items()}
    with torch.no_grad():
        for name, p in learned.items():
            p.copy_(before[name])
            p.grad = None
    if steps > 1:
        several = FedAvg(lr=lr, optimizer="adam" if optimizer == "Adam" else "sgd", epochs=steps)
        return observe(model, Update(moved, "delta"), shape, batch_size=len(batch), client=several)
    update, _ = gradient_behind(before, Update(moved, "delta"), step, {})
    return observe(model, update, shape, batch_size=len(batch), client=FedSGD())


def tested(
    name: str,
    federation: str,
    optimizers: tuple[str, ...],
    sizes: tuple[int, ...],
    uses: tuple[str, ...],
    seed: int,
    steps: int,
) -> Iterator[tuple[str, Row]]:
    """A row for each optimizer, size and test, all at the same weights."""
    network, fitted = NETWORKS[name], dict[str, MembershipInference]()
    others, public, private, shape, classes = examples(network, seed)
    with frozen_randomness(seed):
        model = build(network.use, shape, classes, seed=seed)
        if network.drawn is not None:
            model.get_submodule(network.drawn).reset_parameters()  # type: ignore[operator]
        model = federated(model, federation, network, others)
    for optimizer, n in product(optimizers, sizes):
        batches = max(1, SIZES[n] // network.batches)
        both = [at(private, slice(2 * n * k, 2 * n * (k + 1))) for k in range(batches)]
        seen = [sent(model, at(candidates, slice(n)), optimizer, shape, steps) for candidates in both]
        more = f", {steps} local steps" * (steps > 1)
        for use in uses:
            row: Row = {"test": use, "n": n, "optimizer": optimizer, "federation": federation, "seed": seed}
            row |= {"steps": steps} if steps > 1 else {}
            row |= {"data": Path(network.data).name, "members": batches * n, "others": batches * n}
            begun = time.process_time()
            try:
                if use not in fitted:
                    fitted[use] = MembershipInference(MEMBERSHIP_TESTS[use](), seen[0], public, seed=seed)
                found = [fitted[use].of(one[0], candidates) for one, candidates in zip(seen, both, strict=True)]
            except Inapplicable as refused:
                yield f"{name}, {federation}, {optimizer}, n = {n}{more}", {**row, "refused": str(refused)}
                continue
            statistics = torch.stack([part.statistics for part in found])
            named = torch.stack([part.identified(LEVEL) for part in found])
            row |= rates(statistics[:, :n], statistics[:, n:], named[:, :n], named[:, n:])
            yield f"{name}, {federation}, {optimizer}, n = {n}{more}", {**row, "cpu_s": time.process_time() - begun}


def rates(own: Tensor, rest: Tensor, named: Tensor, false: Tensor) -> Row:
    """The area under the curve of members and others, and the shares of both that are named."""
    row: Row = {"auc": area_under_curve(own.flatten(), rest.flatten())}
    row |= {"interval": area_interval(own.flatten(), rest.flatten())}
    for what, of, hits in (("identified", "members", named), ("false", "others", false)):
        rate = Share.count(int(hits.sum()), hits.numel())
        row |= {what: rate.share, f"{what}_interval": list(rate.interval), of: hits.numel()}
    return row


def beside(seed: int, n: int = 8, clients: int = 4) -> Iterator[tuple[str, Row]]:
    """Picking among candidates, with and without the truth among them; and whose of four clients a candidate is."""
    network, begun = NETWORKS["gpt"], time.process_time()
    _, public, private, shape, classes = examples(network, seed)
    model = build(network.use, shape, classes, seed=seed)
    batches = [at(private, slice(n * k, n * (k + 1))) for k in range(clients)]
    strangers = at(private, slice(n * clients, n * clients + 200))
    seen, both = [sent(model, batch, "SGD", shape) for batch in batches], (*batches, strangers)
    listed = Batch(torch.cat([one.inputs for one in both]), torch.cat([one.labels for one in both]))
    inference = MembershipInference(MEMBERSHIP_TESTS["layer_span"](), seen[0], public, seed=seed)
    parts = [inference.of(one[0], listed) for one in seen]
    facts: Row = {"n": n, "optimizer": "SGD", "federation": "full", "seed": seed, "data": Path(network.data).name}
    own = n * clients
    # The n likeliest of a list are taken, as a "reconstruction" does that only tests candidates: of a list of a
    # client's texts and 200 others, and of the 200 others alone.
    for what in ("with the truth", "without the truth"):
        scores = torch.stack(
            [part.statistics[[*range(n * k, n * k + n), *range(own, len(listed))]] for k, part in enumerate(parts)]
        )
        if what == "without the truth":
            scores[:, :n] = scores.min() - 1
        taken = torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(n).indices, True)
        row = rates(scores[:, :n], scores[:, n:], taken[:, :n], taken[:, n:])
        yield f"gpt, full, SGD, n = {n}, picked from a list {what}", {**facts, **row, "test": "picking"}
    found, client = whose(parts)
    named = found.identified(LEVEL)
    right = named[:own] & (client[:own] == torch.arange(own) // n)
    row = rates(found.statistics[:own], found.statistics[own:], right, named[own:])
    yield (
        f"gpt, full, SGD, n = {n}, {clients} clients",
        {**facts, **row, "test": "whose", "cpu_s": time.process_time() - begun},
    )


def behind(seed: int, n: int = 8, batches: int = 3) -> Iterator[tuple[str, Row]]:
    """The power behind clipped noise that the attacker knows of, and behind dropout."""
    network = NETWORKS["gpt"]
    _, public, private, shape, classes = examples(network, seed)
    dropping = {**GPT, **{name: 0.1 for name in GPT if name.endswith("pdrop")}}
    for sigma in (0.0001, 0.001, 0.01, None):
        begun = time.process_time()
        model = build(replace(network.use, options=dropping if sigma is None else GPT), shape, classes, seed=seed)
        how: dict[str, Any] = {"seed": seed}
        if sigma is not None:
            how |= {"defense": GaussianNoise(clip=1.0, sigma=sigma), "known": ["defense"]}
        both = [at(private, slice(2 * n * k, 2 * n * (k + 1))) for k in range(batches)]
        seen = [record(model, at(candidates, slice(n)), **how) for candidates in both]
        for use in ("layer_span", "matched_filter"):
            inference = MembershipInference(MEMBERSHIP_TESTS[use](), seen[0], public, seed=seed)
            found = [inference.of(one[0], candidates) for one, candidates in zip(seen, both, strict=True)]
            statistics = torch.stack([part.statistics for part in found])
            named = torch.stack([part.identified(LEVEL) for part in found])
            row = rates(statistics[:, :n], statistics[:, n:], named[:, :n], named[:, n:])
            row |= {"test": use, "n": n, "optimizer": "SGD", "federation": "full", "seed": seed}
            row |= {"data": Path(network.data).name, "cpu_s": time.process_time() - begun}
            what = "dropout 0.1" if sigma is None else f"clip 1, noise {sigma:g}, known"
            yield f"gpt, full, gradient, n = {n}, {what}", row


OTHERS = {"beside": beside, "behind": behind}


def main(
    networks: tuple[str, ...],
    *,
    federations: tuple[str, ...] = ("full", "LoRA 8", "LoRA 16", "LoRA 64", "head"),
    optimizers: tuple[str, ...] = ("SGD", "Adam"),
    sizes: tuple[int, ...] = (32, 8, 1),
    seeds: tuple[int, ...] = (0, 1, 2),
    tests: tuple[str, ...] = ("layer_span", "matched_filter", "span_or_filter"),
    steps: int = 1,
) -> None:
    for name, federation, seed in product(networks, federations, seeds):
        once = name in OTHERS and federation != federations[0]
        if once or (federation == "head" and not NETWORKS[name].head):
            continue
        alone = OTHERS.get(name)
        rows = alone(seed) if alone else tested(name, federation, optimizers, sizes, tests, seed, steps)
        for title, row in rows:
            shown = ("test", "seed", "auc", "identified", "false", "members", "cpu_s", "refused")
            print(title, {key: row[key] for key in shown if key in row}, flush=True)
            keep(STUDY, title, "auc", row)


if __name__ == "__main__":
    command(main)
