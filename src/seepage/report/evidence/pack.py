"""The evidence pack of a run: files that an auditor files and a pipeline reads, tied together by digests.

PACK/  evidence.json  result.json  result.schema.json
annex.html  [annex.pdf]  summary.md
junit.xml  results.sarif
manifest.json  [manifest.json.sig  signer.pub]
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seepage.audit import row as rows
from seepage.base import manifest
from seepage.base.hashing import MOST_OF_PACK, Hasher
from seepage.base.lock import scratch
from seepage.base.manifest import Digest, FileDifference
from seepage.base.schema import JsonRecord, parse
from seepage.base.storage import (
    TEMPORARY,
    check_regular,
    check_schema,
    json_text,
    read_json,
    refuse_links,
    walk,
    write_whole,
)
from seepage.base.words import each_text
from seepage.errors import SeepageError, short
from seepage.report.evidence import statement
from seepage.report.evidence.annex import annex, print_page
from seepage.report.evidence.junit import junit
from seepage.report.evidence.markdown import summary
from seepage.report.evidence.sarif import sarif
from seepage.report.evidence.signing import (
    LARGEST_KEY,
    LARGEST_SIGNATURE,
    is_signed,
    key_name,
    open_private_key,
    open_public_key,
    parse_public_key,
    public_text,
    sign,
)
from seepage.report.evidence.statement import Evidence
from seepage.report.run import RunFolder, open_run

SIGNATURE = f"{manifest.FILE}.sig"
SIGNER = "signer.pub"

FORMATS: Mapping[str, Callable[[Evidence, str], str]] = {
    "junit": lambda evidence, _: junit(evidence),
    "sarif": lambda evidence, place: json_text(sarif(evidence, location=place)),
    "summary": lambda evidence, _: summary(evidence),
    "evidence": lambda evidence, _: json_text(evidence.record()),
}
"""What a pipeline can ask for by itself, by name."""


NAMES = frozenset({
    "evidence.json", "result.json", "result.schema.json", "annex.html", "annex.pdf",
    "summary.md", "junit.xml", "results.sarif",
    manifest.FILE, SIGNATURE, SIGNER,
})  # fmt: skip
"""All that a pack may hold."""


class PackManifest(JsonRecord):
    """The content of a pack's `manifest.json`.

    Attributes:
        schema_version: 1.
        kind: `evidence`.
        run: Name of the run.
        run_manifest: SHA-256 of the run's manifest.
        run_files: Digests of the run's files; sealed where they may hold private examples.
        files: Digests of the pack's own files.
    """

    schema_version: Literal[1] = 1
    kind: Literal["evidence"]
    run: str
    run_manifest: str
    run_files: dict[str, Digest]
    files: dict[str, Digest]


@dataclass(frozen=True, kw_only=True)
class PackRequest:
    """What a pack is to hold.

    Attributes:
        subject: What was audited; empty: the models and data sets of the run.
        auditor: Who audited.
        key: Private key that signs it; None: it is not signed.
        pdf: Whether a browser prints the annex.
        location: File that findings are shown at.
    """

    subject: str = ""
    auditor: str = ""
    key: Path | None = None
    pdf: bool = False
    location: str = "recipe.toml"


def write_pack(run: Path, out: Path, request: PackRequest | None = None) -> Path:
    """Write the evidence pack of a finished run. A pack that is there is replaced as a whole.

    Args:
        run: The run folder. Its files must be what the run wrote.
        out: Folder of the pack.
        request: What it is to hold.

    Returns:
        The folder of the pack.

    Raises:
        SeepageError: Where the run is unfinished or was changed, the key is none, or `out` holds something else.
    """
    request = request or PackRequest()
    opened = open_run(run)
    key = None if request.key is None else open_private_key(request.key)
    manifest.read_manifest(run)
    manifest.refuse_changed(run)
    _check_free(out)
    signer = None if key is None else key_name(key.public_key())
    digest = manifest.digest_of(run / manifest.FILE)
    files = _files(opened, request, digest, signer)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch(out.parent, f"{TEMPORARY}{out.name}-") as place:
            new, old = place / "new", place / "old"
            new.mkdir()
            for name, content in files.items():
                write_whole(new / name, content)
            if request.pdf:
                print_page(new / "annex.html", new / "annex.pdf")
            if key is not None:
                write_whole(new / SIGNER, public_text(key.public_key()))
            text = json_text(_manifest(opened, new, digest))
            write_whole(new / manifest.FILE, text)
            if key is not None:
                write_whole(new / SIGNATURE, sign(text.encode(), key))
            if out.exists():
                out.rename(old)  # which goes with the temporary folder, once the new one has its name
            _put(new, out, old)
    except OSError as error:
        raise SeepageError(
            f"cannot write {out}: {error.strerror or error}; choose another folder with --out"
        ) from error
    return out


def _put(new: Path, out: Path, old: Path) -> None:
    try:
        new.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise


def export(run: Path, name: str, request: PackRequest | None = None) -> str:
    """One of `FORMATS` of a finished run, as text.

    Raises:
        SeepageError: Where the run is unfinished or damaged, or its result was edited.
    """
    request = request or PackRequest()
    manifest.refuse_changed(run, "result.json")
    opened = open_run(run)
    return FORMATS[name](_stated(opened, request), request.location)


def _stated(run: RunFolder, request: PackRequest) -> Evidence:
    """The evidence, in words that act nowhere: many of them are a stranger's."""
    evidence = statement.evidence_of(run, subject=request.subject, auditor=request.auditor)
    return Evidence.model_validate_json(json.dumps(each_text(evidence.model_dump(mode="json", by_alias=True))))


def _files(run: RunFolder, request: PackRequest, digest: str, signer: str | None) -> dict[str, str]:
    evidence = _stated(run, request)
    return {
        "evidence.json": json_text(evidence.record()),
        "result.json": json_text(read_json(run.folder / "result.json")),  # byte by byte, unless a stranger wrote it
        "result.schema.json": json_text(rows.json_schema()),
        "annex.html": annex(evidence, digest=digest, signer=signer),
        "summary.md": summary(evidence),
        "junit.xml": junit(evidence),
        "results.sarif": json_text(sarif(evidence, location=request.location)),
    }


def _manifest(run: RunFolder, pack: Path, digest: str) -> dict[str, Any]:
    hasher = Hasher(own=True)
    own = {path.name: _digest(path, hasher) for path in sorted(pack.iterdir())}
    return {
        "schema": 1,
        "kind": "evidence",
        "run": run.name,
        "run_manifest": digest,
        "run_files": {path: one.model_dump() for path, one in manifest.read_manifest(run.folder).files.items()},
        "files": {name: one.model_dump() for name, one in own.items()},
    }


def _digest(path: Path, hasher: Hasher) -> Digest:
    return Digest(sha256=hasher.digest(path), size=path.stat().st_size)


def _check_free(out: Path) -> None:
    """Raise unless a folder is free, or holds nothing but what a pack is made of: it is replaced as a whole."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise SeepageError(f"{out} is no folder; choose another with --out")
    if not out.exists() or not any(out.iterdir()):
        return
    if not is_pack(out):
        raise SeepageError(f"{out} is not empty and no evidence pack; choose another folder with --out")
    other = next((path.name for path in sorted(out.iterdir()) if path.name not in NAMES or not path.is_file()), None)
    if other is not None:
        raise SeepageError(
            f"{out} is an evidence pack with something beside it ({short(other)}), which would go with the old pack; "
            "move it, or choose another folder with --out"
        )


# --- checking ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """What `verify` found.

    Attributes:
        differences: Files that are not as the manifest says.
        files: Number of files that were compared.
        signer: Name of the key whose signature is good; None: not signed, or not well.
        key: Whose key that is: `named` by who asks, or the pack's `its own`, which anybody can make; None: no signer.
        problems: What is wrong with the signature.
        misfits: Why the run that was named is not the pack's; empty where it is, None where no run was named.
    """

    differences: list[FileDifference]
    files: int
    signer: str | None
    problems: list[str]
    misfits: list[str] | None = None
    key: Literal["named", "its own"] | None = None

    @property
    def good(self) -> bool:
        """Whether all is as it was written, and the run is the pack's where one was named."""
        return not (self.differences or self.problems or self.misfits)


def is_pack(folder: Path) -> bool:
    """Whether a folder is an evidence pack, as far as its manifest says so."""
    path = folder / manifest.FILE
    if not path.is_file():
        return False
    found = read_json(path, manifest.LARGEST)
    return isinstance(found, dict) and found.get("kind") == "evidence"


def verify_run(folder: Path) -> Checked:
    """Compare all files of a run folder with its manifest.

    Raises:
        SeepageError: Where there is no manifest, or it is damaged.
    """
    return Checked(manifest.differences(folder), len(manifest.read_manifest(folder).files), None, [])


def verify_pack(folder: Path, *, key: Path | None = None, run: Path | None = None) -> Checked:
    """Compare all files of a pack with its manifest, the manifest with its signature, and a run with both.

    Args:
        folder: The pack.
        key: Public key that must have signed it; None: any key may have, and the pack's own is named.
        run: The run that it must be of, too.

    Raises:
        SeepageError: Where the pack or the key cannot be read.
    """
    refuse_links(folder)
    path = folder / manifest.FILE
    record = read_json(path, manifest.LARGEST)
    check_schema(record, path)
    found = parse(PackManifest, {"schema_version": 1, **record}, str(path))
    there = {os.path.relpath(one.path, folder).replace(os.sep, "/") for one in walk(folder) if one.is_file()}
    there -= {manifest.FILE, SIGNATURE}
    hasher = Hasher(MOST_OF_PACK)
    wrong = [FileDifference(path=name, what="missing") for name in found.files.keys() - there]
    strange = manifest.unlisted(folder, {*found.files, manifest.FILE, SIGNATURE})
    wrong += [FileDifference(path=name, what="added") for name in strange]
    wrong += [
        FileDifference(path=name, what="changed")
        for name in sorted(found.files.keys() & there)
        if (folder / name).stat().st_size != found.files[name].size
        or _digest(folder / name, hasher) != found.files[name]
    ]
    signer, problems = _signature(folder, path, key)
    misfits = None if run is None else _misfits(run, found)
    whose: Literal["named", "its own"] | None = None if signer is None else "its own" if key is None else "named"
    return Checked(sorted(wrong, key=lambda one: one.path), len(found.files), signer, problems, misfits, whose)


def refuse_changed_pack(folder: Path) -> None:
    """Raise where a file of a pack, or its signature, is not as it was written.

    Raises:
        SeepageError: With the first that is not.
    """
    checked = verify_pack(folder)
    if not checked.good:
        first = next((str(one) for one in checked.differences), None) or checked.problems[0]
        raise SeepageError(
            f"{folder} is not as it was written ({first}); see seepage evidence verify, and write the pack anew"
        )


def _signature(folder: Path, path: Path, key: Path | None) -> tuple[str | None, list[str]]:
    own, place = folder / SIGNER, folder / SIGNATURE
    if not place.is_file():
        lost = own.is_file() or key is not None
        return None, ["it is not signed" if key is not None else "its signature is gone"] * lost
    for file, most in ((place, LARGEST_SIGNATURE), (own, LARGEST_KEY)):
        check_regular(file, most)
    if key is None and not own.is_file():
        return None, [f"it is signed and has no {SIGNER}, so say by whom with --key"]
    public = open_public_key(key) if key is not None else parse_public_key(own.read_bytes(), str(own))
    check_regular(path, manifest.LARGEST)
    if is_signed(path.read_bytes(), place.read_bytes(), public):
        return key_name(public), []
    whose = "that of --key" if key is not None else "the one in the pack"
    return None, [f"the signature is not good: {manifest.FILE} was changed, or the key is not {whose}"]


def _misfits(run: Path, found: PackManifest) -> list[str]:
    if manifest.digest_of(run / manifest.FILE) == found.run_manifest:
        return [f"the run: {one}" for one in manifest.differences(run)]
    own = manifest.read_manifest(run).files
    other = next((name for name in sorted({*own, *found.run_files}) if own.get(name) != found.run_files.get(name)), "?")
    return [f"the run is another one, or was written anew: {other} has another digest"]
