"""What an installation takes: its size on the disk, and the time of pip, in a fresh environment.

    python benchmarks/install.py [--torch 2.13.0+cpu --torchvision 0.28.0] [PIP OPTIONS ...]

It installs this checkout as the README's first line does. Where PyTorch's own index cannot be reached, `--torch` names
a build that pip finds elsewhere. Each number goes to results/distribution/install.jsonl with its command. Megabytes are
of 10**6 bytes, and of all files of the environment; times are of the clock and of the processor, downloads included.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from seepage.papers.records import keep_measured

ROOT = Path(__file__).parents[1]
INDEX = "https://download.pytorch.org/whl/cpu"


def size_mb(folder: Path) -> float:
    """All files below a folder, in megabytes; what links lead to is not counted again."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink()) / 1e6


def main() -> None:
    """Install, and keep what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="version; default: the newest of PyTorch's CPU index")
    parser.add_argument("--torchvision", help="version that goes with it")
    asked, options = parser.parse_known_args()
    named = [f"{name}=={version}" for name in ("torch", "torchvision") if (version := getattr(asked, name))]
    where = [] if named else ["--extra-index-url", INDEX]
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        python = Path(place) / ("Scripts" if os.name == "nt" else "bin") / "python"
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile", *where, *options, *named, ROOT]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        started, before = time.perf_counter(), os.times()
        subprocess.run(pip, check=True, env=environment, cwd=place)
        wall, after = time.perf_counter() - started, os.times()
        said = subprocess.run(
            [python, "-m", "seepage", "--version"],
            check=True,
            env=environment,
            cwd=place,
            capture_output=True,
            text=True,
        )
        facts = {
            "wall_s": wall,
            "processor_s": after.children_user + after.children_system - before.children_user - before.children_system,
            "torch_build": " ".join(named) or INDEX,
            "installed": said.stdout.strip(),
        }
        keep_measured("distribution/install", "CPU alone", "size_mb", size_mb(Path(place)), **facts)


if __name__ == "__main__":
    main()
