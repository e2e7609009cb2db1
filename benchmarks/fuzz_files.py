"""Coverage-guided fuzzing of what reads files from others: whatever is in them, a result or one sentence comes out.

    python benchmarks/fuzz_files.py                       all readers, 60 seconds each
    python benchmarks/fuzz_files.py --seconds 600 facts   one of them

Needs `pip install atheris`. The readers, and what no answer may be, are those of `benchmarks/fuzz`; here it is atheris
that damages one file, or the JSON files of a run in one. A finding ends the reader's run and leaves the input that
caused it. Not part of the test suite, whose `tests/base/test_hostile_files.py` and `test_fuzz_observed.py` do the same
in seconds with hypothesis.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
with atheris.instrument_imports(include=["seepage"]):
    from of_runs import make_goods
    from readers import READERS
    from watch import Watcher

import torch

torch.set_num_threads(1)
warnings.simplefilter("ignore")
FUZZED = {
    "facts": "knowledge.json", "rounds": "000000.safetensors", "tensors": ".safetensors", "state": ".pt",
    "recipe": ".toml", "zip": ".zip", "run": ".json",
}  # fmt: skip
"""Each reader with how the names of its fuzzed files end."""
BETWEEN = b"\n--\n"
"""Between two files of an input."""


def fuzz(name: str, folder: Path, arguments: list[str]) -> None:
    """Fuzz one reader in this process; libFuzzer ends it."""
    place, corpus = folder / "work", folder / "corpus"
    for made in (place, corpus, folder / "shared"):
        made.mkdir()
    make_goods(folder / "shared")
    os.chdir(place)
    reader = READERS[name](place, folder / "shared")
    files = [path for path in reader.good if path.endswith(FUZZED[name])]
    (corpus / "good").write_bytes(BETWEEN.join(reader.good[path] for path in files))
    reader.restore()
    reader.outcome()  # libraries are imported, and compile what they compile, unwatched
    watcher = Watcher(place)

    def once(data: bytes) -> None:
        reader.restore()
        for path, content in zip(files, data.split(BETWEEN, len(files) - 1), strict=False):
            reader.put(path, content)
        with watcher.watching():
            reader.outcome()
        assert not watcher.words, "; ".join(watcher.words)

    limits = ["-rss_limit_mb=3000", "-timeout=30", "-verbosity=0", f"-artifact_prefix={folder}/finding-"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, *arguments], once)
    atheris.Fuzz()


def main() -> int:
    """Fuzz each reader in a process of its own; returns the number of findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help=", ".join(FUZZED))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here is not None:
        fuzz(asked.names[0], asked.here, [f"-max_total_time={asked.seconds}", "-print_final_stats=1"])
    findings = 0
    for name in asked.names or FUZZED:
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
