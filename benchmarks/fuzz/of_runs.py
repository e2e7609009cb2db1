"""Readers of run folders: results, outcomes, truths, judgments, and the records of the results book."""

import functools
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from base import Reader
from mutations import HOSTILE, as_json, damaged, odd, spoiled, spoiled_file
from of_observed import write_observed
from watch import answered, check_markdown, check_page, ran

from seepage.audit.candidates import open_candidates, open_members, open_unseen
from seepage.base.manifest import write_manifest
from seepage.base.storage import read_tensors
from seepage.cli.options import SimulationOptions, tables_of
from seepage.federation.transcript.truth import save_truth
from seepage.papers import book
from seepage.papers.items import list_items

GOODS = ("run", "attacked")

AUDIT = (
    "data.size=6",
    "model.use=fc2",
    "model.hidden=4",
    "batch.size=12",
    "batch.count=1",
    "training.steps=0",
    "attack.steps=2",
)


def make_goods(shared: Path) -> None:
    """Once for all readers: a finished audit, and a run that was attacked without its truth."""
    from of_observed import small_batch

    from seepage.audit.recorded import AttackRequest, attack_only
    from seepage.audit.run import run
    from seepage.papers.judging import write_judge_page
    from seepage.report import write_grid, write_report

    os.chdir(shared)
    tables = tables_of(None, SimulationOptions(data="digits", settings=list(AUDIT)), attacks=["linear", "dlg"])
    finished = run(
        tables | {"membership": {"tests": ["gradient_cosine"], "level": 0.05}, "bounds": {"where": "all"}},
        out=shared / "run",
        jobs=1,
    )
    write_grid(finished.folder)
    write_report(finished.folder)
    page = write_judge_page(shared / "run", shared / "judge.html", pairs=20)
    key = json.loads(page.key.read_text())
    right = {"same": "same", "other": "not", "flat": "not", "guess": "same"}
    answers = {name: right[pair["kind"]] for name, pair in key["pairs"].items()}
    (shared / "answers.json").write_text(json.dumps({"schema": 1, "judge": "ab", "page": page.id, "answers": answers}))
    write_observed(shared / "attacked" / "observed")
    save_truth([small_batch()], shared / "attacked" / "private")
    attacked = shared / "attacked"
    attack_only(attacked / "observed", AttackRequest(attacks=[{"use": "linear"}], out=attacked / "run", jobs=1))
    write_grid(attacked / "run")
    write_report(attacked / "run")


class _OfRun(Reader):
    source = "run"

    def prepare(self) -> None:
        shutil.copytree(self.shared / self.source, self.home)

    def vouch(self) -> None:
        """Write a manifest that fits, as a stranger can."""
        for path in self.home.rglob("manifest.json"):
            write_manifest(path.parent)

    def pages(self) -> None:
        """What the commands wrote: no stranger's words may act in it."""
        for path in self.home.rglob("report.html"):
            check_page(path.read_text(encoding="utf-8"))

    def spoil_json(self, rng: Random, name: str) -> None:
        self.put(name, as_json(rng, spoiled(rng, json.loads(self.good[name]))))


FILES = ("result.json", "result.json", "flags.json", "env.json", "exposure.json")


class Run(_OfRun):
    """Mostly one file; then all words of a file at once; then the lines of scores."""

    name, about = "run", "run folder: report, grid, score, --fail-if, --json, judge"

    def spoil(self, rng: Random) -> None:
        kind = rng.random()
        if kind < 0.55:
            self.spoil_json(rng, rng.choice(FILES))
        elif kind < 0.7:
            name = rng.choice(FILES)
            self.put(name, json.dumps(worded(rng, json.loads(self.good[name]))))
        elif kind < 0.8:
            lines = spoiled(rng, [json.loads(line) for line in self.good["scores.jsonl"].splitlines()[:20]])
            text = "".join(f"{json.dumps(line)}\n" for line in (lines if isinstance(lines, list) else [lines]))
            self.put("scores.jsonl", damaged(rng, text.encode()) if rng.random() < 0.3 else text)
        elif kind < 0.9:
            name = rng.choice(
                [name for name in self.good if name.startswith("reconstructions") and name.endswith(".safetensors")]
            )
            self.put(name, spoiled_file(rng, read_tensors(self.home / name)))
        elif kind < 0.95:
            self.put(
                rng.choice(("judgements.json", "pictures.json")),
                as_json(rng, {"schema": 1, "rows": [odd(rng)], "judges": [], "pictures": odd(rng)}),
            )
        else:
            self.damage(rng, rng.choice(("recipe.toml", "result.json", "flags.json", "progress.jsonl")))
        self.command = rng.choice(
            (
                ("report",),
                ("report",),
                ("report", "--no-pictures"),
                ("report", "--json"),
                ("report", "--quiet"),
                ("evidence", "judge"),
                ("report", "--fail-if", "psnr>20"),
                ("report", "--fail-if", "members_identified>0.1"),
                ("report", "--fail-if", "auc>0.9"),
                ("report", "--sheet"),
                ("report", "--fail-if", "bound_psnr>1"),
                ("report", "--fail-if", "psnr_low>1e9"),
                ("report", "--fail-if", "certified>1"),
            )
        )

    def restore(self) -> None:
        super().restore()
        self.command: tuple[str, ...] = ("report",)

    def outcome(self) -> str:
        self.vouch()
        word, *more = self.command
        more += ["--reuse"] * ("--fail-if" in more)
        if word == "judge":
            more = ["--out", str(self.place / "judge.html"), "--pairs", "20"]
        elif more == ["--sheet"]:
            more = ["--sheet", str(self.place / "sheet.png")]
        found = ran(word, str(self.home), *more)
        self.pages()
        return found

    def read(self) -> object:
        return self.outcome()


def worded(rng: Random, value: Any) -> Any:
    """JSON with a stranger's words in every text, and in some numbers' places."""
    if isinstance(value, dict):
        keep = ("schema", "status", "space", "name", "case", "attack", "severity", "outcome", "kind")
        return {key: item if key in keep and rng.random() < 0.9 else worded(rng, item) for key, item in value.items()}
    if isinstance(value, list):
        return [worded(rng, item) for item in value]
    return f"{value[:20]}{rng.choice(HOSTILE)}" if isinstance(value, str) else value


class Private(_OfRun):
    """The truth beside a run that was attacked without it, and the files of membership and bounds."""

    name, about = "private", "private/: score --truth, members, unseen examples"
    source = "attacked"

    def prepare(self) -> None:
        super().prepare()
        places = {
            path.name: path
            for part in ("observed", "private")
            for path in (self.shared / "run" / part).rglob("*.safetensors")
        }
        for part in ("observed", "private"):
            found = next((self.shared / "run" / part).rglob("membership.safetensors"))
            self.put(f"more/{part}/membership.safetensors", found.read_bytes())
        if "unseen.safetensors" in places:
            self.put("more/private/unseen.safetensors", places["unseen.safetensors"].read_bytes())
        retarget(self, "run/attack.json")

    def spoil(self, rng: Random) -> None:
        more = [name for name in self.good if name.startswith("more/")]
        name = "private/truth.safetensors" if rng.random() < 0.7 else rng.choice(more)
        self.put(name, spoiled_file(rng, read_tensors(self.home / name)))

    def outcome(self) -> str:
        self.vouch()
        found = answered(self._members)
        return (
            ran("report", str(self.home / "run"), "--truth", str(self.home / "private"), "--quiet")
            if found == "accepted"
            else found
        )

    def _members(self) -> None:
        open_candidates(self.home / "more" / "observed")
        open_members(self.home / "more" / "private")
        open_unseen(self.home / "more" / "private")

    def read(self) -> object:
        return self.outcome()


def retarget(reader: Reader, name: str) -> None:
    """Let `attack.json` name the reader's own copy of what was attacked."""
    facts = json.loads((reader.home / name).read_text())
    reader.put(name, json.dumps(facts | {"observed": str(reader.home / "observed")}))


class Scored(_OfRun):
    name, about = "scored", "outcomes of attacks and attack.json: score --truth"
    source = "attacked"

    def prepare(self) -> None:
        super().prepare()
        retarget(self, "run/attack.json")

    def spoil(self, rng: Random) -> None:
        outcome = next(name for name in self.good if name.startswith("run/attacks/") and name.endswith(".json"))
        tensors = outcome.replace(".json", ".safetensors")
        kind = rng.random()
        if kind < 0.35:
            self.spoil_json(rng, outcome)
        elif kind < 0.65:
            found = read_tensors(self.home / tensors)
            count = len(found["inputs"])
            more = {
                "labels": torch.zeros(count, dtype=torch.int64),
                "objective": torch.zeros(count),
                "indices": torch.arange(count),
                "certified": torch.ones(count, dtype=torch.bool),
                "inner/x": torch.zeros(count, 2),
            }
            chosen = {key: value for key, value in more.items() if rng.random() < 0.4}
            self.put(tensors, spoiled_file(rng, found | chosen))
        else:
            facts = json.loads(self.good["run/attack.json"])
            found = spoiled(rng, facts, keep=("content", "observed") if rng.random() < 0.8 else ())
            self.put("run/attack.json", as_json(rng, found))

    def outcome(self) -> str:
        self.vouch()
        found = ran("report", str(self.home / "run"), "--truth", str(self.home / "private"))
        self.pages()
        return found

    def read(self) -> object:
        return self.outcome()


class Judgements(_OfRun):
    name, about = "judge", "what a judge saved, and its key: evidence count"

    def prepare(self) -> None:
        super().prepare()
        self.put("answers.json", (self.shared / "answers.json").read_bytes())

    def spoil(self, rng: Random) -> None:
        key = next(name for name in self.good if name.startswith("private/judge-"))
        self.spoil_json(rng, rng.choice(("answers.json", "answers.json", key)))
        if rng.random() < 0.2:
            self.put("answers.json", json.dumps(worded(rng, json.loads(self.good["answers.json"]))))
        self.twice = rng.random() < 0.2

    def restore(self) -> None:
        super().restore()
        self.twice = False

    def outcome(self) -> str:
        self.vouch()
        answers = [str(self.home / "answers.json")] * (1 + self.twice)
        found = ran("evidence", "count", str(self.home), *answers)
        self.pages()
        return found

    def read(self) -> object:
        return self.outcome()


ITEMS = ("cafe/table-2", "cpa/figure-7", "fedleak/table-3")


class Records(Reader):
    """Lines of three items, whose pages are written as those of all items are."""

    name, about = "records", "records of reproductions: the results book"

    def prepare(self) -> None:
        found = {name: item for name, item in list_items().items() if name in ITEMS}
        book.list_items = functools.cache(lambda: found)
        for name in ITEMS:
            rows = []
            for item_line in found[name].lines[:3]:
                for column in range(min(2, len(found[name].expect.columns))):
                    facts = {
                        "psnr": 20.5,
                        "psnr_low": 19.0,
                        "psnr_high": 22.0,
                        "recovered": 0.5,
                        "examples": 4,
                        "mean_color_psnr": 15.0,
                        "ssim": 0.4,
                        "reason": "none applies",
                        "by_seed": {"0": {"ssim": 0.4}, "1": {"ssim": 0.5}},
                        "intervals": {"ssim": [0.3, 0.5]},
                    }
                    rows.append(
                        {
                            "schema": 2,
                            "item": name,
                            "row": item_line.name,
                            "metric": item_line.metric,
                            "value": 21.5,
                            "interval": [20.0, 23.0],
                            "seeds": {"0": 21.0, "1": 22.0},
                            "facts": facts,
                            "data": "album",
                            "command": f"seepage reproduce {name}",
                            "made": {"torch": "2.8", "device": "cpu", "started": "2026-01-01"},
                            "size": "small",
                            "column": column,
                            "paper_data": item_line.data,
                            "paper": 20.0,
                        }
                    )
            self.put(f"{name.replace('/', '-')}.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))

    def spoil(self, rng: Random) -> None:
        name = rng.choice(sorted(self.good))
        rows = [json.loads(line) for line in self.good[name].splitlines()]
        if rng.random() < 0.3:
            for row in rows:
                for key in ("data", "command"):
                    row[key] += rng.choice(HOSTILE)
                row["made"]["torch"] = row["facts"]["reason"] = rng.choice(HOSTILE)
                row["value"] = rng.choice((None, row["value"]))
        else:
            found = spoiled(rng, rows, keep=("row", "metric", "schema", "item", "size", "column"))
            rows = found if isinstance(found, list) else [found]
        text = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        self.put(name, damaged(rng, text) if rng.random() < 0.1 else text)

    def read(self) -> object:
        pages = book.write_book(self.home, self.place / "book")
        for page in pages:
            if page.name != "index.md":
                check_markdown(page.read_text(encoding="utf-8"))
        return pages
