"""`seepage evidence pack`, `keygen` and `verify`: what is filed, who signed it, and whether it is unchanged."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seepage.cli.options import JsonOption, ReuseOption
from seepage.errors import SeepageError, printable, unknown

if TYPE_CHECKING:
    from seepage.report.evidence import Checked


def pack(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the pack; default: RUN-evidence beside the run.")
    ] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="Private key (Ed25519, PEM) that signs it.")] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="Print the annex as PDF, by a browser on this machine.")] = False,
    subject: Annotated[str, typer.Option("--subject", help="What was audited, in your words.")] = "",
    auditor: Annotated[str, typer.Option("--auditor", help="Who audited it.")] = "",
    location: Annotated[
        str, typer.Option("--location", help="Path in your repository that SARIF findings point to.")
    ] = "recipe.toml",
    reuse: ReuseOption = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--print",
            help="Print one format and write no pack: junit, sarif, summary or evidence.",
        ),
    ] = None,
) -> None:
    """Evidence pack of a run: JUnit, SARIF, printable annex; optionally signed."""
    from seepage.base.vouching import refuse_foreign
    from seepage.report.evidence import FORMATS, PackRequest, export, write_pack

    request = PackRequest(subject=subject, auditor=auditor, key=sign, pdf=pdf, location=location)
    if only is not None:
        if only not in FORMATS:
            raise unknown("format", only, FORMATS)
        if out is not None or sign is not None or pdf:
            raise SeepageError("--print writes one format to the terminal; leave out --out, --sign and --pdf")
    if not reuse:
        refuse_foreign(run)
    if only is not None:
        sys.stdout.write(export(run, only, request))
        return
    folder = write_pack(run, out or Path(f"{run.resolve()}-evidence"), request)
    signed = "signed" if sign is not None else "not signed: add --sign KEY, a key that seepage evidence keygen makes"
    print(printable(f"{folder} ({signed})"))


def keygen(
    path: Annotated[Path, typer.Argument(metavar="KEY", help="File for the private key; KEY.pub is the public one.")],
) -> None:
    """Make an Ed25519 key pair to sign evidence with."""
    from seepage.report.evidence import make_keys
    from seepage.report.evidence.signing import key_name, open_public_key

    public = make_keys(path)
    print(printable(f"{path} (keep it to yourself) and {public} (give it to who verifies): "))
    print(key_name(open_public_key(public)))


def verify(
    folder: Annotated[Path, typer.Argument(help="An evidence pack, or a run folder.")],
    key: Annotated[Path | None, typer.Option("--key", help="Public key that must have signed the pack.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run that the pack must be of, checked too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a run or an evidence pack is unchanged, and its signature; exit code 1 if not."""
    from seepage.report.evidence import is_pack, verify_pack, verify_run

    if not folder.is_dir():
        raise SeepageError(f"{folder} is no folder; name an evidence pack or a run folder")
    packed = is_pack(folder)
    if not packed and (key is not None or run is not None):
        raise SeepageError(f"{folder} is no evidence pack, so nothing is signed; leave out --key and --run")
    checked = verify_pack(folder, key=key, run=run) if packed else verify_run(folder)
    if as_json:
        found = {
            "schema": 1,
            "good": checked.good,
            "files": checked.files,
            "signer": checked.signer,
            "key": checked.key,
            "differences": [one.model_dump() for one in checked.differences],
            "problems": [*checked.problems, *(checked.misfits or [])],
            "run": None if run is None else {"path": str(run), "matches": not checked.misfits},
        }
        print(json.dumps(found))
    else:
        _print(folder, checked, pack=packed, named=key is not None, run=run)
    if not checked.good:
        raise typer.Exit(1)


def _print(folder: Path, checked: "Checked", *, pack: bool, named: bool, run: Path | None) -> None:
    wrong = [*map(str, checked.differences), *checked.problems]
    for line in wrong:
        print(printable(f"  {line}"))
    if wrong:
        print(printable(f"NOT AS IT WAS WRITTEN: {len(wrong)} thing{'s' * (len(wrong) > 1)} in {folder}"))
    else:
        print(printable(f"unchanged: all {checked.files} files of {folder} are as they were written"))
    for line in checked.misfits or []:
        print(printable(f"  {line}"))
    if checked.misfits:
        print(printable(f"NOT OF THIS RUN: {run} is not as it was when the pack was written"))
    if not checked.good:
        return
    if run is not None:
        print(printable(f"of this run: all files of {run} are those that the pack was written of"))
    if checked.signer is None:
        print("not signed: whoever can edit the files could have written their digests anew")
    else:
        whose = "the key you gave" if named else "the key in the pack; ask the auditor for the name of theirs"
        print(f"signed by {checked.signer}, {whose}" if pack else "")
