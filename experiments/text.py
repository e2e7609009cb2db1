r"""Batches of text from one update of a language model: sequences that come back token by token.

python experiments/text.py small
python experiments/text.py gpt2
python experiments/text.py bert
python experiments/text.py sets

Texts are paragraphs of Python's language reference, cut to one length, from the part that no tokenizer saw; each seed
draws its own batch and its own random weights. `gpt2` and `bert` are networks of transformers in their published
sizes, with the published vocabularies, all of which the attack searches; the texts use the first 4,096 tokens of
them. `small` is `gpt` (width 256, 4 blocks, 8 texts of 16 tokens unless said) by what the client does. Nothing was
tuned on these texts. One row of results/transformers/text.jsonl per setting that is not there yet: the share of texts
that are exactly right.

`sets` is the set of tokens alone, of clients that train as Flower's Hugging Face quickstart does: a BERT of 2 blocks of
width 128 (random weights, 30,522 tokens, dropout on), 32 texts of up to 60 tokens, each local step on all of them. One
row of results/transformers/token-sets.jsonl per setting: the share of distinct tokens that are named.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from common import descend, draws, kept
from torch import nn

import seepage.federation.data
from seepage import Architecture, Batch, GaussianNoise, build, observe, record
from seepage.attacks.text import TokenSequences, TokenSet
from seepage.base.nn import generator
from seepage.errors import Inapplicable
from seepage.federation.clients import FedAvg
from seepage.federation.data import TextDataset
from seepage.federation.types import ClientUpdate, Defense, Update
from seepage.measure.metrics.text import frequent, frequent_share, rouge, score_text, score_token_set, tokens_of
from seepage.papers.records import keep_measured

STUDY = "transformers/text"
SMALL = Architecture("gpt", {"width": 256, "depth": 4, "heads": 4})
GPT2, BERT = Architecture("causal_lm:gpt2"), Architecture("text_classifier:bert")
SIZES = {GPT2.use: 50257, BERT.use: 30522}
CLASSES = 2


@dataclass(frozen=True)
class Setting:
    """What is attacked, and what the client does."""

    name: str
    model: Architecture = SMALL
    texts: int = 8
    tokens: int = 16
    seeds: int = 3
    trained: int = 0
    client: ClientUpdate | None = None
    defense: Defense | None = None
    dtype: torch.dtype = torch.float32
    facts: dict[str, Any] = field(default_factory=dict)


PARTS: dict[str, Sequence[Setting]] = {
    "gpt2": (
        Setting("GPT-2, 8 x 32", GPT2, 8, 32, 3),
        Setting("GPT-2, 16 x 32", GPT2, 16, 32, 3),
        Setting("GPT-2, 24 x 32", GPT2, 24, 32, 1),
        Setting("GPT-2, 32 x 32", GPT2, 32, 32, 1),
    ),
    "bert": (
        Setting("BERT, 2 x 16", BERT, 2, 16, 5),
        Setting("BERT, 4 x 16", BERT, 4, 16, 3),
        Setting("BERT, 8 x 16", BERT, 8, 16, 1),
    ),
    "small": (
        Setting("fresh", seeds=5),
        Setting("trained for 200 steps", trained=200),
        Setting("16 x 16 (240 tokens)", texts=16),
        Setting("17 x 16 (255 tokens)", texts=17),
        Setting("20 x 16 (300 tokens)", texts=20),
        *(
            Setting(f"{steps} local step{'s' * (steps > 1)} at {lr:g}", client=FedAvg(lr=lr, steps=steps))
            for lr, steps in ((0.001, 5), (0.01, 1), (0.01, 2), (0.01, 5), (0.01, 20), (0.1, 2), (0.1, 5))
        ),
        Setting("float16", dtype=torch.float16),
        Setting("bfloat16", dtype=torch.bfloat16),
        *(Setting(f"Gaussian noise of {s:g}", defense=GaussianNoise(sigma=s)) for s in (1e-7, 1e-6, 1e-5, 1e-4)),
    ),
}


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
    data = data_of(60, classes=True)
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


def keep_set(setting: Trained, rows: list[dict[str, Any]]) -> None:
    """One record: counts over all batches, and the least and largest share of one."""
    sums = {name: sum(row[name] for row in rows) for name in ("held", "right", "identified", "certified", "false")}
    means = {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in ("frequent", "cpu_s")}
    shares = [row["right"] / row["held"] for row in rows]
    reasons = sorted({row["reason"] for row in rows if "reason" in row})
    facts = {**sums, **means, "runs": len(rows), "reasons": reasons}
    value, ends = sums["right"] / sums["held"], (min(shares), max(shares))
    keep_measured(SETS, setting.name, "token_recall", value, interval=ends, data="python_reference", **facts)


def data_of(tokens: int, *, classes: bool) -> TextDataset:
    found = seepage.federation.data.load("python_reference", tokens=tokens, label_column="topic" if classes else None)
    assert isinstance(found, TextDataset)
    return found


def network(setting: Setting, data: TextDataset, seed: int) -> nn.Module:
    size = SIZES.get(setting.model.use, len(data.pieces))
    outputs = CLASSES if setting.model is BERT else size
    return build(setting.model, data.input_shape, outputs, seed=seed)


def trained(model: nn.Module, data: TextDataset, steps: int, seed: int) -> None:
    """Adam at 0.001 on batches of 16 public texts, in place."""
    batches = draws(data.batch(data.train), steps, 16, generator(seed, "train"))
    descend(model, torch.optim.Adam(model.parameters(), 1e-3), batches)


def measure(setting: Setting, seed: int) -> dict[str, Any]:
    data = data_of(setting.tokens, classes=setting.model is BERT)
    model = network(setting, data, seed)
    trained(model, data, setting.trained, seed)
    order = torch.randperm(len(data.private), generator=generator(seed, "texts"))
    batch = data.batch(data.private[order[: setting.texts]])
    labels = batch.labels % CLASSES if setting.model is BERT else batch.labels
    batch = Batch(batch.inputs, labels)
    seen = record(model, batch, client=setting.client, defense=setting.defense, seed=seed)
    first = seen[0]
    if setting.dtype != torch.float32:
        first = replace(first, update=Update({n: t.to(setting.dtype).float() for n, t in first.update.tensors.items()}))
    seen = replace(seen, make_round=lambda t: first)
    wall, cpu = time.perf_counter(), time.process_time()
    guess = frequent(batch.inputs, data.ids[data.train])
    facts: dict[str, Any] = {
        "tokens": int((batch.inputs >= 0).sum()),
        "frequent_rouge_1": sum(rouge(tokens_of(a), tokens_of(b), 1) for a, b in zip(guess, batch.inputs, strict=True))
        / len(guess),
    }
    try:
        found = TokenSequences()(seen, seed=0)
    except Inapplicable as error:
        return {**facts, "exact": 0.0, "reason": error.reason, "cpu_s": time.process_time() - cpu}
    scores = score_text(found, batch)
    certified = 0 if found.certified is None else int(found.certified.sum())
    return {
        **facts,
        "exact": scores.exact,
        "rouge_1": scores.rouge_1,
        "rouge_2": scores.rouge_2,
        "certified": certified,
        "false": certified if scores.exact != 1 else 0,
        "labels": scores.label_accuracy,
        "returned": len(found),
        "notes": list(found.notes),
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
    }


def keep(setting: Setting, rows: list[dict[str, Any]]) -> None:
    """One record: means over the seeds."""
    shares = [row["exact"] for row in rows]
    facts: dict[str, Any] = {"texts": setting.texts, "length": setting.tokens, "runs": len(rows)}
    for name in ("tokens", "frequent_rouge_1", "rouge_1", "rouge_2", "labels", "returned", "wall_s", "cpu_s"):
        values = [row[name] for row in rows if row.get(name) is not None]
        facts[name] = round(sum(values) / len(values), 4) if values else None
    facts |= {name: sum(row.get(name, 0) for row in rows) for name in ("certified", "false")}
    facts |= {"reasons": sorted({row["reason"] for row in rows if "reason" in row})}
    facts |= {"notes": rows[0].get("notes", [])}
    value, ends = sum(shares) / len(shares), (min(shares), max(shares))
    keep_measured(STUDY, setting.name, "exact", value, interval=ends, data="python_reference", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "sets"])
    parser.add_argument("--only", nargs="+", help="names of settings")
    given = parser.parse_args()
    part = given.part
    done = {row for row, _ in kept(SETS if part == "sets" else STUDY)}
    for setting in CLIENTS if part == "sets" else PARTS[part]:
        if setting.name in done or (given.only and setting.name not in given.only):
            continue
        rows = []
        for seed in range(setting.batches if isinstance(setting, Trained) else setting.seeds):
            one = measure_set(setting, seed) if isinstance(setting, Trained) else measure(setting, seed)
            rows.append(one)
            print(setting.name, seed, one, flush=True)
        if isinstance(setting, Trained):
            keep_set(setting, rows)
        else:
            keep(setting, rows)


if __name__ == "__main__":
    main()
