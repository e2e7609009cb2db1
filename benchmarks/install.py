"""What the README's first lines take in an empty folder: from nothing to the first verdict.

    python benchmarks/install.py pypi
    python benchmarks/install.py cpu [--first torch==2.13.0+cpu torchvision==0.28.0]

`pypi` is `pip install .` alone. `cpu` installs PyTorch's build for the CPU first and by itself, from PyTorch's own
index; where that cannot be reached, `--first` names builds that pip finds elsewhere. Then `seepage audit` runs to its
end. The numbers go to results/distribution/install.jsonl with their command. Megabytes are of 10**6 bytes, of all files
of the environment; seconds are of the clock and of the processor, downloads included.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kept import keep_measured

ROOT = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"


def size_mb(folder: Path) -> float:
    """All files below a folder, in megabytes; what links lead to is not counted again."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink()) / 1e6


def main() -> None:
    """Install, audit, and keep what both took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("line", choices=("pypi", "cpu"))
    parser.add_argument("--first", nargs="+", help="with cpu: builds of PyTorch in place of the newest of its index")
    asked = parser.parse_args()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as place:
        python = Path(place, ".venv", "Scripts" if os.name == "nt" else "bin", "python")

        def timed(*command: str | Path) -> tuple[float, float]:
            """Seconds of the clock and of the processor."""
            started, before = time.perf_counter(), os.times()
            subprocess.run(command, check=True, env=environment, cwd=place, stdout=subprocess.DEVNULL)
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            return time.perf_counter() - started, used

        steps = [timed(sys.executable, "-m", "venv", ".venv")]
        pip = (python, "-m", "pip", "install", "--quiet")
        if asked.line == "cpu":
            first = asked.first or ["torch", "torchvision", "--index-url", INDEX]
            steps.append(timed(*pip, *first))
        steps.append(timed(*pip, ROOT))
        size = size_mb(Path(place))
        audit = timed(python, "-m", "seepage", "audit", "--quiet")
        listed = subprocess.run(
            [python, "-m", "pip", "list", "--format=freeze"], check=True, cwd=place, capture_output=True, text=True
        ).stdout.split()
        keep_measured(
            "distribution/install",
            {"pypi": "PyPI alone", "cpu": "PyTorch's CPU build first"}[asked.line],
            "first_verdict_s",
            sum(wall for wall, _ in steps) + audit[0],
            install_s=sum(wall for wall, _ in steps),
            install_processor_s=sum(used for _, used in steps),
            audit_s=audit[0],
            audit_processor_s=audit[1],
            size_mb=size,
            packages=len(listed),
            torch_build=next(name for name in listed if name.startswith("torch==")),
        )


if __name__ == "__main__":
    main()
