"""The set of tokens in one update, of clients that train as Flower's Hugging Face quickstart does, and their places.

python experiments/text.py sets
python experiments/text.py places

A BERT of 2 blocks of width 128 (random weights, 30,522 tokens, dropout on), 32 texts of up to 60 tokens, each local
step on all of them: paragraphs of Python's language reference from the part that no tokenizer saw. Nothing was tuned on
these texts. One row of results/transformers/token-sets.jsonl per setting that is not there yet: the share of distinct
tokens that are named. Sequences, token by token, are a recipe: `recipes/texts.toml`.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from common import command, descend, keep, kept
from torch import nn

import seepage.federation.data
from seepage import Architecture, Batch, build, observe
from seepage.attacks.text import TokenSet
from seepage.attacks.text.positions import places_of
from seepage.base.nn import generator
from seepage.errors import Inapplicable
from seepage.federation.clients import gradient_behind
from seepage.federation.data import TextDataset
from seepage.federation.measured import Step
from seepage.federation.types import Update
from seepage.measure.metrics.text import frequent_share, score_token_set, tokens_of

CLASSES = 2

SETS, RATE = "transformers/token-sets", 5e-5
TINY_BERT = Architecture(
    "text_classifier:bert",
    {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
)


@dataclass(frozen=True)
class Trained:
    """Clients that train, and what can be reconstructed of them.

    Attributes:
        name: Of the row.
        optimizer: Makes their optimizer.
        steps: Local steps.
        clients: How many of them are averaged.
        kind: Number format of the checkpoint that comes back.
        noise: Deviation of noise on all weights.
    """

    name: str
    optimizer: Callable[..., torch.optim.Optimizer]
    steps: int
    clients: int = 1
    kind: torch.dtype = torch.float32
    noise: float = 0.0
    batches: int = 10


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def decayed(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=5e-4)


CLIENTS = (
    *(
        Trained(f"{name}, {steps} local step{'s' * (steps > 1)}", made, steps)
        for name, made in (("AdamW", adamw), ("SGD", sgd), ("SGD, momentum, decay", decayed))
        for steps in (1, 5, 20)
    ),
    Trained("AdamW, 5 local steps, 3 clients' mean", adamw, 5, clients=3, batches=3),
    Trained("AdamW, 5 local steps, bfloat16 checkpoint", adamw, 5, kind=torch.bfloat16),
    Trained("SGD, 5 local steps, bfloat16 checkpoint", sgd, 5, kind=torch.bfloat16),
    Trained("AdamW, 5 local steps, noise of 1e-6", adamw, 5, noise=1e-6),
)


def train_client(model: nn.Module, batch: Batch, setting: Trained, seed: int) -> dict[str, torch.Tensor]:
    """The weights of one client after its local steps, dropout on."""
    own = copy.deepcopy(model).train()
    torch.manual_seed(seed)
    descend(own, setting.optimizer(own.parameters()), [batch] * setting.steps)
    return {name: p.detach() for name, p in own.named_parameters()}


def measure_set(setting: Trained, seed: int) -> dict[str, Any]:
    """One batch of each client: how many of their distinct tokens are named, and how many wrong."""
    data = seepage.federation.data.load("python_reference", tokens=60, label_column="topic")
    assert isinstance(data, TextDataset)
    model = build(TINY_BERT, data.input_shape, CLASSES, seed=seed)
    order = torch.randperm(len(data.private), generator=generator(seed, "texts"))
    texts = [data.batch(data.private[part]) for part in order[: 32 * setting.clients].split(32)]
    batches = [Batch(one.inputs, one.labels % CLASSES) for one in texts]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    states = [train_client(model, one, setting, seed + place) for place, one in enumerate(batches)]
    after = {name: torch.stack([state[name] for state in states]).mean(0) for name in before}
    noise = generator(seed, "noise")
    after = {name: p + setting.noise * torch.randn(p.shape, generator=noise) for name, p in after.items()}
    after = {name: p.to(setting.kind).float() for name, p in after.items()}
    whole = Batch(torch.cat([one.inputs for one in batches]), torch.cat([one.labels for one in batches]))
    seen = observe(model, Update.from_states(before, after), data.input_shape, lr=RATE)
    held = set(tokens_of(whole.inputs.flatten()))
    facts: dict[str, Any] = {"held": len(held), "frequent": frequent_share(whole.inputs, data.ids[data.train])}
    cpu = time.process_time()
    try:
        found = TokenSet()(seen, seed=0)
    except Inapplicable as error:
        return {**facts, "right": 0, "identified": 0, "certified": 0, "false": 0, "reason": error.reason, "cpu_s": 0.0}
    facts["cpu_s"] = time.process_time() - cpu
    scores, _, false = score_token_set([found], [whole], vocabulary=None)
    right = round(scores["token_recall"].mean * len(held))
    certified = 0 if found.certified is None else int(found.certified.sum())
    return {**facts, "right": right, "identified": len(found), "certified": certified, "false": false}


def row_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts over all batches, and the least and largest share of one."""
    sums = {name: sum(row[name] for row in rows) for name in ("held", "right", "identified", "certified", "false")}
    means = {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in ("frequent", "cpu_s")}
    shares = [row["right"] / row["held"] for row in rows]
    reasons = sorted({row["reason"] for row in rows if "reason" in row})
    whole = {"token_recall": sums["right"] / sums["held"], "interval": (min(shares), max(shares))}
    return {**whole, **sums, **means, "runs": len(rows), "reasons": reasons, "data": "python_reference"}


PLACES = "transformers/places"
PLACED = tuple(
    (f"{name}, {texts} text{'s' * (texts > 1)}", made, texts)
    for name, made in (("SGD", sgd), ("SGD, momentum, decay", decayed), ("AdamW", adamw))
    for texts in (1, 2, 4)
)


def measure_places(made: Callable[..., torch.optim.Optimizer], texts: int, seed: int) -> dict[str, Any]:
    """One step of a client on so many texts, dropout on: at how many places each token is known."""
    data = seepage.federation.data.load("python_reference", tokens=60, label_column="topic")
    assert isinstance(data, TextDataset)
    model = build(TINY_BERT, data.input_shape, CLASSES, seed=seed)
    order = torch.randperm(len(data.private), generator=generator(seed, "texts"))
    drawn = data.batch(data.private[order[:texts]])
    batch, before = Batch(drawn.inputs, drawn.labels % CLASSES), {n: p.detach() for n, p in model.named_parameters()}
    after = train_client(model, batch, Trained("", made, 1), seed)
    moved, name = Update.from_states(before, after), str(made.__name__)
    if name == "adamw":
        update, _ = gradient_behind(before, moved, Step.adam(RATE), dict.fromkeys(before, RATE * 0.01))
        seen = observe(model, update, data.input_shape, batch_size=texts)
    else:
        shares = dict.fromkeys(before, 0.01 * 5e-4 if name == "decayed" else 0.0)
        seen = observe(model, moved.without_decay(before, shares), data.input_shape, lr=0.01, batch_size=texts)
    cpu = time.process_time()
    found = places_of(seen.knowledge, seen[0])
    assert found is not None
    rows, padding = batch.inputs, found.padding
    there = [{int(token) for token in rows[:, place] if token not in (padding, -1)} for place in range(rows.shape[1])]
    named = [set(one) for one in found.tokens]
    return {
        "places": sum(map(bool, there)), "whole": sum(a == b for a, b in zip(named, there, strict=True) if b),
        "false": sum(not a <= b for a, b in zip(named, there, strict=True)),
        "texts_exact": int(found.text is not None and torch.equal(found.text, rows.clamp(min=padding or 0))),
        "cpu_s": time.process_time() - cpu,
    }  # fmt: skip


def main(what: Literal["sets", "places"], *, only: Annotated[tuple[str, ...], "names of settings"] = ()) -> None:
    for name, made, texts in PLACED if what == "places" else ():
        if (name, "") not in kept(PLACES) and (not only or name in only):
            rows = [measure_places(made, texts, seed) for seed in range(10)]
            sums = {key: sum(row[key] for row in rows) for key in ("places", "whole", "false", "texts_exact")}
            shares = [row["whole"] / row["places"] for row in rows]
            share = {"place_share": sums["whole"] / sums["places"], "interval": (min(shares), max(shares))}
            spent = {"cpu_s": round(sum(row["cpu_s"] for row in rows) / 10, 2)}
            keep(PLACES, name, "place_share", {**share, **sums, **spent, "runs": 10, "data": "python_reference"})
            print(name, sums, flush=True)
    for setting in CLIENTS:
        if what == "sets" and (setting.name, "") not in kept(SETS) and (not only or setting.name in only):
            rows = [measure_set(setting, seed) for seed in range(setting.batches)]
            keep(SETS, setting.name, "token_recall", row_of(rows))


if __name__ == "__main__":
    command(main)
