"""Turn finished audits into records: python experiments/runs.py STUDY RUN [RUN ...]

One record per case and attack goes to results/STUDY.jsonl: the case, what was attacked and how, the scores with the
guesses that need no attack beside them, and the command that made the run; for a study of membership it is one per case
and membership test, of a frontier one per defense and kind of attacker. Folders are cut from paths in the command, and
so are options that change no number (`--out`, `--jobs`, `--quiet`).
"""

import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

from keeping import keep_measured

from seepage.audit.recipe.places import kind_of
from seepage.audit.row import Row

CASE = (
    "model", "model_options", "parameters", "history", "accuracy", "client", "defense", "batch_size", "batches",
    "federation",
)  # fmt: skip
ROW = (
    "attack", "status", "outcome", "reason", "examples", "recovered", "exact", "psnr_median",
    "ssim", "correlation", "gain_db", "mean_color_psnr", "mean_color_ssim", "grey_psnr", "label_accuracy",
    "steps", "evaluations", "objective", "objective_at_truth", "cpu_seconds", "options", "notes",
)  # fmt: skip
SILENT = {"--out": 2, "--jobs": 2, "--quiet": 1, "--json": 1, "--no-pictures": 1}
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


def data_of(said: str, use: str) -> str:
    """The set's name: a result calls a file by its kind alone.

    >>> data_of("npz", "../shared/data/cifar10.npz"), data_of("photos", "digits")
    ('cifar10', 'photos')
    """
    return Path(use).stem if said == kind_of(use) else said


def keep_run(study: str, folder: Path) -> None:
    """Add all rows of one finished run to a study's records."""
    result, env = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("result", "env"))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    cases = {case["name"]: case for case in result["cases"]}

    def kept(row: dict[str, Any], what: str, metric: str, *facts: dict[str, Any]) -> None:
        case, low = cases[row["case"]], row.get(f"{metric}_low")
        keep_measured(
            study,
            f"{row[what]}, {row['case']}",
            metric,
            row.get(metric),
            seed=recipe["seed"],
            interval=None if low is None else (low, row[f"{metric}_high"]),
            data=data_of(case["data"], recipe["data"]["use"]),
            command=repeatable(env["command"]),
            recipe=recipe["name"],
            case=row["case"],
            **{key: case.get(key) for key in CASE},
            **{key: fact for part in facts for key, fact in part.items()},
        )

    members = study.startswith("membership/")
    for test in result["membership"] if members else ():
        found = {key: test[f"{who}_identified"] for key, who in (("named", "members"), ("false", "others"))}
        shares = {key: one and one["hits"] / one["of"] for key, one in found.items()}
        facts = ("test", "members", "others", "reason", "cpu_seconds")
        kept(test, "test", "auc", shares, {key: test[key] for key in facts})
    for written in () if members else result["rows"]:
        known = Row.model_validate(written)
        row = {**written, **known.numbers(), "outcome": known.phrase}
        asked = (*ROW, *recipe.get("score", {}).get("metrics", ()))
        sure = written.get("certified")
        proofs = {} if sure is None else {"certified": sure["n"], "falsely": sure["wrong"]}
        kept(row, "attack", "psnr", {key: row.get(key) for key in asked}, proofs)


def keep_frontier(study: str, folder: Path) -> None:
    """Add all rows of one finished frontier to a study's records."""
    env = json.loads((folder / "env.json").read_text("utf-8"))
    recipe = tomllib.loads((folder / "recipe.toml").read_text("utf-8"))
    for line in (folder / "frontier.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        keep_measured(
            study,
            f"{row['defense']}, attacker {row['attacker']}",
            "recovered",
            row.pop("recovered"),
            seed=recipe["seed"],
            data=recipe["data"]["use"],
            command=repeatable(env["command"]),
            **{key: fact for key, fact in row.items() if key not in ("schema", "seconds")},
        )


if __name__ == "__main__":
    for folder in map(Path, sys.argv[2:]):
        keep = keep_frontier if (folder / "frontier.jsonl").exists() else keep_run
        keep(sys.argv[1], folder)
