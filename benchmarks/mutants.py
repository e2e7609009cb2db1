"""Do the tests notice? Defects of `mutants.toml` are put into a copy of the package, one at a time, and tests are run.

    python benchmarks/mutants.py --unchanged                            the named tests without a defect: they must pass
    python benchmarks/mutants.py --out benchmarks/mutants.jsonl         the fast tier of each defect's named tests
    python benchmarks/mutants.py --tier "" --whole                      every test, where the named ones pass
    python benchmarks/mutants.py --only ascent seed-round               two of them

The copy is a folder with the repository's `src`, and links to all else, so that tests which look for `src` beside them
find the copy, as do doctests and processes that a test starts (`PYTHONPATH`). What is in the file of `--out` already is
not run again: an interrupted call goes on, and each state of the tests has a file of its own.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_suffix(".toml")
FAST = "not slow and not docs"
PATIENCE = 3600.0
"""Seconds after which tests that do not end count as failed: a defect may be an endless loop."""
FAILED, BROKEN, NOTHING_RAN = 1, 2, 5
"""Exit codes of pytest: a test failed, a file could not be imported, no test is of the tier."""


@dataclass(frozen=True)
class Mutant:
    """A defect.

    Attributes:
        id: A short name.
        kind: What sort of mistake it is.
        file: Where, below `src/seepage`.
        old: The text that stands there once.
        new: What the defect makes of it.
        why: What goes wrong for a user.
        tests: Files or folders of tests that should notice first.
    """

    id: str
    kind: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


def mutants(only: Sequence[str] = ()) -> list[Mutant]:
    """All defects of the file, or those of these names."""
    listed = tomllib.loads(FILE.read_text(encoding="utf-8"))["mutant"]
    found = [Mutant(**{**table, "tests": tuple(table["tests"])}) for table in listed]
    unknown = set(only) - {one.id for one in found}
    if unknown:
        raise SystemExit(f"no mutant is called {', '.join(sorted(unknown))}; see {FILE.name}")
    return [one for one in found if not only or one.id in only]


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """A folder like the repository's, whose `src` is a copy with the defect, or without any."""
    with tempfile.TemporaryDirectory(prefix="seepage-mutant-") as made:
        place = Path(made).resolve()
        for path in ROOT.iterdir():
            if path.name not in ("src", ".git"):
                (place / path.name).symlink_to(path)
        shutil.copytree(ROOT / "src", place / "src")
        if mutant is not None:
            file = place / "src" / "seepage" / mutant.file
            text = file.read_text(encoding="utf-8")
            if text.count(mutant.old) != 1:
                raise SystemExit(f"{mutant.id}: its text stands {text.count(mutant.old)} times in {mutant.file}")
            file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        yield place


def first_failure(place: Path, tests: Sequence[str], tier: str) -> str | None:
    """Run tests in such a folder until one fails; returns that one, None where all pass."""
    paths = os.pathsep.join(filter(None, [str(place / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    where = "import seepage, sys; sys.exit(not seepage.__file__.startswith(sys.argv[1]))"
    if subprocess.run([sys.executable, "-c", where, str(place)], cwd=place, env=environment).returncode:
        return "import seepage"  # broken altogether, or another folder's
    options = ["-x", "-q", "-p", "no:cacheprovider", "--doctest-modules"]
    command = [sys.executable, "-m", "pytest", *options, "-m", tier, *tests]
    try:
        ran = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return f"no end after {PATIENCE:.0f} s"
    if ran.returncode in (FAILED, BROKEN):
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ran.stdout, re.MULTILINE)
        return found[1] if found else ran.stdout.strip().splitlines()[-1]
    if ran.returncode not in (0, NOTHING_RAN):
        raise SystemExit(f"pytest ended with {ran.returncode}: {(ran.stderr or ran.stdout)[-2000:]}")
    return None


def tried(mutant: Mutant, tier: str, *, whole: bool) -> tuple[str | None, float]:
    """The first test that notices a defect, None where none does, and the seconds it took."""
    begun = time.monotonic()
    with copied(mutant) as place:
        by = first_failure(place, mutant.tests, tier)
        if by is None and whole:
            by = first_failure(place, (), tier)
    return by, time.monotonic() - begun


def main() -> int:
    """Returns 1 where a defect was not noticed, or a test fails without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="ID")
    parser.add_argument("--tier", default=FAST, help="as for pytest's -m; '' is all")
    parser.add_argument("--whole", action="store_true", help="run every test where the named ones pass")
    parser.add_argument("--unchanged", action="store_true", help="run the named tests without a defect")
    parser.add_argument("--out", type=Path, help="append the results to this file, as JSON lines")
    asked = parser.parse_args()
    chosen = mutants(asked.only)
    if asked.unchanged:
        with copied(None) as place:
            wrong = first_failure(place, list(dict.fromkeys(test for one in chosen for test in one.tests)), asked.tier)
        print(f"without a defect: {wrong or 'all pass'}")
        return int(wrong is not None)
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    lines = asked.out.read_text().splitlines() if asked.out is not None and asked.out.exists() else []
    known = {row["mutant"]: row for row in map(json.loads, lines) if row["tier"] == asked.tier}
    for one in chosen:
        if one.id not in known:
            by, seconds = tried(one, asked.tier, whole=asked.whole)
            row = {"commit": commit, "tier": asked.tier, "mutant": one.id, "killed": by is not None, "by": by}
            known[one.id] = row | {"seconds": round(seconds, 1)}
            if asked.out is not None:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known[one.id]) + "\n")
        by = known[one.id]["by"]
        print(f"{one.id}: {'SURVIVED' if by is None else f'killed by {by}'}", flush=True)
    left = [one.id for one in chosen if not known[one.id]["killed"]]
    print(f"{len(chosen) - len(left)} of {len(chosen)} noticed, {len(left)} not: {', '.join(left) or '-'}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
