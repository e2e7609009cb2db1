"""Turn run folders into rows for results/: python experiments/runs.py RUN [RUN ...] > rows.jsonl

One JSON line per cell and attack: the case, what was attacked and how, the scores with the guesses that need no attack
beside them, and the command that made the run. Folders are cut from paths in the command, and so are options that
change no number (`--out`, `--jobs`, `--quiet`).
"""

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

CELL = (
    "model", "model_options", "parameters", "history", "accuracy", "client", "defense", "data", "batch_size", "batches",
    "federation",
)  # fmt: skip
ROW = (
    "attack", "status", "outcome", "reason", "examples", "recovered", "exact", "psnr", "psnr_median", "psnr_low",
    "psnr_high", "ssim", "correlation", "gain_db", "mean_color_psnr", "mean_color_ssim", "grey_psnr", "label_accuracy",
    "steps", "evaluations", "objective", "objective_at_truth", "cpu_seconds", "options", "notes",
)  # fmt: skip
SILENT = {"--out": 2, "--jobs": 2, "--quiet": 1, "--json": 1}
"""Options of the command that change no number, each with how many words it takes."""


def repeatable(command: str) -> str:
    """The command without options that change no number, and without folders of the machine it ran on.

    >>> repeatable("seepage audit federation/skew --data /a/b.npz --jobs 1 --out /c")
    'seepage audit federation/skew --data b.npz'
    """
    words, kept = shlex.split(command), []
    while words:
        if words[0] in SILENT:
            del words[: SILENT[words[0]]]
        else:
            word = words.pop(0)
            kept.append(Path(word).name if word.startswith("/") else word)
    return shlex.join(kept)


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of one finished run."""
    result, env = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("result", "env"))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    cells = {cell["name"]: cell for cell in result["cells"]}
    found = []
    for row in result["rows"]:
        cell = cells[row["cell"]]
        facts = {"recipe": recipe["name"], "seed": recipe["seed"], "cell": row["cell"]}
        made = {key: env[key] for key in ("torch", "threads")} | {"command": repeatable(env["command"])}
        found.append({**facts, **{key: cell.get(key) for key in CELL}, **{key: row.get(key) for key in ROW}, **made})
    return found


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        for line in rows(Path(argument)):
            print(json.dumps(line))
