"""Coverage-guided fuzzing of what reads files from others: whatever is in them, a result or one sentence comes out.

    python benchmarks/fuzz_files.py                       all readers, 60 seconds each
    python benchmarks/fuzz_files.py --seconds 600 facts   one of them

Needs `pip install atheris`. A finding ends the reader's run and leaves the file that caused it. Not part of the test
suite, whose `tests/unit/test_hostile_files.py` and `test_fuzz_observed.py` do the same in seconds with hypothesis.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["seepage"]):
    import seepage.report.page
    import seepage.transcript.recorded
    from seepage.core.storage import read_tensors
    from seepage.data import load
    from seepage.errors import SeepageError
    from seepage.models.weights import read_state
    from seepage.recipe.files import read_recipe
    from seepage.recipe.resolve import cells
    from seepage.report import write_report
    from seepage.transcript.foreign import read_facts
    from seepage.transcript.recorded import open_transcript, save_transcript

import torch
from PIL import Image

from seepage import Architecture, Batch, build, record

torch.set_num_threads(1)
warnings.simplefilter("ignore")
LONGEST = 2000
"""Letters of a sentence."""
RUN = {
    "result.json": {
        "schema": 1, "verdict": "x", "verdict_level": "exact", "thresholds": {},
        "rows": [{"cell": "a", "attack": "dlg", "outcome": "exact", "scores": {"psnr": {"mean": 3.5}},
                  "told": ["model"], "notes": ["n"]}],
        "cells": [{"name": "a", "title": "A", "baselines": {"grey": {"psnr": 1}}, "promise": {"epsilon": 1}}],
    },
    "flags.json": {"schema": 1, "flags": [{"name": "n", "severity": "note", "message": "m", "cell": "a"}]},
    "env.json": {"schema": 1, "seconds": 1.5},
    "exposure.json": {"schema": 1, "cells": [{"cell": "a", "examples": 1, "tensors": [{"name": "w"}]}]},
}  # fmt: skip


def _observed(folder: Path) -> None:
    architecture = Architecture("fc2", {"hidden": 4})
    model = build(architecture, (1, 3, 3), 3)
    batch = Batch(torch.rand(2, 1, 3, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2]))
    save_transcript(record(model, batch, architecture=architecture), folder)


def _image() -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (4, 4), (9, 0, 0)).save(buffer, format="PNG")
    return buffer.getvalue()


def _archive(compression: int) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("labels.csv", "file,label\na.png,0\nb.png,1\n")
        for name in "ab":
            archive.writestr(f"images/{name}.png", _image())
    return buffer.getvalue()


def _state() -> bytes:
    buffer = BytesIO()
    torch.save({"w": torch.ones(2, 3), "b": torch.zeros(2)}, buffer)
    return buffer.getvalue()


class Targets:
    """What is fuzzed: each reader, in a folder of its own, with a file that it likes to begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def facts(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        _observed(self.folder)
        path = self.folder / "knowledge.json"
        return path, [path.read_bytes()], lambda: (read_facts(self.folder), open_transcript(self.folder)[0])

    def rounds(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        _observed(self.folder)
        path = self.folder / "rounds" / "000000.safetensors"
        return path, [path.read_bytes()], lambda: open_transcript(self.folder)[0]

    def tensors(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        _observed(self.folder / "seed")
        path = self.folder / "x.safetensors"
        return path, [(self.folder / "seed" / "model.safetensors").read_bytes()], lambda: read_tensors(path)

    def state(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        path = self.folder / "x.pt"
        return path, [_state()], lambda: read_state(path)

    def recipe(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        path = self.folder / "x.toml"
        names = ("default", "cafe/exact", "federation/stages")
        seeds = [(Path(seepage.__file__).parent / "recipes" / f"{name}.toml").read_bytes() for name in names]
        return path, [seed for seed in seeds if b":" not in seed] or seeds, lambda: cells(read_recipe(path))

    def archive(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        path = self.folder / "x.zip"
        seeds = [_archive(zipfile.ZIP_STORED), _archive(zipfile.ZIP_DEFLATED)]
        return path, seeds, lambda: load(str(path)).batch(torch.arange(2))

    def run(self) -> tuple[Path, list[bytes], Callable[[], object]]:
        """The four JSON files of a run in one, split again for the reader."""
        path = self.folder / "all.json"
        for name, content in RUN.items():
            (self.folder / name).write_text(json.dumps(content))

        def read() -> None:
            parts = path.read_bytes().split(b"\n--\n")
            for name, part in zip(RUN, parts, strict=False):
                (self.folder / name).write_bytes(part)
            page = write_report(self.folder).read_text(encoding="utf-8")
            assert "<script" not in page

        return path, [b"\n--\n".join(json.dumps(content).encode() for content in RUN.values())], read


NAMES = ("facts", "rounds", "tensors", "state", "recipe", "archive", "run")
OWN = {"report.html", "grid.png"}


def fuzz(name: str, folder: Path, arguments: list[str]) -> None:
    """Fuzz one reader in this process; libFuzzer ends it."""
    place = folder / "work"
    place.mkdir()
    path, seeds, read = getattr(Targets(place), name)()
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    path.touch()
    before = {*place.rglob("*")}

    def once(data: bytes) -> None:
        path.write_bytes(data)
        message = ""
        try:
            read()
        except SeepageError as error:
            message = str(error)
        assert len(message) < LONGEST, f"a message of {len(message)} letters"
        made = {found.name for found in {*place.rglob("*")} - before}
        assert made <= OWN, f"wrote {made}"

    os.chdir(place)
    limits = ["-rss_limit_mb=3000", "-timeout=30", "-verbosity=0", f"-artifact_prefix={folder}/finding-"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, *arguments], once)
    atheris.Fuzz()


def main() -> int:
    """Fuzz each reader in a process of its own; returns the number of findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here is not None:
        fuzz(asked.names[0], asked.here, [f"-max_total_time={asked.seconds}", "-print_final_stats=1"])
    findings = 0
    for name in asked.names or NAMES:
        folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
        command = [sys.executable, __file__, name, "--seconds", str(asked.seconds), "--here", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        stats = dict(
            line.removeprefix("stat::").split(":") for line in done.stderr.splitlines() if line.startswith("stat::")
        )
        runs = stats.get("number_of_executed_units", "?").strip()
        print(f"{name}: {runs} files, exit code {done.returncode}", flush=True)
        if done.returncode:
            findings += 1
            print(f"{done.stderr[-3000:]}\nkept in {folder}", flush=True)
    return findings


if __name__ == "__main__":
    sys.exit(main())
