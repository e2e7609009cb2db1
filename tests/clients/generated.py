"""Clients that nobody wrote: networks drawn from a grammar, local steps drawn from rules, and the truth beside.

    seed --> network, examples, steps --> two files --> `seepage check`, in process --> statements
                        |                                                                 |
                        `---------------------------- truth ---------------------- false, right, or silent

Run as a command, it checks many and prints the false ones: `python -m tests.clients.generated 0 2000`; with `defended`,
`losses`, `sizes` or `again` behind, all of them send defended updates, have another loss, rates of their own for
tensors, or several steps on the same examples; PYTHONPATH holds tests/helpers.
"""

import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.exposure import Exposure
from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.errors import SeepageError
from seepage.federation.types import Architecture

HERE = "generated_networks:drawn"
BODIES = ("rows", "rows", "conv", "signal", "rnn", "text", "attention", "mixed")
OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "nesterov": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True),
    "adam": lambda p, lr: torch.optim.Adam(p, lr / 100),
    "adamw": lambda p, lr: torch.optim.AdamW(p, lr / 100),
    "nadam": lambda p, lr: torch.optim.NAdam(p, lr / 100),
    "rmsprop": lambda p, lr: torch.optim.RMSprop(p, lr / 100),
    "adagrad": lambda p, lr: torch.optim.Adagrad(p, lr / 10),
    "adadelta": lambda p, lr: torch.optim.Adadelta(p, 1.0),
}
PLAIN = ("sgd", "momentum", "nesterov")


class Trust(torch.optim.Optimizer):
    """LARS, which spares vectors, and LAMB: each tensor's step has the length of its weights."""

    def __init__(self, parameters: Any, lr: float, *, signs: bool) -> None:
        super().__init__(list(parameters), {"lr": lr, "signs": signs})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for p in (one for one in group["params"] if one.grad is not None and bool(one.grad.any())):
            moved = p.grad / (p.grad.abs() + 1e-8) if group["signs"] else p.grad
            sized = bool(p.any()) and (group["signs"] or p.ndim > 1)
            p.add_(moved * (0.01 * p.norm() / moved.norm() if sized else 1.0), alpha=-group["lr"])


OWN_SIZES: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "lars": lambda p, lr: Trust(p, lr, signs=False),
    "lamb": lambda p, lr: Trust(p, lr, signs=True),
    "adafactor": lambda p, lr: torch.optim.Adafactor(p, lr / 10),
    "groups": lambda p, lr: torch.optim.SGD([{"params": [q], "lr": lr * 3 ** (i > 3)} for i, q in enumerate(p)], lr),
}
"""Rules that change tensors by sizes of their own."""


@dataclass(frozen=True)
class Drawn:
    """What is true of one client.

    Attributes:
        seed: It was drawn from.
        body: Kind of its network.
        head: Form of its outputs.
        norm: Kind of its normalization; empty: none.
        drops: Kind of its dropout: `module`, `function`, or empty.
        inplace: Activations write over what they read.
        tied: Its last layer shares the weight of its embedding.
        shape: Of one example.
        classes: Number of classes.
        size: Examples behind the update.
        optimizer: Name of its optimizer.
        steps: Local steps.
        clip: `norm`, `value` or empty.
        accumulated: Parts of a batch whose gradients are added up.
        half: The returned weights are of half precision.
        rate: Learning rate.
        told: Names of facts that the user states.
        loss: Name of the loss, of `LOSSES` or cross_entropy.
        defense: What was done to the update before it was sent, of `DEFENSES`, or empty.
        again: Every local step is on the same examples, as of epochs on few.
    """

    seed: int
    body: str
    head: str
    norm: str
    drops: str
    inplace: bool
    tied: bool
    shape: tuple[int, ...]
    classes: int
    size: int
    optimizer: str
    steps: int
    clip: str
    accumulated: int
    half: bool
    rate: float
    told: tuple[str, ...]
    loss: str = "cross_entropy"
    defense: str = ""
    again: bool = False

    @property
    def examples(self) -> int:
        """Private examples behind the update."""
        return self.size * (1 if self.again else self.steps)


WORDS, CODES = 40, 6
DEFENSES = ("faint noise", "noise", "mask", "largest", "levels")
"""Gaussian noise of 3 % or of 30 % of the update's root mean square; half of the entries by chance, doubled; the
largest tenth of each tensor; 4 bits of each tensor with stochastic rounding."""


def taught(out: Tensor) -> Tensor:
    """A teacher's soft labels."""
    return (3 * (torch.arange(out.numel()) ** 2.0).cos()).view_as(out).softmax(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "focal": lambda out, y: (
        (1 - out.softmax(1).gather(1, y[:, None])[:, 0]) ** 2 * F.cross_entropy(out, y, reduction="none")
    ).mean(),
    "hinge": F.multi_margin_loss,
    "squares": lambda out, y: F.mse_loss(out, F.one_hot(y, out.shape[1]).to(out)),
    "logistic": lambda out, y: F.binary_cross_entropy_with_logits(out, F.one_hot(y, out.shape[1]).to(out)),
    "weighted": lambda out, y: F.cross_entropy(out, y, torch.linspace(0.5, 2, out.shape[1])),
    "mixed": lambda out, y: 0.6 * F.cross_entropy(out, y) + 0.4 * F.cross_entropy(out, (y + 1) % out.shape[1]),
    "distilled": lambda out, y: F.cross_entropy(
        out, (3 * torch.cos(torch.arange(out.numel()) ** 2.0)).view_as(out).softmax(1)
    ),
}
SOFT = ("smoothed", "mixed", "distilled")
"""Losses whose labels are no classes."""
"""Losses of one label an example that nobody states, beside the cross-entropy."""
NOISY = ("faint noise", "noise", "mask", "levels")
"""Those that add independent numbers of mean zero, entry by entry."""


def describe(seed: int, all_are: str = "") -> Drawn:
    """The client of a seed.

    One in five sends a defended update, one in five has another loss, one in ten sizes of its own for tensors, and of
    those of several steps half take all on the same examples, or all are so.
    """
    other = random.Random(f"defense {seed}")  # of its own, so that the client stays what it was
    defense = other.choice(DEFENSES) if other.random() < (1 if all_are == "defended" else 0.2) else ""
    loss = other.choice([*LOSSES]) if other.random() < (1 if all_are == "losses" else 0.2) else "cross_entropy"
    own = random.Random(f"sizes {seed}")
    sized = own.choice([*OWN_SIZES]) if own.random() < (1 if all_are == "sizes" else 0.1) else ""
    again = all_are == "again" or random.Random(f"again {seed}").random() < 0.5
    draw = random.Random(seed)
    body = draw.choice(BODIES)
    classes = draw.randint(2, 9)
    shapes = {
        "rows": (draw.randint(8, 40),),
        "conv": (draw.choice((1, 3)), 8, 8),
        "signal": (draw.randint(1, 3), draw.randint(16, 32)),
        "rnn": (draw.randint(4, 8), draw.randint(4, 12)),
        "text": (draw.randint(4, 10),),
        "attention": (draw.randint(4, 8),),
        "mixed": (draw.randint(3, 6),),
    }
    tied = body in ("text", "attention") and draw.random() < 0.3
    per_place = body in ("text", "attention", "rnn", "conv") and (tied or draw.random() < 0.3)
    norm = draw.choice(("", "", "batch", "layer", "group"))
    wrap = draw.choice(("plain", "plain", "plain", "log_softmax", "tuple", "dict"))
    places = draw.choice(("first", "last")) if per_place and body != "conv" else "maps" if per_place else ""
    return Drawn(
        seed=seed,
        body=body,
        head=f"{wrap} {places}".strip(),
        norm=norm,
        drops=draw.choice(("", "", "", "module", "function")),
        inplace=draw.random() < 0.4,
        tied=tied,
        shape=shapes[body],
        classes=WORDS if tied else classes,
        size=draw.randint(4 if norm == "batch" else 1, 6),  # a batch norm trains on no single example
        optimizer=(draw.choice((*["sgd"] * 6, *OPTIMIZERS)), sized)[bool(sized)],
        steps=max(2 if all_are == "again" else 1, draw.choice((1, 1, 1, 1, 2, 3, 5))),
        clip=draw.choice(("", "", "", "", "norm", "value")),
        accumulated=draw.choice((1, 1, 1, 2)),
        half=draw.random() < 0.1,
        rate=draw.choice((0.5, 0.1, 0.05, 0.01)),
        told=tuple(name for name in ("rate", "size", "steps") if draw.random() < 0.6),
        loss=loss if not places and wrap != "log_softmax" else "cross_entropy",
        defense=defense,
        again=again,
    )


class Network(nn.Module):
    """The network of a seed."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__()
        self.drawn, width = drawn, 24
        kind = drawn.body
        if kind == "conv":
            self.first: nn.Module = nn.Conv2d(drawn.shape[0], width, 3, padding=1)
        elif kind == "signal":
            self.first = nn.Conv1d(drawn.shape[0], width, 3)
        elif kind == "rnn":
            self.first = nn.GRU(drawn.shape[1], width, batch_first=True)
        elif kind in ("text", "attention"):
            late = drawn.seed % 3 == 0  # what is registered first is not what is called first
            self.mid = nn.Linear(width, width) if late else nn.Identity()
            self.words = nn.Embedding(WORDS, width)
            self.place = nn.Embedding(drawn.shape[0], width) if drawn.seed % 2 else None
            self.first = (
                nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
                if kind == "attention"
                else nn.GRU(width, width, batch_first=True)
            )
        elif kind == "mixed":
            self.code = nn.Embedding(CODES, 4)
            self.first = nn.Linear(4 + drawn.shape[0] - 1, width)
        else:
            self.first = nn.Linear(drawn.shape[0], width)
        maps = kind in ("conv", "signal")
        norms = {
            "batch": lambda: (nn.BatchNorm2d if kind == "conv" else nn.BatchNorm1d)(width),
            "layer": lambda: nn.GroupNorm(1, width) if maps else nn.LayerNorm(width),
            "group": lambda: nn.GroupNorm(4, width),
        }
        flat = kind in ("rows", "mixed") or maps
        self.norm = norms[drawn.norm]() if drawn.norm and (flat or drawn.norm == "layer") else nn.Identity()
        self.drop = nn.Dropout(0.3) if drawn.drops == "module" else nn.Identity()
        self.head: nn.Module = (
            nn.Conv2d(width, drawn.classes, 1) if "maps" in drawn.head else nn.Linear(width, drawn.classes)
        )
        if drawn.tied:
            self.head.weight = self.words.weight
            if drawn.seed % 5 == 0:
                self.head.bias = None

    def forward(self, x: Tensor) -> Any:
        d = self.drawn
        h = self._body(x)
        if d.drops == "function":
            h = F.dropout(h, 0.3, self.training)
        h = self.drop(h)
        out = self.head(h)
        axis = -1 if h.ndim == 3 else 1
        if "log_softmax" in d.head:
            out = out.log_softmax(axis)
        if "first" in d.head:
            out = out.transpose(1, 2)
        if "tuple" in d.head:
            return out, h
        return {"logits": out, "hidden": h} if "dict" in d.head else out

    def _body(self, x: Tensor) -> Tensor:
        d = self.drawn
        if d.body == "mixed":
            h = self.first(torch.cat([self.code(x[:, 0].long()), x[:, 1:]], 1))
        elif d.body in ("text", "attention"):
            e = self.mid(self.words(x))
            e = e if self.place is None else e + self.place(torch.arange(x.shape[1]))
            h = self.first(e)
            h = self.norm(h if isinstance(h, Tensor) else h[0])
            return h if "first" in d.head or "last" in d.head else h.mean(1)
        elif d.body == "rnn":
            h = self.norm(self.first(x)[0])
            return h if "first" in d.head or "last" in d.head else h[:, -1]
        else:
            h = self.first(x)
        h = F.relu(self.norm(h), inplace=d.inplace) if d.seed % 2 else self.norm(F.relu(h, inplace=d.inplace))
        return h if "maps" in d.head or h.ndim == 2 else h.flatten(2).mean(2)


def drawn(seed: int) -> nn.Module:
    """The network of a seed, as a factory with an option."""
    return Network(describe(seed))


def examples(d: Drawn, seed: int) -> tuple[Tensor, Tensor]:
    """One local step's inputs and labels."""
    own = torch.Generator().manual_seed(seed)
    if d.body in ("text", "attention"):
        x = torch.randint(0, WORDS, (d.size, *d.shape), generator=own)
    else:
        x = torch.rand((d.size, *d.shape), generator=own)
        if d.body == "mixed":
            x[:, 0] = torch.randint(0, CODES, (d.size,), generator=own).float()
    places = (d.shape[0],) if "first" in d.head or "last" in d.head else d.shape[1:] if "maps" in d.head else ()
    return x, torch.randint(0, d.classes, (d.size, *places), generator=own)


@dataclass(frozen=True)
class Truth:
    """A client's two states, and all that went into them."""

    drawn: Drawn
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    inputs: Tensor
    labels: Tensor
    clipped: bool


def sent(d: Drawn, before: dict[str, Tensor], after: dict[str, Tensor], trained: list[str]) -> dict[str, Tensor]:
    """The weights that are returned, of a client with a defense."""
    draw = torch.Generator().manual_seed(d.seed)
    moved = {name: after[name] - before[name] for name in trained}
    size = torch.cat([t.flatten() for t in moved.values()]).square().mean().sqrt()
    found = dict(after)
    for name, t in moved.items():
        if d.defense == "mask":
            t = 2 * t * (torch.rand(t.shape, generator=draw) < 0.5)
        elif d.defense == "largest":
            t = t * (t.abs() >= t.abs().flatten().topk(max(1, t.numel() // 10)).values[-1])
        elif d.defense == "levels" and bool(t.any()):
            places = t / t.abs().max() * 7
            t = (places + torch.rand(t.shape, generator=draw)).floor() * t.abs().max() / 7
        elif "noise" in d.defense:
            t = t + (0.03 if "faint" in d.defense else 0.3) * size * torch.randn(t.shape, generator=draw)
        found[name] = before[name] + t
    return {**found, "head.weight": found["words.weight"]} if d.tied else found


def train(d: Drawn) -> Truth:
    """The client's training."""
    torch.manual_seed(d.seed)
    net = Network(d)
    net.train()
    before = {name: t.detach().clone() for name, t in net.state_dict().items()}
    optimizer = {**OPTIMIZERS, **OWN_SIZES}[d.optimizer](net.parameters(), d.rate)
    seen, clipped = [], False
    for step in range(d.steps):
        x, y = seen[0] if d.again and seen else examples(d, 1000 * d.seed + step)
        seen += [] if d.again and seen else [(x, y)]
        optimizer.zero_grad()
        parts = list(zip(x.split(-(-d.size // d.accumulated)), y.split(-(-d.size // d.accumulated)), strict=True))
        for a, b in parts:
            out = net(a)
            out = out[0] if isinstance(out, tuple) else out["logits"] if isinstance(out, dict) else out
            wide = out.transpose(1, 2) if "last" in d.head else out
            plain = F.nll_loss if "log_softmax" in d.head else F.cross_entropy
            loss = LOSSES.get(d.loss, plain)(wide, b)
            (loss * len(a) / d.size).backward()
        if d.clip == "norm":
            clipped |= float(nn.utils.clip_grad_norm_(net.parameters(), 0.2)) > 0.2
        elif d.clip == "value":
            clipped |= any(bool((p.grad.abs() > 0.02).any()) for p in net.parameters() if p.grad is not None)
            nn.utils.clip_grad_value_(net.parameters(), 0.02)
        optimizer.step()
    after = {name: t.detach().clone() for name, t in net.state_dict().items()}
    if d.defense:
        after = sent(d, before, after, [name for name, _ in net.named_parameters()])
    if d.half:
        after = {name: t.half().float() if t.is_floating_point() else t for name, t in after.items()}
    return Truth(d, before, after, torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen]), clipped)


def ran(d: Drawn, home: Path) -> tuple[Truth, Check]:
    """The client trained, and what `seepage check` says of its two files."""
    truth = train(d)
    torch.save(truth.before, home / "before.pt")
    torch.save(truth.after, home / "after.pt")
    capture = Capture(
        before=home / "before.pt",
        after=home / "after.pt",
        lr=d.rate if "rate" in d.told and d.optimizer in PLAIN else None,
        architecture=Architecture(HERE, {"seed": d.seed}),
        input_shape=d.shape,
        steps=d.steps if "steps" in d.told and d.optimizer in PLAIN else None,
        batch_size=d.examples if "size" in d.told else None,
    )
    return truth, check_capture(capture, Look()).cases[0]


# --- statements, held against the truth ---------------------------------------------------------------------------


@dataclass
class Verdict:
    """The false statements on one client, the right ones, and what could have been read and was not."""

    false: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def hold(self, name: str, true: bool, words: object) -> None:
        (self.right if true else self.false).append(f"{name}: {words}")


def judge(truth: Truth, check: Check) -> Verdict:
    """Each statement against the truth."""
    d, found = truth.drawn, Verdict()
    facts = {fact.name: fact for fact in check.facts}
    exposure = check.exposure
    for name, test in _FACTS.items():
        if name in facts:
            found_one = test(truth, facts[name].value, facts[name].origin)
            if found_one is not None:
                found.hold(name, found_one, f"{facts[name].value} [{facts[name].origin}]")
    one = d.steps == 1
    seen = d.examples
    # Rows that nothing shows to be a gradient's are said to be examples of SGD alone.
    rests = any("if the optimizer is SGD" in closed.message for closed in exposure.of("exact-rows"))
    none = d.defense or (d.optimizer in ("lamb", "adafactor") and not rests)
    found.hold("examples", exposure.examples <= (0 if none else seen), exposure.examples)
    if exposure.at_least is not None:
        found.hold("at least", exposure.at_least <= seen, exposure.at_least)
    unlike = ("squares", "logistic") + SOFT * all(one.evidence["condition"] for one in exposure.of("labels"))
    for closed in exposure.of("labels") if d.loss not in unlike or not _conditional(exposure) else ():
        leak, true = closed.evidence, torch.bincount(truth.labels.flatten(), minlength=d.classes)
        if closed.tensors:
            found.hold("labels", all(true[c] > 0 for c in leak["present"]), leak["present"])
            if leak["complete"]:
                found.hold("complete", len(leak["present"]) == int((true > 0).sum()), leak["present"])
            if leak["least"] is not None:
                found.hold("least", all(true[c] >= n for c, n in enumerate(leak["least"])), leak["least"])
            if leak["most"] is not None:
                found.hold("most", all(true[c] <= n for c, n in enumerate(leak["most"])), leak["most"])
            if leak["places"] is not None:
                times = sum(true.tolist()) / leak["places"]
                same = all(count * times == float(real) for count, real in zip(leak["counts"], true, strict=True))
                found.hold("counts", same and (times == 1 or leak["multiple"]), leak["counts"])
            if leak["shares"] is not None:
                found.hold(
                    "shares",
                    all(
                        s <= t / len(truth.labels.flatten()) + 1e-6
                        for s, t in zip(leak["shares"], true.tolist(), strict=True)
                    ),
                    leak["shares"],
                )
    for closed in exposure.of("codes"):
        there = set(truth.inputs.long().flatten().tolist() if d.body != "mixed" else truth.inputs[:, 0].long().tolist())
        found.hold("codes", set(closed.evidence["rows"]) <= there, closed.evidence["rows"])
    for closed in exposure.of("places"):
        there = [set(truth.inputs[:, place].tolist()) for place in range(d.shape[0])]
        right = all(set(one) <= held for one, held in zip(closed.evidence["tokens"], there, strict=True))
        found.hold("places", right, closed.message)
    for closed in exposure.of("bags"):
        rows = [set(row.tolist()) for row in truth.inputs]
        right = all(any({token for token, _ in text} <= row for row in rows) for text in closed.evidence["texts"])
        found.hold("bags", right, closed.message)
    for closed in exposure.of("text"):
        named = closed.evidence["identified"]
        found.hold("text", named is None or named <= len(truth.inputs.unique()), closed.message)
    for look in exposure.defenses:
        linear = d.optimizer in (*PLAIN, "lars", "groups")
        real = {
            "clipped": truth.clipped, "adaptive": not linear or d.clip == "value", "rounded": d.half,
            "noised": d.defense in NOISY,
            "quantized": d.half or d.defense == "levels" or (not linear and "steps of signs" in look.message),
            "sparsified": d.defense in ("mask", "largest", "levels"), "centered": False,
        }  # fmt: skip
        found.hold(f"looks {look.name}", real.get(look.name, True), look.message)
    for note in exposure.notes:
        if "which one step of SGD on" in note:
            plain = one and "size" in d.told and d.optimizer in (*PLAIN, "lars", "groups") and not d.defense
            found.hold("contradicted", not plain, note)
        if note.startswith("batch norm"):
            found.hold("note", d.norm == "batch", note)
    _missed(truth, check, found)
    return found


def _missed(truth: Truth, check: Check, found: Verdict) -> None:
    """What somebody reads by hand, the truth only to score: rows over biases, labels by the last bias's sign."""
    d = truth.drawn
    if d.optimizer not in PLAIN or d.half or d.steps > 1 or d.clip == "value" or d.defense:
        return
    first, moved = "first.weight", {n: truth.before[n] - truth.after[n] for n in truth.before}
    if d.body == "rows" and d.rate >= 0.1:
        rows, bias = moved[first].double(), moved["first.bias"].double()
        near = (rows / bias[:, None])[bias.abs() > 0.01 * bias.abs().max()]
        apart = (near[:, None] - truth.inputs.double()[None]).abs().amax(2)
        exact = int((apart < 0.003).any(0).sum())
        if exact > check.exposure.examples:
            found.missed.append(f"examples: {exact} by hand, {check.exposure.examples}")
    name = "head.bias"
    if name in moved and not check.exposure.of("labels"):
        bias = moved[name].double()
        if bool((bias < -0.01 * bias.abs().max()).any()):
            found.missed.append("labels")
    if d.body in ("text", "attention") and not d.tied and "tokens" not in {fact.name for fact in check.facts}:
        found.missed.append("tokens")


def _classes(truth: Truth, value: str, origin: str) -> bool:
    return int(value.split(",")[0].split()[0]) == truth.drawn.classes


def _dropout(truth: Truth, value: str, origin: str) -> bool:
    return (truth.drawn.drops == "") if value.startswith("no") else truth.drawn.drops != ""


def _batch_norm(truth: Truth, value: str, origin: str) -> bool:
    there = any("running_var" in name for name in truth.before)
    return not there if value.startswith("none") else there and not (origin == "read" and "eval" in value)


def _batch_size(truth: Truth, value: str, origin: str) -> bool | None:
    number = value.removeprefix("at least ").split()[0].rstrip(",")
    if not number.isdigit():
        return None
    return int(number) <= truth.drawn.examples


def _optimizer(truth: Truth, value: str, origin: str) -> bool | None:
    plain = truth.drawn.optimizer in (*PLAIN, "lars", "groups")
    if origin == "stated":
        return None
    if value.startswith("as one step of"):
        clipped = value.startswith("as one step of SGD clipped by value")
        return truth.drawn.steps == 1 and (truth.drawn.clip == "value" if clipped else not plain)
    if "Adafactor leaves" in value:
        return truth.drawn.optimizer == "adafactor"
    if value.startswith("SGD with rates of their own"):
        return truth.drawn.steps == 1 and truth.drawn.optimizer in ("lars", "groups")
    if value.startswith("assumed: held to one size"):
        return not plain or truth.drawn.clip == "value"
    return plain if value.startswith("SGD") else None


def _inputs(truth: Truth, value: str, origin: str) -> bool | None:
    if truth.drawn.defense in ("largest", "levels"):
        return None  # what is too small to show is sent as zero
    return int(value.split()[0].replace(",", "")) <= int((truth.inputs.flatten(1) == 0).all(0).sum())


def _tokens(truth: Truth, value: str, origin: str) -> bool | None:
    d, number = truth.drawn, value.split()[0].replace(",", "")
    if not number.isdigit():
        return None
    tokens = truth.inputs if d.body != "mixed" else truth.inputs[:, 0]
    return int(number) <= len(tokens.unique())


def _decay(truth: Truth, value: str, origin: str) -> bool | None:
    return truth.drawn.optimizer == "adamw" if "taken out" in value else None


def _steps(truth: Truth, value: str, origin: str) -> bool | None:
    if value.startswith("1, as several"):
        return truth.drawn.steps == 1
    if origin == "stated" or value.startswith("assumed") or truth.drawn.accumulated > 1:
        return None
    if "if the loss is a mean cross-entropy" in value and truth.drawn.loss != "cross_entropy":
        return None
    number = value.split()[0]
    return (
        int(number) <= truth.drawn.steps * (1 if truth.drawn.optimizer == "sgd" else 99) if number.isdigit() else None
    )


def _half(truth: Truth, value: str, origin: str) -> bool | None:
    if origin == "unknown":
        return None
    return None if value.startswith("nothing") else (not truth.drawn.half) == value.startswith("none")


def _conditional(exposure: Exposure) -> bool:
    return all(one.evidence["signed"] or one.evidence["condition"] for one in exposure.of("labels"))


def _labels(truth: Truth, value: str, origin: str) -> bool | None:
    if "if the loss is a softmax's" in value and truth.drawn.loss in ("squares", "logistic", *SOFT):
        return None
    if "if each label is one class" in value and truth.drawn.loss in SOFT:
        return None
    if origin == "unknown" or not value.startswith("class"):
        return None
    named = [int(part) for part in re.findall(r"(?:^|, |classes |class )(\d+)(?= |,|$)", value.split(", from")[0])]
    return all(int((truth.labels == name).sum()) > 0 for name in named)


def _noise(truth: Truth, value: str, origin: str) -> bool | None:
    there = truth.drawn.defense
    if origin == "unknown" or there in ("mask", "levels"):
        return None  # what these add is independent too, and may be too little to be seen
    return value.startswith("none") != (there in NOISY)


_FACTS: dict[str, Callable[[Truth, str, str], bool | None]] = {
    "classes": _classes, "dropout": _dropout, "batch norm": _batch_norm, "batch size": _batch_size,
    "optimizer": _optimizer, "tokens": _tokens, "weight decay": _decay, "local steps": _steps,
    "half precision": _half, "labels": _labels, "inputs": _inputs,
    "input shape": lambda truth, value, origin: value == ",".join(map(str, truth.drawn.shape)),
    "noise": _noise,
}  # fmt: skip


def checked(seeds: Iterable[int], all_are: str = "") -> Iterator[tuple[Drawn, Verdict]]:
    """Each drawn client with its verdict; a traceback or a refusal is a false statement too."""
    for seed in seeds:
        d = describe(seed, all_are)
        with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield d, judge(*ran(d, Path(home)))
            except SeepageError as error:
                # Outputs as large as inputs, and an optimizer that hides the sum of the last bias: asking is right.
                hides = d.optimizer not in PLAIN or d.clip == "value" or d.half or d.defense != "" or d.loss in LOSSES
                asked = "as an autoencoder does; say what" in str(error) and hides
                yield d, Verdict(missed=[f"asked: {error}"]) if asked else Verdict(false=[f"refused: {error}"])
            except Exception as error:
                yield d, Verdict(false=[f"traceback: {type(error).__name__}: {error}"])


def main() -> None:
    """Check the clients of seeds from the first argument on, as many as the second says."""
    start, count = (int(word) for word in sys.argv[1:3])
    began, told, whole = time.process_time(), 0, 0
    kinds, missed = Counter[str](), Counter[str]()
    for done, (d, verdict) in enumerate(checked(range(start, start + count), *sys.argv[3:4]), 1):
        told += len(verdict.right)
        whole += not verdict.false and not verdict.missed
        missed.update(one.split(":")[0] for one in verdict.missed)
        kinds.update(one.split(":")[0] for one in verdict.false)
        named = f"{d.seed} {d.body}/{d.head}/{d.norm}/{d.drops}/{d.optimizer}x{d.steps}"
        named += " again" * (d.again and d.steps > 1) + f" {d.loss}" * (d.loss in LOSSES)
        named += " half" * d.half + f" {d.defense}" * bool(d.defense)
        for one in verdict.false:
            print(f"{named} {one}"[:330], flush=True)
        if done % 100 == 0 or done == count:
            print(
                f"{done} clients: {kinds.total()} false statements {dict(kinds)}; {told} right ones; {whole} verdicts "
                f"right and whole; read by hand and not said: {dict(missed)}; {time.process_time() - began:.0f} s of "
                "a core",
                flush=True,
            )


if __name__ == "__main__":
    main()
