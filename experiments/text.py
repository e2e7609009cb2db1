r"""Batches of text from one update of a language model: sequences that come back token by token.

python experiments/text.py small
python experiments/text.py gpt2
python experiments/text.py bert

Texts are paragraphs of Python's language reference, cut to one length, from the part that no tokenizer saw; each seed
draws its own batch and its own random weights. `gpt2` and `bert` are networks of transformers in their published
sizes, with the published vocabularies, all of which the attack searches; the texts use the first 4,096 tokens of
them. `small` is `gpt` (width 256, 4 blocks, 8 texts of 16 tokens unless said) by what the client does. Nothing was
tuned on these texts. One row of results/transformers/text.jsonl per setting that is not there yet: the share of texts
that are exactly right.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import seepage.data
from seepage import Architecture, Batch, GaussianNoise, build, record
from seepage.attacks.text import TokenSequences
from seepage.clients import FedAvg
from seepage.core.nn import generator
from seepage.data import TextDataset
from seepage.errors import Inapplicable
from seepage.metrics.text import frequent, rouge, score_text, tokens_of
from seepage.papers.records import RESULTS, keep_measured, read_file
from seepage.types import ClientUpdate, Defense, Update

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


def data_of(tokens: int, *, classes: bool) -> TextDataset:
    found = seepage.data.load("python_reference", tokens=tokens, label_column="topic" if classes else None)
    assert isinstance(found, TextDataset)
    return found


def network(setting: Setting, data: TextDataset, seed: int) -> nn.Module:
    size = SIZES.get(setting.model.use, len(data.pieces))
    outputs = CLASSES if setting.model is BERT else size
    return build(setting.model, data.input_shape, outputs, seed=seed)


def trained(model: nn.Module, data: TextDataset, steps: int, seed: int) -> None:
    """Adam at 0.001 on batches of 16 public texts, in place."""
    optimizer, draw = torch.optim.Adam(model.parameters(), 1e-3), generator(seed, "train")
    for _ in range(steps):
        batch = data.batch(data.train[torch.randint(len(data.train), (16,), generator=draw)])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()


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
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--only", nargs="+", help="names of settings")
    given = parser.parse_args()
    part = given.part
    path = RESULTS / f"{STUDY}.jsonl"
    kept = {one.row for one in read_file(path)} if path.exists() else set()
    for setting in PARTS[part]:
        if setting.name in kept or (given.only and setting.name not in given.only):
            continue
        rows = []
        for seed in range(setting.seeds):
            rows.append(measure(setting, seed))
            print(setting.name, seed, rows[-1], flush=True)
        keep(setting, rows)


if __name__ == "__main__":
    main()
