"""Run folders of strangers, with manifests that fit; evidence packs; records of reproductions."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from strategies import (
    HOSTILE,
    Draw,
    chance,
    choose,
    damaged,
    hostile,
    json_lines,
    odd,
    spoiled_json,
    spoiled_lines,
    tensor_file,
    worded,
)
from watcher import Fault, Sandbox, answered, check_markdown, check_page, check_terminal, command, ran

from seepage.audit.candidates import open_candidates, open_members, open_unseen
from seepage.base.manifest import write_manifest
from seepage.base.storage import read_tensors
from seepage.papers import book
from seepage.papers.items import list_items
from seepage.report.evidence import FORMATS

pytestmark = pytest.mark.full  # each waits for the finished runs that it spoils
FILES = ("result.json", "result.json", "flags.json", "env.json", "exposure.json")


def vouch(folder: Path) -> None:
    """Write manifests that fit, as a stranger can."""
    for path in folder.rglob("manifest.json"):
        write_manifest(path.parent)


def checked(folder: Path, *words: str) -> str:
    """Run a command on a stranger's run; in the pages that it writes none of their words may act."""
    vouch(folder)
    found = ran(*words)
    for path in folder.rglob("report.html"):
        check_page(path.read_text(encoding="utf-8"))
    return found


def retarget(sandbox: Sandbox) -> None:
    """Let `attack.json` name the sandbox's own copy of what was attacked."""
    facts = json.loads((sandbox.home / "run" / "attack.json").read_text())
    sandbox.put({"run/attack.json": json.dumps(facts | {"observed": str(sandbox.home / "observed")})})


def worded_json(value: Any) -> st.SearchStrategy[bytes]:
    return worded(value).map(lambda found: json.dumps(found).encode())


CONDITIONS = "psnr>20", "members_identified>0.1", "auc>0.9", "bound_exact>1", "psnr_low>1e9", "certified>1"
COMMANDS = (
    "report HOME", "report HOME", "report HOME --no-pictures", "report HOME --json", "report HOME --quiet",
    *(f"report HOME --fail-if {condition} --reuse" for condition in CONDITIONS),
)  # fmt: skip


@st.composite
def runs(draw: Draw, good: dict[str, bytes], guesses: dict[str, dict[str, Any]]) -> tuple[dict[str, bytes], str]:
    """Mostly one file; then all words of a file at once; then the lines of scores."""
    kind, name = draw(st.integers(0, 19)), choose(draw, *FILES)
    if kind < 11:
        content = draw(spoiled_json(json.loads(good[name])))
    elif kind < 14:
        content = draw(worded_json(json.loads(good[name])))
    elif kind < 16:
        name = "scores.jsonl"
        content = draw(spoiled_lines([json.loads(line) for line in good[name].splitlines()[:20]]))
    elif kind < 18:
        name = choose(draw, *guesses)
        content = draw(tensor_file(guesses[name]))
    elif kind < 19:
        name = "pictures.json"
        content = draw(spoiled_json({"schema": 1, "pictures": draw(odd)}))
    else:
        name = choose(draw, "recipe.toml", "result.json", "flags.json", "progress.jsonl")
        content = draw(damaged(good[name]) | st.sampled_from([b"", b"seed = [", b"a = " + b"[" * 5000]))
    return {name: content}, choose(draw, *COMMANDS)


def test_run(sandbox: Sandbox, goods: Path) -> None:
    """run folder: report, grid, score, --fail-if, --json"""
    shutil.copytree(goods / "run", sandbox.home, dirs_exist_ok=True)
    good = sandbox.keep()
    guesses = {name: read_tensors(sandbox.home / name) for name in good if re.match(r"reconstr.*\.safetensors", name)}

    def answer(words: str = "report HOME") -> str:
        return checked(sandbox.home, *words.replace("HOME", str(sandbox.home)).split())

    sandbox.fuzz(runs(good, guesses), answer, most=60, writes=True)


def test_private(sandbox: Sandbox, goods: Path) -> None:
    """private/: report --truth, members, unseen examples"""
    shutil.copytree(goods / "attacked", sandbox.home, dirs_exist_ok=True)
    run, more = goods / "run", sandbox.home / "more"
    for part, name in (("observed", "membership"), ("private", "membership"), ("private", "unseen")):
        for path in list((run / part).rglob(f"{name}.safetensors"))[:1]:
            sandbox.put({f"more/{part}/{path.name}": path.read_bytes()})
    retarget(sandbox)
    others = [name for name in sandbox.keep() if name.startswith("more/")]
    tensors = {name: read_tensors(sandbox.home / name) for name in (*others, "private/truth.safetensors")}

    def lists() -> None:
        open_candidates(more / "observed")
        open_members(more / "private")
        open_unseen(more / "private")

    def answer() -> str:
        vouch(sandbox.home)
        found = answered(lists)
        report = ("report", str(sandbox.home / "run"), "--truth", str(sandbox.home / "private"), "--quiet")
        return ran(*report) if found == "accepted" else found

    names = st.sampled_from([*["private/truth.safetensors"] * 7, *others])
    sandbox.fuzz(
        names.flatmap(lambda name: st.fixed_dictionaries({name: tensor_file(tensors[name])})), answer, writes=True
    )


@st.composite
def outcomes(draw: Draw, good: dict[str, bytes], name: str, found: dict[str, Any]) -> dict[str, bytes]:
    """What an attack left: its outcome, its tensors, and the facts of the run."""
    kind, count = draw(st.integers(0, 2)), len(found["inputs"])
    if kind == 0:
        return {name: draw(spoiled_json(json.loads(good[name])))}
    if kind == 1:
        keep = ("content", "observed") if chance(draw, 80) else ()
        return {"run/attack.json": draw(spoiled_json(json.loads(good["run/attack.json"]), keep))}
    more = {
        "labels": torch.zeros(count, dtype=torch.int64), "objective": torch.zeros(count),
        "indices": torch.arange(count), "certified": torch.ones(count, dtype=torch.bool),
        "inner/x": torch.zeros(count, 2),
    }  # fmt: skip
    chosen = {key: value for key, value in more.items() if chance(draw, 40)}
    return {name.replace(".json", ".safetensors"): draw(tensor_file(found | chosen))}


def test_scored(sandbox: Sandbox, goods: Path) -> None:
    """outcomes of attacks and attack.json: report --truth"""
    shutil.copytree(goods / "attacked", sandbox.home, dirs_exist_ok=True)
    retarget(sandbox)
    good = sandbox.keep()
    name = next(name for name in good if name.startswith("run/attacks/") and name.endswith(".json"))
    found = read_tensors(sandbox.home / name.replace(".json", ".safetensors"))
    report = ("report", str(sandbox.home / "run"), "--truth", str(sandbox.home / "private"))
    sandbox.fuzz(outcomes(good, name, found), lambda: checked(sandbox.home, *report), writes=True)


# --- records of reproductions ------------------------------------------------------------------------------------

ITEMS = ("cafe/table-2", "cpa/figure-7", "fedleak/table-3")
FACTS = {
    "psnr": 20.5, "psnr_low": 19.0, "psnr_high": 22.0, "recovered": 0.5, "examples": 4, "mean_color_psnr": 15.0,
    "ssim": 0.4, "reason": "none applies", "by_seed": {"0": {"ssim": 0.4}, "1": {"ssim": 0.5}},
    "intervals": {"ssim": [0.3, 0.5]},
}  # fmt: skip
RECORD = {
    "schema": 2, "value": 21.5, "interval": [20.0, 23.0], "seeds": {"0": 21.0, "1": 22.0}, "facts": FACTS,
    "data": "album", "made": {"torch": "2.8", "device": "cpu", "started": "2026-01-01"}, "size": "small", "paper": 20.0,
}  # fmt: skip


@st.composite
def records(draw: Draw, good: dict[str, bytes]) -> dict[str, bytes]:
    name = choose(draw, *sorted(good))
    rows = [json.loads(line) for line in good[name].splitlines()]
    if not chance(draw, 30):
        return {name: draw(spoiled_lines(rows, ("row", "metric", "schema", "item", "size", "column")))}
    for row in rows:
        for key in ("data", "command"):
            row[key] += draw(hostile)
        row["made"]["torch"] = row["facts"]["reason"] = draw(hostile)
        row["value"] = choose(draw, row["value"], None)
    return {name: json_lines(rows)}


def test_records(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """records of reproductions: the results book, of three items as of all"""
    found = {name: item for name, item in list_items().items() if name in ITEMS}
    monkeypatch.setattr(book, "list_items", lambda: found)
    for name, item in found.items():
        rows = [
            {**RECORD, "item": name, "row": line.name, "metric": line.metric, "column": column, "paper_data": line.data,
             "command": f"seepage reproduce {name}"}
            for line in item.lines[:3] for column in range(min(2, len(item.expect.columns)))
        ]  # fmt: skip
        sandbox.put({f"{name.replace('/', '-')}.jsonl": json_lines(rows)})

    def write() -> None:
        for page in book.write_book(sandbox.home, sandbox.place / "book"):
            if page.name != "index.md":
                check_markdown(page.read_text(encoding="utf-8"))

    sandbox.fuzz(records(sandbox.keep()), lambda: answered(write), writes=True)


# --- what a checkout can bring -----------------------------------------------------------------------------------


@st.composite
def baselines(draw: Draw, good: dict[str, bytes]) -> tuple[dict[str, bytes], str]:
    name = choose(draw, "run/result.json", "run/result.json", "pack/result.json", "pack/manifest.json")
    kind, record = draw(st.integers(0, 9)), json.loads(good[name])
    content = draw(spoiled_json(record) if kind < 6 else worded_json(record) if kind < 8 else damaged(good[name]))
    named = choose(draw, "run", "run/result.json", "pack")
    return {name: content}, "run/result.json" if name.startswith("run/") and chance(draw, 70) else named


def test_baseline(sandbox: Sandbox, goods: Path) -> None:
    """--baseline, compare: the older one is a result.json, a run, an evidence pack"""
    for name in ("result.json", "manifest.json", "manifest.key"):
        sandbox.put({f"run/{name}": (goods / "run" / name).read_bytes()})
    shutil.copytree(goods / "pack", sandbox.home / "pack")
    own = str(goods / "run")
    sandbox.fuzz(
        baselines(sandbox.keep()),
        lambda named="run/result.json": ran("compare", str(sandbox.home / named), own, "--reuse"),
        writes=True,
    )


@st.composite
def packs(draw: Draw, good: dict[str, bytes], key: str) -> tuple[dict[str, bytes | None], str, tuple[str, ...]]:
    """Files that differ, an entry that is added beside them, and the options."""
    kind, name, added = draw(st.integers(0, 19)), choose(draw, *sorted(good)), ""
    files: dict[str, bytes | None] = {}
    if kind < 7:
        files = {name: draw(damaged(good[name]))}
    elif kind < 13:
        files = {"manifest.json": draw(spoiled_json(json.loads(good["manifest.json"])))}
    elif kind < 15:
        files = {name: None}
    elif kind < 17:
        added = choose(draw, "file", "link", "folder") + ":" + choose(draw, "x", "annex.html.bak", ".hidden", "\u202ex")
    else:
        files = {choose(draw, "manifest.json.sig", "signer.pub"): choose(draw, b"", b"\0" * 99, b"x" * 10**5)}
    return files, added, choose(draw, (), ("--json",), ("--key", key))


def test_pack(sandbox: Sandbox, goods: Path) -> None:
    """evidence packs: verify with and without --key, as JSON. With the key nothing passes in which one byte differs"""
    shutil.copytree(goods / "pack", sandbox.home, dirs_exist_ok=True)
    good = sandbox.keep()

    def answer(added: str = "", more: tuple[str, ...] = ()) -> str:
        how, _, name = added.partition(":")
        place = sandbox.home / name
        match how:
            case "file":
                place.touch()
            case "link":
                place.symlink_to("nowhere")
            case "folder":
                place.mkdir()
        try:
            code, _, _ = command("evidence", "verify", str(sandbox.home), *more)
            there = {name: path.read_bytes() for name, path in sandbox.files().items()}
        finally:
            if added:
                place.rmdir() if how == "folder" else place.unlink()
        if code == 0 and "--key" in more and (there != good or added):
            raise Fault("a pack that differs was accepted")
        return "refused" if code else "accepted"

    sandbox.fuzz(packs(good, str(goods / "auditor.pem.pub")), answer, writes=True)


REACHES = re.compile(r"://\S|(?<!\\)www\.\w|@\w")
"""A link or a mention in Markdown."""


@st.composite
def printed(draw: Draw, good: dict[str, bytes]) -> tuple[dict[str, bytes], str, bool]:
    kind, name = draw(st.integers(0, 19)), choose(draw, *FILES)
    record = json.loads(good[name])
    if kind < 11:
        content = draw(spoiled_json(record))
    elif kind < 17:
        content = json.dumps(draw(worded(record)), ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    else:
        content = json.dumps(record | {"started": choose(draw, *HOSTILE)}).encode()
    return {name: content}, choose(draw, *sorted(FORMATS)), not chance(draw, 15)


def test_printed(sandbox: Sandbox, goods: Path) -> None:
    """a stranger's run: evidence --print in all formats, and every gate without --reuse"""
    shutil.copytree(goods / "run", sandbox.home, dirs_exist_ok=True)
    sandbox.keep(dict.fromkeys(("owner.mac", "report.html", "grid.png")))
    place = str(sandbox.home)

    def answer(form: str = "summary", asked: bool = True) -> str:
        for name in ("manifest.json", "manifest.key"):
            (sandbox.home / name).unlink(missing_ok=True)
        write_manifest(sandbox.home)
        pack = ("evidence", "pack", place, "--print", form)
        if not asked:
            for words in (pack, ("report", place, "--fail-if", "recovered>2")):
                if command(*words)[0] != 2:
                    raise Fault(f"{words[0]} took a stranger's run for one's own")
            return "refused"
        code, out, _ = command(*pack, "--reuse")
        if code:
            return "refused"
        check_terminal(out)
        if form == "junit":
            ET.fromstring(out)
        elif form == "summary":
            check_markdown(re.sub("</?(details|summary)>", "", out))  # one's own; a stranger's is spelled out
            check_page(out)
            if REACHES.search(out):
                raise Fault("a link or a mention in Markdown")
        else:
            json.loads(out)
        return "accepted"

    sandbox.fuzz(printed(sandbox.good), answer, writes=True)
