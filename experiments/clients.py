"""Whole runs of `seepage attack` on the upstream clients of tests/clients: python experiments/clients.py [NAME ...]

Each client's two files are written anew and given to the command as a user would give them, with its default attacks
and minutes and on one thread for each process. One row per client goes to results/captured/clients.jsonl: the verdict,
seconds by the clock and of processors, and the memory of the largest process. Whether what is said is true is judged
by tests/clients.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
from common import command, keep

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from tests.clients.made import Client  # noqa: E402
from tests.clients.upstream import CLIENTS  # noqa: E402

from seepage.audit.row import Row  # noqa: E402

LIMIT = 900
"""Seconds after which a run is stopped: half as much again as it is given."""
TIMED_OUT = 124
"""Exit code of `timeout`."""


def options(client: Client) -> list[str]:
    """What a user types beside the two files.

    >>> options(next(one for one in CLIENTS if one.name == "flower-quickstart-4"))
    ['--model=upstream_networks:lenet', '--shape=3,32,32', '--classes=10', '--lr=0.1', '--steps=1']
    """
    known = dict(client.known)
    rule = known.pop("client", None)
    words = [f"--model=upstream_networks:{client.network}", f"--shape={','.join(map(str, client.shape))}"]
    words += [] if client.classes is None else [f"--classes={client.classes}"]
    words += [] if rule is None else [f"--loss={rule.options['loss']}"]
    return words + [f"--{name.replace('_', '-')}={value}" for name, value in known.items()]


def measure(client: Client, source: Path) -> None:
    """Run one client by the package in a source folder, and keep its row."""
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        before, after, _, _ = client.make()
        torch.save(before, home / "before.pt")
        torch.save(after, home / "after.pt")
        words = ["timeout", str(LIMIT), sys.executable, "-m", "seepage", "attack", "before.pt", "after.pt"]
        words += [*options(client), "--out=run", "--quiet", "--no-pictures"]
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{source}:{ROOT / 'tests' / 'helpers'}"}
        clock = time.perf_counter()
        with (home / "said").open("w") as said:
            process = subprocess.Popen(words, cwd=home, env=env, stdout=said, stderr=said)
            _, code, spent = os.wait4(process.pid, 0)
            process.returncode = code  # so that nobody waits for it again
        seconds, code = time.perf_counter() - clock, os.waitstatus_to_exitcode(code)
        last = (home / "said").read_text("utf-8").strip().splitlines()[-1:]
        facts: dict[str, Any] = {"exit": code, "stopped": code == TIMED_OUT, "error": last[0] if code == 2 else None}
        if (home / "run" / "result.json").exists():
            facts |= outcome(json.loads((home / "run" / "result.json").read_text("utf-8")))
    facts |= {"cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1), "peak_mib": spent.ru_maxrss // 1024}
    facts |= {"revision": revision(source), "options": options(client), "shown": last[0] if last else None}
    facts |= {"seconds": round(seconds, 1), "command": f"python experiments/clients.py {client.name}"}
    keep("captured/clients", client.name, "seconds", facts)


def revision(source: Path) -> str:
    """The commit that a source folder is of."""
    asked = ["git", "-C", str(source), "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def outcome(result: dict[str, Any]) -> dict[str, Any]:
    """What the run said."""
    rows = [Row.model_validate(row) for row in result["rows"]]
    return {
        "verdict": result["verdict"],
        "level": result["verdict_level"],
        "certified": sum(row.certified.n for row in rows if row.certified),
        "tokens": next((row.returned for row in rows if row.attack == "token_set"), None),
        "outcomes": {row.attack: row.phrase for row in rows},
    }


def main(
    names: tuple[str, ...] = (),
    *,
    source: Annotated[Path, "folder of another version of the package"] = ROOT / "src",
) -> None:
    for client in CLIENTS:
        if not names or client.name in names:
            measure(client, source.resolve())


if __name__ == "__main__":
    command(main)
