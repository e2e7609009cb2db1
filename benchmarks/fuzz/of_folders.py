"""Readers of what a checkout can bring: its own settings, a baseline, an evidence pack, a finished run to state."""

import json
import re
import shutil
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from random import Random
from typing import Any

import tomli_w
from base import Reader
from filelock import FileLock
from mutations import HOSTILE, NUMBERS, WORDS, as_json, damaged, odd, spoiled
from of_runs import FILES, worded
from watch import Fault, check_markdown, check_page, check_terminal, command, ran

from seepage.base.manifest import write_manifest
from seepage.cli.settings_file import OPTIONS, find_settings
from seepage.report.evidence import FORMATS, PackRequest, make_keys, write_pack

SETTINGS: dict[str, Any] = {
    "recipe": "mine.toml", "data": "digits", "model": "fc2", "batch-size": 2, "attack": ["linear"],
    "defense": ["gaussian_noise:sigma=0.1,clip=1.0"], "seed": 3, "set": ["batch.count=1"], "out": "here",
    "fail-if": "recovered>0", "pictures": False, "membership": False,
}  # fmt: skip

RECIPE = 'name = "a"\n[data]\nuse = "digits"\n[model]\nuse = "fc2"\n[[attack]]\nuse = "linear"\n'

REACHING = ("data.root='/tmp/x'", "training.weights=pretrained", "data.use=mnist", "auxiliary.use=cifar10")
"""Settings that would write elsewhere, or use a network."""

_REACHES = re.compile(r"://\S|(?<!\\)www\.\w|@\w")


class SettingsFile(Reader):
    """`seepage.toml` of the working folder, up to where an audit would begin. None of `REACHING` may pass."""

    name, about = "settings", "seepage.toml of the working folder: seepage audit"

    def prepare(self) -> None:
        self.put("mine.toml", RECIPE)
        self.put("seepage.toml", tomli_w.dumps(SETTINGS))

    def restore(self) -> None:
        super().restore()
        self.reaches = False

    def spoil(self, rng: Random) -> None:
        kind, table = rng.random(), json.loads(json.dumps(SETTINGS))
        if kind < 0.1:
            self.put("seepage.toml", damaged(rng, self.good["seepage.toml"]))
            return
        if kind < 0.25:
            table.setdefault("set", []).append(rng.choice(REACHING))
            self.reaches = True
        elif kind < 0.5:
            key = rng.choice(list(OPTIONS)).replace("_", "-")
            table["set" if key == "settings" else key] = rng.choice((odd(rng), rng.choice(WORDS), rng.choice(NUMBERS)))
        else:
            table = spoiled(rng, table)
        try:
            self.put("seepage.toml", tomli_w.dumps(table))
        except (TypeError, ValueError, AttributeError, UnicodeError, RecursionError):
            self.put("seepage.toml", damaged(rng, self.good["seepage.toml"]))  # what TOML cannot say
            self.reaches = False

    def outcome(self) -> str:
        # The mistake at the end ends the command where an audit would begin.
        code, _, err = command("audit", "--fail-if", "no such score>0", *self._typed())
        check_terminal(err)
        begun = code == 2 and "no such score" in err
        if begun and self.reaches:
            raise Fault("a settings file reached out of its folder")
        return "accepted" if begun else "refused"

    def _typed(self) -> tuple[str, ...]:
        shutil.copytree(self.home, self.place, dirs_exist_ok=True)  # which is the working folder
        return ()

    def read(self) -> object:
        found = find_settings(self.home)
        assert found is not None
        return tomllib.loads((self.home / "mine.toml").read_text())


class Baseline(Reader):
    """The older side of a comparison with a run that is one's own."""

    name, about = "baseline", "--baseline, compare: a result.json, a run, an evidence pack"

    def prepare(self) -> None:
        source = self.shared / "run"
        for name in ("result.json", "manifest.json", "manifest.key"):
            self.put(f"run/{name}", (source / name).read_bytes())
        shutil.copytree(packed(self.shared), self.home / "pack")

    def restore(self) -> None:
        super().restore()
        self.named = self.home / "run" / "result.json"

    def spoil(self, rng: Random) -> None:
        name = rng.choice(("run/result.json", "run/result.json", "pack/result.json", "pack/manifest.json"))
        kind = rng.random()
        record = json.loads(self.good[name])
        if kind < 0.6:
            self.put(name, as_json(rng, spoiled(rng, record)))
        elif kind < 0.8:
            self.put(name, json.dumps(worded(rng, record)))
        else:
            self.damage(rng, name)
        self.named = self.home / rng.choice(("run", "run/result.json", "pack"))
        if name.startswith("run/") and rng.random() < 0.7:
            self.named = self.home / "run" / "result.json"

    def outcome(self) -> str:
        own = str(self.shared / "run")
        return ran("compare", str(self.named), own, "--reuse")

    def read(self) -> object:
        return self.outcome()


def packed(shared: Path) -> Path:
    """A signed pack of the finished audit, made once."""
    out, key = shared / "pack", shared / "auditor.pem"
    with FileLock(shared / "pack.lock"):  # two readers begin at once
        if not out.exists():
            make_keys(key)
            write_pack(shared / "run", out, PackRequest(key=key))
    return out


class Pack(Reader):
    """A signed evidence pack. With the auditor's key nothing passes in which one byte differs."""

    name, about = "pack", "evidence packs: verify with and without --key, as JSON"

    def prepare(self) -> None:
        shutil.copytree(packed(self.shared), self.home)

    def restore(self) -> None:
        super().restore()
        self.more: tuple[str, ...] = ()
        self.strange = False

    def spoil(self, rng: Random) -> None:
        kind, name = rng.random(), rng.choice(sorted(self.good))
        if kind < 0.35:
            self.damage(rng, name)
        elif kind < 0.65:
            self.put("manifest.json", as_json(rng, spoiled(rng, json.loads(self.good["manifest.json"]))))
        elif kind < 0.75:
            (self.home / name).unlink()
        elif kind < 0.85:
            self.strange = True
            place = self.home / rng.choice(("x", "annex.html.bak", ".hidden", "Annex.html", "\u202ex"))
            rng.choice((place.mkdir, lambda: place.symlink_to("nowhere"), place.touch))()
        else:
            self.put(rng.choice(("manifest.json.sig", "signer.pub")), rng.choice((b"", b"\0" * 99, b"x" * 10**5)))
        self.more = rng.choice(((), ("--json",), ("--key", str(self.shared / "auditor.pem.pub"))))

    def files(self) -> list[Path]:
        return [path for path in sorted(self.home.rglob("*")) if path.is_file() and not path.is_symlink()]

    def outcome(self) -> str:
        code, _, _ = command("evidence", "verify", str(self.home), *self.more)
        there = {str(path.relative_to(self.home)): path.read_bytes() for path in self.files()}
        if code == 0 and "--key" in self.more and (there != self.good or self.strange):
            raise Fault("a pack that differs was accepted")
        for path in list(self.home.iterdir()):
            if path.is_symlink() or path.is_dir():
                path.unlink() if path.is_symlink() else path.rmdir()
        return "refused" if code else "accepted"

    def read(self) -> object:
        return self.outcome()


class Printed(Reader):
    """A stranger's finished run, with a manifest that fits, in all formats. Unasked, none is printed of it."""

    name, about = "printed", "a stranger's run: evidence --print in all formats, and every gate without --reuse"

    def prepare(self) -> None:
        shutil.copytree(self.shared / "run", self.home)
        (self.home / "owner.mac").unlink(missing_ok=True)
        for name in ("report.html", "grid.png"):
            (self.home / name).unlink(missing_ok=True)

    def restore(self) -> None:
        super().restore()
        self.format, self.asked = "summary", True

    def spoil(self, rng: Random) -> None:
        kind, name = rng.random(), rng.choice(FILES)
        record = json.loads(self.good[name])
        if kind < 0.55:
            self.put(name, as_json(rng, spoiled(rng, record)))
        elif kind < 0.85:
            self.put(name, json.dumps(worded(rng, record), ensure_ascii=rng.random() < 0.5))
        else:
            record["started"] = rng.choice(HOSTILE)
            self.put(name, json.dumps(record))
        self.format, self.asked = rng.choice(sorted(FORMATS)), rng.random() < 0.85

    def outcome(self) -> str:
        for name in ("manifest.json", "manifest.key"):
            (self.home / name).unlink(missing_ok=True)
        write_manifest(self.home)
        if not self.asked:
            return self._unasked()
        code, out, _ = command("evidence", "pack", str(self.home), "--print", self.format, "--reuse")
        if code:
            return "refused"
        self._check(out)
        return "accepted"

    def _unasked(self) -> str:
        place = str(self.home)
        for words in (
            ("evidence", "pack", place, "--print", self.format),
            ("report", place, "--fail-if", "recovered>2"),
        ):
            if command(*words)[0] != 2:
                raise Fault(f"{words[0]} took a stranger's run for one's own")
        return "refused"

    def _check(self, out: str) -> None:
        check_terminal(out)
        if self.format == "junit":
            ET.fromstring(out)
        elif self.format in ("summary", "model-card"):
            # Our own markup stands in a `<details>`; a stranger's is spelled out.
            own = out.replace("<details>", "").replace("</details>", "")
            check_markdown(re.sub("</?summary>", "", own))
            check_page(out)
            if _REACHES.search(out):
                raise Fault("a link or a mention in Markdown")
        else:
            json.loads(out)

    def read(self) -> object:
        return self.outcome()
