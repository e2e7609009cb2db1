"""What a stranger's folder, or a checkout that brings one, cannot do: open a gate, stop a command, delete or fetch."""

import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seepage.base import hashing, manifest, storage, vouching
from seepage.base.storage import parse_json, walk
from seepage.base.words import for_markdown, for_sarif
from seepage.errors import SeepageError
from seepage.report.evidence.signing import has_small_order

Cli = Callable[..., Any]
GATE = ("--fail-if", "recovered>0", "--no-pictures", "--jobs", 1)
TINY = ("audit", "tiny.toml", "--attack", "linear")
LEFT = ("recipe.toml", "result.json", "env.json", "flags.json", "exposure.json", "scores.jsonl")


@pytest.fixture
def own(home: Path, cli: Cli) -> Path:
    """A finished run of the user's own, which leaks."""
    cli(*TINY, *GATE, "--out", "own", code=1)
    return Path("own")


def edited(own: Path, name: str, *, fitting: bool) -> Path:
    """What a pull request commits: the run without what it found, and a manifest that fits, or none."""
    place = Path(name)
    place.mkdir()
    for file in LEFT:
        shutil.copy(own / file, place / file)
    record = json.loads((own / "result.json").read_text())
    for row in record["rows"]:
        row["scores"]["recovered"]["mean"] = row["scores"]["exact"]["mean"] = 0.0
    for case in record["cases"]:
        case["exposed_examples"] = 0
    (place / "result.json").write_text(json.dumps(record))
    if fitting:
        manifest.write_manifest(place)
    return place


# --- N1: whose run a gate judges -----------------------------------------------------------------------------------


def test_a_run_that_a_checkout_brings_opens_no_gate(own: Path, cli: Cli) -> None:
    for fitting in (False, True):
        place = edited(own, f"brought-{fitting}", fitting=fitting)
        for words in (
            (*TINY, *GATE, "--out", place),
            (*TINY, "--baseline", place, "--out", place, "--jobs", 1),
            ("report", place, "--fail-if", "recovered>0"),
            ("compare", own, place),
            ("compare", own, place / "result.json"),
            ("evidence", "pack", place, "--print", "junit"),
            ("evidence", "pack", place),
        ):
            found = cli(*words, code=2)
            assert ("nothing shows to be yours" in found.err, "--reuse" in found.err) == (True, True)
    cli("report", place, "--fail-if", "recovered>0", "--reuse")  # who says so knows whose it is


def test_a_missing_manifest_is_a_change_wherever_something_is_judged(own: Path, cli: Cli) -> None:
    place = edited(own, "brought", fitting=False)
    judged = (
        (*TINY, *GATE, "--out", place, "--reuse"), ("report", place, "--fail-if", "recovered>0", "--reuse"),
        ("compare", own, place, "--reuse"), ("evidence", "pack", place, "--print", "junit", "--reuse"),
    )  # fmt: skip
    for words in judged:
        found = cli(*words, code=2)
        assert "manifest.json" in found.err, words


def test_a_seal_of_ones_own_vouches_for_nothing_else(own: Path, cli: Cli) -> None:
    """A finished run that its owner committed, edited, and one of it that is to be gone on from."""
    place = edited(own, "brought", fitting=False)
    for name in ("manifest.json", "manifest.key", "owner.mac"):
        shutil.copy(own / name, place / name)
    cli(*TINY, *GATE, "--out", place, code=2)
    (place / "result.json").unlink()
    found = cli(*TINY, *GATE, "--out", place, code=2)
    assert "nothing shows to be yours" in found.err


def test_a_run_that_a_stranger_began_is_not_gone_on_from_and_never_becomes_ones_own(own: Path, cli: Cli) -> None:
    shutil.copytree(own, "begun")
    for name in ("result.json", "manifest.json", "manifest.key", "owner.mac"):
        Path("begun", name).unlink()
    cli(*TINY, *GATE, "--out", "begun", code=2)
    cli(*TINY, "--out", "begun", "--jobs", 1)  # without a gate it is finished ...
    assert not vouching.is_own(Path("begun"))
    cli(*TINY, *GATE, "--out", "begun", code=2)  # ... and still nobody's


def test_ones_own_run_is_gone_on_from_and_judged_again_without_a_question(own: Path, cli: Cli) -> None:
    cli(*TINY, *GATE, "--out", own, code=1)
    cli("report", own, "--fail-if", "recovered>0", code=1)
    cli("report", own)
    assert vouching.is_own(own)  # also after seepage itself wrote another manifest
    cli("evidence", "pack", own, "--print", "summary")
    (own / "result.json").unlink()
    with vouching.staying_own(own):
        pass
    vouching._write(own, vouching._begun(vouching._key(), (own / "recipe.toml").read_bytes()))  # as a kill leaves it
    cli(*TINY, *GATE, "--out", own, code=1)


def test_without_a_place_for_a_key_a_fresh_run_is_judged_and_an_older_one_says_what_to_do(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    cli(*TINY, *GATE, "--out", "own", code=1)
    again = cli(*TINY, *GATE, "--out", "own", code=2)
    assert "--reuse" in again.err
    cli(*TINY, *GATE, "--out", "own", "--reuse", code=1)


def test_the_key_is_ones_own_alone(own: Path) -> None:
    key = vouching.state_folder() / vouching.KEY
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    try:
        assert not vouching.is_own(own)
    finally:
        key.chmod(0o600)
    assert vouching.is_own(own)


# --- N2, N14, N17: what is read of it ------------------------------------------------------------------------------


def grown(place: Path, name: str, size: int) -> None:
    """A file of nothing, with its size in the manifest."""
    os.truncate(place / name, size)
    record = json.loads((place / "manifest.json").read_text())
    record["files"][name]["size"] = size
    (place / "manifest.json").write_text(json.dumps(record))


def test_terabytes_of_nothing_are_refused_before_they_are_hashed(own: Path, cli: Cli) -> None:
    cli("evidence", "pack", own, "--out", "pack")
    grown(Path("pack"), "annex.html", 2**43)
    shutil.copytree(own, "result")
    grown(Path("result"), "result.json", 2**43)
    shutil.copytree(own, "weights")
    grown(Path("weights"), "observed/model.safetensors", 2**36 - 1)
    before = time.process_time()
    for words in (
        ("evidence", "verify", "pack"), ("compare", "pack", own), ("evidence", "verify", "result"),
        ("report", "result"), ("compare", own, "result", "--reuse"), ("evidence", "pack", "result", "--reuse"),
        ("evidence", "verify", "weights"),
        ("evidence", "pack", "weights", "--reuse"),
    ):  # fmt: skip
        found = cli(*words, code=2)
        assert "MiB" in found.err, words
    assert time.process_time() - before < 20


def test_many_files_of_nothing_have_a_limit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "MOST_EMPTY", 2**21)
    hasher = hashing.Hasher()
    for name in ("a", "b"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 2**20)
        hasher.digest(tmp_path / name)
    os.truncate(tmp_path / "a", 2**20)
    with pytest.raises(SeepageError, match="hardly any room"):
        hasher.digest(tmp_path / "a")


def test_whatever_is_not_listed_is_added(own: Path, cli: Cli) -> None:
    cli("evidence", "pack", own, "--out", "pack")
    for place in ("pack", "own"):
        for name, make in (
            ("pipe", os.mkfifo), ("empty", os.mkdir), ("folder", lambda path: os.symlink(".", path)),
            ("nowhere", lambda path: os.symlink("missing", path)),
            (".writing-1", lambda path: Path(path).touch()),
        ):  # fmt: skip
            path = Path(place, name)
            make(path)
            found = cli("evidence", "verify", place, code=1)
            assert f"added: {name}" in found.out, path
            path.rmdir() if name == "empty" else path.unlink()
        cli("evidence", "verify", place)


def test_thousands_of_names_are_refused_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seepage.federation.models import weights

    for module in (storage, weights):
        monkeypatch.setattr(module, "MOST_TENSORS", 20)
    many = {f"layer{i}": torch.zeros(1) for i in range(21)}
    save_file(many, tmp_path / "a.safetensors")
    torch.save(many, tmp_path / "a.pt")
    for name in ("a.safetensors", "a.pt"):
        with pytest.raises(SeepageError, match="more than 20 tensors"):
            weights.read_state(tmp_path / name)


# --- N3: what it says of a model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "options", "shape", "words"),
    [
        ("vit", {"depth": 100_000}, [3, 32, 32], "at most 256"),
        ("gpt", {"depth": 10**6}, [16], "at most 256"),
        ("text_encoder", {"depth": 10**6}, [16], "at most 256"),
        ("vertical", {"parties": 10**5}, [200_000], "at most 256"),
        ("torchvision:mobilenet_v2", {"inverted_residual_setting": [[1, 16, 10**6, 1]]}, [3, 32, 32], "far larger"),
    ],
)
def test_a_number_in_a_description_stops_no_command(
    own: Path, cli: Cli, use: str, options: dict[str, Any], shape: list[int], words: str
) -> None:
    path = own / "observed" / "knowledge.json"
    record = json.loads(path.read_text()) | {"architecture": {"use": use, "options": options}, "input_shape": shape}
    path.write_text(json.dumps(record))
    before = time.process_time()
    found = cli("check", own / "observed", code=2)
    assert words in found.err, found
    assert time.process_time() - before < 10


def test_told_defenses_have_a_limit(own: Path, cli: Cli) -> None:
    path = own / "observed" / "knowledge.json"
    known = {"known": ["defense"], "defense": [{"use": "gaussian_noise", "sigma": 1.0}] * 65}
    path.write_text(json.dumps(json.loads(path.read_text()) | known))
    assert "more than 64 defenses" in cli("check", own / "observed", code=2).err


# --- N4, N16: what is written over it ------------------------------------------------------------------------------


def test_evidence_removes_nothing_that_is_not_its_own(own: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    thesis = Path("thesis")
    (thesis / "sub").mkdir(parents=True)
    (thesis / "manifest.json").write_text(json.dumps({"kind": "evidence"}))
    (thesis / "thesis.txt").write_text("years")
    cli("evidence", "pack", own, "--out", thesis, code=2)
    assert (thesis / "thesis.txt").read_text() == "years"
    cli("evidence", "pack", own, "--out", "pack")
    Path("pack/signed.pdf").touch()
    found = cli("evidence", "pack", own, "--out", "pack", code=2)
    assert "signed.pdf" in found.err
    Path("pack/signed.pdf").unlink()
    names = {path.name for path in Path("pack").iterdir()}
    monkeypatch.chdir("pack")
    cli("evidence", "pack", Path("..", own), "--out", ".", code=2)  # which cannot be renamed
    assert {path.name for path in Path().iterdir()} == names


@pytest.mark.full
def test_what_a_killed_evidence_left_is_private_and_goes_with_the_next(own: Path, cli: Cli, home: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom seepage.report.evidence import pack\n"
        "pack._manifest = lambda *_: os._exit(9)\npack.write_pack(Path('own'), Path('pack'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=home, check=False)
    (left,) = home.glob(".writing-*")
    assert (done.returncode, left.stat().st_mode & 0o777) == (9, 0o700)
    cli("evidence", "pack", own, "--out", "pack")
    assert not list(home.glob(".writing-*"))


# --- N7, N13: its words --------------------------------------------------------------------------------------------

WORDS = "\x1b[2J\x9b\u202e https://evil.example www.evil.example @octocat [click](https://evil.example) <b>"


def test_a_strangers_words_act_in_no_format(own: Path, cli: Cli) -> None:
    record = json.loads((own / "result.json").read_text())
    record["verdict"] = WORDS
    record["cases"][0]["title"] = record["rows"][0]["reason"] = WORDS
    (own / "result.json").write_text(json.dumps(record, ensure_ascii=False).replace("\\u001b", ""))
    env = json.loads((own / "env.json").read_text()) | {"started": "2026-01-01\x1b"}
    (own / "env.json").write_text(json.dumps(env))
    manifest.write_manifest(own)
    for name in ("junit", "sarif", "summary", "evidence"):
        out = cli("evidence", "pack", own, "--print", name, "--reuse").out
        assert out, name
        assert not [c for c in out if not (c.isprintable() or c == "\n")], name
        if name == "summary":
            assert not [word for word in ("://evil", "www.evil", "@octocat", "<b>") if word in out], name
        if name == "junit":
            ET.fromstring(out)
        if name == "sarif":
            texts = [one["message"]["text"] for one in json.loads(out)["runs"][0]["results"]]
            assert all("\\[click\\](" in text for text in texts)
    cli("evidence", "pack", own, "--out", "pack", "--reuse")
    cli("report", own)
    for page in (*Path("pack").iterdir(), own / "report.html"):
        text = page.read_text(encoding="utf-8")
        assert not [c for c in "\x1b\x9b\u202e" if c in text], page


def test_words_that_reach_out_are_broken() -> None:
    assert for_markdown("#12 a@b.c ftp://x") == "\\# 12 a@ b.c ftp:// x"
    assert for_sarif("\\[a](b)") == "\\\\\\[a\\](b)"


# --- N8, N10: its form ---------------------------------------------------------------------------------------------


def test_folders_a_thousand_deep_are_one_sentence(own: Path, cli: Cli) -> None:
    place = os.open(own, os.O_RDONLY)
    for _ in range(1400):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    try:
        for words in (
            ("evidence", "verify", own), ("report", own), ("report", own), ("evidence", "pack", own, "--reuse"),
            ("audit", "--data", own, "--quiet"),
        ):  # fmt: skip
            found = cli(*words, code=2)
            assert "more than 64 deep" in found.err, words
    finally:
        subprocess.run(["rm", "-rf", str(own)], check=True)  # `shutil.rmtree` calls itself once for each folder


def test_entries_of_a_folder_have_a_limit(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    with pytest.raises(SeepageError, match="more than 2 files"):
        list(walk(tmp_path, most=2))


def test_json_from_others_is_bounded() -> None:
    bad = (
        "[" * 65 + "]" * 65,
        '"\\ud800"',
        str(10**400),
        "1e999",
        "NaN",
        "[" * 10**5,
        f"[{'[],' * 2**21}1]",
        '{"a": ' * 70 + "1" + "}" * 70,
    )
    for text in bad:
        with pytest.raises((ValueError, RecursionError)):
            parse_json(text)
    assert parse_json('["\\ud83d\\ude00", 9223372036854775807, 1.5]') == ["\N{GRINNING FACE}", 2**63 - 1, 1.5]


def test_a_strangers_result_is_one_sentence(own: Path, cli: Cli) -> None:
    record = json.loads((own / "result.json").read_text())
    row, case = record["rows"][0], record["cases"][0]
    changes: dict[str, dict[str, Any]] = {
        "cost": {"rows": [row | {"cost": 5}]},
        "a row of no case": {"rows": [row | {"case": "nowhere"}]},
        "a count that is none": {"rows": [row | {"examples": 10**400}]},
        "half a character": {"verdict": "\ud800"},
        "half a title": {"cases": [case | {"title": "\udfff"}]},
        "a federation": {"cases": [case | {"federation": {"x": 1}}]},
    }
    for what, change in changes.items():
        (own / "result.json").write_text(json.dumps({**record, **change}))
        manifest.write_manifest(own)
        for words in (
            ("report", own), ("report", own), ("evidence", "pack", own, "--print", "summary", "--reuse"),
            ("compare", own, own, "--reuse"), ("report", own, "--fail-if", "recovered>2", "--reuse"),
        ):  # fmt: skip
            found = cli(*words, code=None)
            assert "Traceback" not in found.err, (what, words, found.err[-400:])
            assert found.code == 2 or what == "a federation", (what, words)


# --- N11, N12, N15 -------------------------------------------------------------------------------------------------


def test_nothing_of_the_working_folder_is_imported_with_p(tmp_path: Path) -> None:
    for name in ("ast", "typing", "pathlib", "importlib", "functools", "seepage", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    words = [sys.executable, "-P", "-m", "seepage", "--version"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    import seepage.__main__ as module

    assert "`python -P -m seepage`" in str(module.__doc__)


@pytest.mark.full
def test_the_settings_of_pictures_in_the_working_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\x1b[2J: x\n\xff\xfe\n")
    code = "from seepage.report.drawing import import_matplotlib as f\nf()\nimport matplotlib\nmatplotlib.rcdefaults()"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_keys_under_which_anybody_can_sign_are_refused() -> None:
    p = 2**255 - 19
    for y in (0, 1, p - 1, p, p + 1):
        for sign in (0, 1):
            assert has_small_order((y | sign << 255).to_bytes(32, "little"))
    generator = (4 * pow(5, -1, p) % p).to_bytes(32, "little")
    assert not has_small_order(generator)


def test_json_says_whose_key_it_is(own: Path, cli: Cli) -> None:
    pytest.importorskip("cryptography")
    cli("evidence", "keygen", "auditor.pem")
    cli("evidence", "pack", own, "--out", "pack", "--sign", "auditor.pem")
    assert cli("evidence", "verify", "pack", "--json").json["key"] == "its own"
    assert cli("evidence", "verify", "pack", "--json", "--key", "auditor.pem.pub").json["key"] == "named"
