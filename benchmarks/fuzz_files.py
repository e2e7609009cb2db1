"""Fuzzing of what reads files from others by coverage: atheris chooses the inputs of `tests/hostile`.

    python benchmarks/fuzz_files.py tests/hostile/test_data.py::test_zip [--seconds 600]

Needs `pip install atheris`. What libFuzzer mutates are the choices that hypothesis makes an input of, and it keeps
those that reach new lines of seepage. A finding ends the process with the input; its files lie in the test's folder.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "helpers")]
with atheris.instrument_imports(include=["seepage"]):
    for name in ("seepage.cli.commands", "seepage.federation.data", "seepage.papers.book", "seepage.report"):
        importlib.import_module(name)
watcher = importlib.import_module("watcher")


def main() -> int:
    """Fuzz one test in this process, which libFuzzer ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", help="one that takes a sandbox, such as tests/hostile/test_data.py::test_zip")
    parser.add_argument("--seconds", type=int, default=60)
    asked = parser.parse_args()

    def by_coverage(test: Any) -> None:
        limits = [
            "-rss_limit_mb=4000",
            "-timeout=30",
            "-verbosity=1",
            "-len_control=0",
            "-max_len=8000",
            f"-max_total_time={asked.seconds}",
        ]
        choose: Callable[[bytes], bytes | None] = test.hypothesis.fuzz_one_input
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1"], choose)
        atheris.Fuzz()

    watcher.run = by_coverage
    plain = ("-o", "addopts=", "-o", "filterwarnings=", "--import-mode=importlib", "-p", "no:cacheprovider")
    return pytest.main([*plain, "-s", asked.test])


if __name__ == "__main__":
    sys.exit(main())
