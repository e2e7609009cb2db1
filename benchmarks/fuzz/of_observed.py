"""Readers of updates that somebody recorded or captured, and of what a client states of its privacy."""

import io
import json
import pickle
from pathlib import Path
from random import Random
from typing import ClassVar

import torch
from base import Reader
from mutations import TRACE, WORDS, as_json, damaged, odd, safetensors, spoiled, spoiled_file, spoiled_tensors
from watch import ran

from seepage import Architecture, Batch, build, exposure, open_transcript, record, save_transcript
from seepage.attacks import ATTACKS
from seepage.audit.observe import Files, observe_files
from seepage.audit.recorded import read_through
from seepage.base.registry import Spec
from seepage.base.storage import read_tensors
from seepage.federation.models.weights import load_weights, read_state
from seepage.federation.transcript.simulated import OneRound
from seepage.measure.privacy.ledger import open_entry

SHAPE, CLASSES, HIDDEN = (1, 3, 3), 3, 6


def small_batch(seed: int = 0) -> Batch:
    """Two random pictures of 3 x 3 pixels."""
    return Batch(torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(seed)), torch.tensor([0, 2]))


def write_observed(folder: Path, **more: object) -> None:
    """A recorded update of a small network."""
    architecture = Architecture("fc2", {"hidden": HIDDEN})
    model = build(architecture, SHAPE, CLASSES)
    save_transcript(record(model, small_batch(), architecture=architecture, **more), folder)  # type: ignore[arg-type]


def small_state() -> dict[str, torch.Tensor]:
    """Its weights."""
    return {
        name: tensor.clone()
        for name, tensor in build(Architecture("fc2", {"hidden": HIDDEN}), SHAPE, CLASSES).state_dict().items()
    }


class _Payload:
    """A pickle that makes a folder, were it run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.mkdir, (TRACE,)


class State(Reader):
    name, about = "state", "state_dict of torch.save"

    def prepare(self) -> None:
        self.put("x.pt", _saved(small_state()))

    def spoil(self, rng: Random) -> None:
        kind = rng.random()
        if kind < 0.35:
            self.damage(rng, "x.pt")
        elif kind < 0.8:
            self.put("x.pt", _saved(_strange_state(rng)))
        else:
            payload = rng.choice((pickle.dumps(_Payload()), pickle.dumps({"w": _Payload()}), _saved({"w": _Payload()})))
            self.put("x.pt", payload if rng.random() < 0.7 else damaged(rng, payload))

    def read(self) -> object:
        model = build(Architecture("fc2", {"hidden": HIDDEN}), SHAPE, CLASSES)
        return load_weights(model, read_state(self.home / "x.pt"), CLASSES, "x.pt")


def _saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _strange_state(rng: Random) -> object:
    tensors: dict[object, object] = dict(spoiled_tensors(rng, small_state()))
    name = rng.choice(sorted(map(str, tensors))) if tensors else "w"
    strange = (
        torch.ones(2, 3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(1).expand(2**20),
        torch.empty(3, device="meta"),
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(4)[::2],
        {"inner": torch.ones(2)},
        [torch.ones(2)],
        odd(rng),
        torch.ones(()),
        torch.ones(0, 3),
        torch.nn.Linear(2, 2).state_dict(),
        3.5,
        None,
    )
    if rng.random() < 0.7:
        tensors[rng.choice((name, "extra", 3, ("a", "b"), rng.choice(WORDS)))] = rng.choice(strange)
    return rng.choice(
        (tensors, tensors, tensors, {"state_dict": tensors}, {"model": tensors}, [tensors], rng.choice(strange))
    )


class Tensors(Reader):
    name, about = "tensors", "safetensors file"

    def prepare(self) -> None:
        self.put("x.safetensors", safetensors(small_state()))

    def spoil(self, rng: Random) -> None:
        self.put("x.safetensors", spoiled_file(rng, small_state()))

    def read(self) -> object:
        path = self.home / "x.safetensors"
        read_tensors(path, ["0.weight", "1.weight"])
        model = build(Architecture("fc2", {"hidden": HIDDEN}), SHAPE, CLASSES)
        return load_weights(model, read_state(path), CLASSES, "x")


class _Observed(Reader):
    def prepare(self) -> None:
        write_observed(self.home)

    def read(self) -> object:
        seen = open_transcript(self.home)
        read_through(seen)
        json.dumps(exposure(seen).table(), allow_nan=False)
        return ATTACKS.build(Spec("linear"))(OneRound(seen, 0), seed=0)


class FactsOfRounds(_Observed):
    name, about = "facts", "knowledge.json: validate, exposure, an attack"

    def spoil(self, rng: Random) -> None:
        facts = json.loads(self.good["knowledge.json"])
        if rng.random() < 0.5:
            facts["known"] = (
                rng.sample(["defense", "labels", rng.choice(WORDS)], rng.choice((1, 1, 2)))
                if rng.random() < 0.3
                else ["defense"]
            )
        if rng.random() < 0.3:
            facts["client"] = rng.choice(
                (
                    {"use": "fedavg", "lr": 0.1, "epochs": 3, "batch_size": 1},
                    {"use": "fedavg", "lr": 0.1, "steps": 2},
                    {"use": "fedprox", "lr": 0.1, "epochs": 1, "mu": 1},
                    {"use": "fedsgd", "clients": 3},
                )
            )
        if rng.random() < 0.3:
            facts["defense"] = [
                rng.choice(
                    (
                        {"use": "gaussian_noise", "sigma": 0.1},
                        {"use": "laplace_noise", "scale": 0.1},
                        {"use": "sparsify", "keep": 0.5},
                        {"use": "quantize", "bits": 4},
                        {"use": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.0},
                        {"use": "os:system"},
                    )
                )
            ]
        # Options and sizes are spoiled more often than the names that all else hangs on.
        keep = ("use", "architecture", "known", "schema", "rounds") if rng.random() < 0.6 else ()
        self.put("knowledge.json", as_json(rng, spoiled(rng, facts, keep=keep) if rng.random() < 0.9 else facts))


class Rounds(_Observed):
    name, about = "rounds", "tensors of a recorded folder: validate, exposure, an attack"

    def spoil(self, rng: Random) -> None:
        facts = json.loads(self.good["knowledge.json"])
        tensors = read_tensors(self.home / "rounds" / "000000.safetensors")
        known = [item for item in ("labels", "indices", "auxiliary") if rng.random() < 0.3]
        if "labels" in known:
            tensors["labels"] = torch.tensor([0, 2])
        if "indices" in known:
            tensors["indices"] = torch.tensor([4, 1])
        auxiliary = {"inputs": torch.rand(3, *SHAPE)}
        self.put("knowledge.json", json.dumps(facts | {"known": known}))
        if "auxiliary" in known:
            self.put("auxiliary.safetensors", safetensors(auxiliary))
        kind = rng.random()
        if kind < 0.25:
            self.put("model.safetensors", spoiled_file(rng, read_tensors(self.home / "model.safetensors")))
        elif kind < 0.4 and "auxiliary" in known:
            self.put("auxiliary.safetensors", spoiled_file(rng, auxiliary))
        if kind > 0.2:
            self.put("rounds/000000.safetensors", spoiled_file(rng, tensors))


class Captured(Reader):
    """Two checkpoints, or weights and a gradient. Mostly of the right names and shapes, so that they are looked at."""

    name, about = "captured", "captured checkpoints and gradients"
    known: ClassVar[dict[str, object]] = {"input_shape": SHAPE}

    def prepare(self) -> None:
        model = build(Architecture("fc2", {"hidden": HIDDEN}), SHAPE, CLASSES)
        update = record(model, small_batch())[0].update.tensors
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        after = {name: tensor - 0.1 * update.get(name, torch.zeros(())) for name, tensor in state.items()}
        for name, tensors in (("before", state), ("after", after), ("gradient", dict(update))):
            self.put(f"{name}.safetensors", safetensors(tensors))
        self.by_gradient, self.how = False, dict(self.known)

    def restore(self) -> None:
        super().restore()
        self.by_gradient, self.how = False, dict(self.known)

    def spoil(self, rng: Random) -> None:
        self.by_gradient = rng.random() < 0.4
        for name in rng.sample(["before", "gradient" if self.by_gradient else "after"], rng.choice((0, 1, 1, 2))):
            self.put(f"{name}.safetensors", spoiled_file(rng, read_tensors(self.home / f"{name}.safetensors")))
        if rng.random() < 0.5:
            self.how["input_shape"] = rng.choice((SHAPE, (9,), (3, 3), (1, 3, 3), (0,), (-1, 3), (2**40, 2), (1,) * 9))
        if rng.random() < 0.5:
            self.how["num_classes"] = rng.choice((CLASSES, 2, 0, -1, 10**9, 10**30))
        if rng.random() < 0.5:
            self.how["batch_size"] = rng.choice((2, 1, 0, -5, 10**6, 10**12, 10**30))
        if not self.by_gradient and rng.random() < 0.4:
            self.how["steps"] = rng.choice((1, 2, 7, 0, -1, 10**6, 10**30))

    def read(self) -> object:
        after, gradient = self.home / "after.safetensors", self.home / "gradient.safetensors"
        files = Files(
            before=self.home / "before.safetensors",
            lr=None if self.by_gradient else 0.1,
            after=None if self.by_gradient else after,
            gradient=gradient if self.by_gradient else None,
        )
        out = self.place / "observed"
        observe_files(
            files,
            out,
            architecture=Architecture("fc2", {"hidden": HIDDEN}),
            client=Spec("fedsgd"),
            **self.how,  # type: ignore[arg-type]
        )
        return exposure(open_transcript(out)).table()


# --- what a client states of its privacy ------------------------------------------------------------------------

ENTRY = {
    "schema": 1,
    "t": 3,
    "client": "a",
    "epsilon": 1.5,
    "delta": 1e-5,
    "accountant": "rdp",
    "noise": 1.1,
    "clip": 1.0,
    "sample_rate": 0.1,
    "steps": 12,
    "caveats": ["the sampling is not Poisson"],
    "stated_by": "Opacus",
    "unit": "example",
}


class Privacy(Reader):
    name, about = "privacy", "privacy.json of a recorded folder"

    def prepare(self) -> None:
        self.put("privacy.json", json.dumps(ENTRY))

    def spoil(self, rng: Random) -> None:
        self.put("privacy.json", as_json(rng, spoiled(rng, ENTRY)))

    def read(self) -> object:
        entry = open_entry(self.home)
        return None if entry is None else (entry.line, entry.table())


class Ledger(Reader):
    name, about = "ledger", "a client's ledger: seepage prove --of ledger"

    def prepare(self) -> None:
        self.put("ledger/client-a.jsonl", self._lines([ENTRY, ENTRY | {"t": 4}]))
        self.words: tuple[str, ...] = ()

    @staticmethod
    def _lines(rows: list[object]) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in rows)

    def spoil(self, rng: Random) -> None:
        rows = spoiled(rng, [ENTRY, ENTRY | {"t": 4}])
        content = self._lines(rows if isinstance(rows, list) else [rows]).encode()
        self.put("ledger/client-a.jsonl", damaged(rng, content) if rng.random() < 0.15 else content)
        if rng.random() < 0.3:
            self.put(f"ledger/client-{rng.choice(('b', 'x y', 'ä'))}.jsonl", content)
        self.words = rng.choice(
            (
                (),
                ("--json",),
                ("--fail-if", "spent>1"),
                ("--fail-if", "spent>1e400"),
                ("--json", "--fail-if", "spent>1"),
            )
        )

    def outcome(self) -> str:
        return ran("prove", "--of", f"ledger:{self.home}", *self.words)

    def read(self) -> object:
        return self.outcome()


class Recorded(Reader):
    """Recordings with and without a canary, and the list of them."""

    name, about = "canaries", "list of recordings with a canary: seepage prove --of recorded"

    def prepare(self) -> None:
        self.names = [f"{kind}{number}" for kind in ("with", "without") for number in range(9)]
        self.list = {"with": self.names[:9], "without": self.names[9:]}
        for name in self.names:
            write_observed(self.home / "rec" / name)
        self.put("list.json", json.dumps(self.list))
        self.file = "list.json"

    def restore(self) -> None:
        super().restore()
        self.file = "list.json"

    def spoil(self, rng: Random) -> None:
        listed: dict[str, object] = dict(self.list)
        if rng.random() < 0.3:
            listed["canary"] = rng.choice(("canary.safetensors", "rec/with1/model.safetensors", *WORDS))
            self.put("canary.safetensors", spoiled_file(rng, small_state()))
        found = spoiled(rng, listed)
        if rng.random() < 0.3 and isinstance(found, dict):
            import tomli_w

            self.file = "list.toml"
            try:
                text = tomli_w.dumps(found)
            except (TypeError, ValueError, UnicodeError, RecursionError):
                text = "with = ['a']\nwithout = 3"
            self.put("list.toml", damaged(rng, text.encode(errors="replace")) if rng.random() < 0.3 else text)
        else:
            self.put("list.json", as_json(rng, found))
        if rng.random() < 0.4:
            name = f"rec/{rng.choice(self.names)}/rounds/000000.safetensors"
            self.put(name, spoiled_file(rng, read_tensors(self.home / name)))

    def outcome(self) -> str:
        return ran("prove", "--of", f"recorded:{self.home / 'rec'}", "--canaries", str(self.home / self.file), "--json")

    def read(self) -> object:
        return self.outcome()
