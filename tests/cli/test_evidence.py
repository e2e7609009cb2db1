"""What an auditor files: every format accepted by somebody else's reader, and every changed byte seen."""

import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from seepage.base import manifest
from seepage.federation.models import fc2
from seepage.report.evidence import FORMATS
from seepage.report.evidence.annex import find_browser

Cli = Callable[..., Any]
Refused = Callable[..., str]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def key(home: Path, cli: Cli) -> Path:
    cli("evidence", "keygen", "auditor.pem")
    return home / "auditor.pem"


@pytest.fixture
def pack(run: Path, key: Path, cli: Cli) -> Path:
    cli("evidence", "pack", run, "--out", "pack", "--sign", key, "--auditor", "Dr. N.", "--subject", "Faces, round 1")
    return Path("pack")


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


# --- digests of a run --------------------------------------------------------------------------------------------


def test_a_run_that_nobody_touched_is_as_it_was_written(run: Path, cli: Cli) -> None:
    cli("report", run)  # seepage's own later pages are known, too
    found = cli("evidence", "verify", run)
    assert "unchanged: all" in found.out
    assert "not signed" in found.out


def test_one_changed_bit_is_named(run: Path, cli: Cli) -> None:
    cli("report", run)
    for path in ("result.json", "recipe.toml", "private/truth.safetensors", "attacks/case/linear/000000.safetensors",
                 "observed/rounds/000000.safetensors", "report.html", "scores.jsonl"):  # fmt: skip
        flip(run / path, -3)
        found = cli("evidence", "verify", run, "--json", code=1)
        assert found.json["differences"] == [{"path": path, "what": "changed"}]
        flip(run / path, -3)
    cli("evidence", "verify", run)


def test_files_that_came_or_went_are_named(run: Path, cli: Cli) -> None:
    (run / "private" / "truth.safetensors").unlink()
    (run / "private" / "other.safetensors").write_bytes(b"x")
    (run / ".hidden.py").write_bytes(b"x")
    found = cli("evidence", "verify", run, code=1)
    assert "missing: private/truth.safetensors" in found.out
    assert "added: private/other.safetensors" in found.out
    assert "added: .hidden.py" in found.out


def test_a_gate_does_not_judge_an_edited_result(run: Path, home: Path, cli: Cli, refused: Refused) -> None:
    cli("audit", "tiny.toml", "--out", run, "--fail-if", "recovered>0", "--quiet", code=1)
    text = (run / "result.json").read_text()
    (run / "result.json").write_text(text.replace('"mean": 1.0', '"mean": 0.0'))
    said = refused("audit", "tiny.toml", "--out", run, "--fail-if", "recovered>0", "--quiet")
    assert "is not what the run wrote" in said
    assert "is not what the run wrote" in refused("report", run)
    assert "is not what the run wrote" in refused("evidence", "pack", run, "--out", home / "pack")


def test_scoring_does_not_vouch_for_outcomes_that_were_edited(run: Path, cli: Cli, refused: Refused) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    flip(Path("blind/attacks/observed/linear/000000.safetensors") if Path("blind/attacks/observed").exists()
         else next(Path("blind/attacks").rglob("000000.safetensors")), -3)  # fmt: skip
    assert "is not what the run wrote" in refused("report", "blind", "--truth", run / "private")


def test_what_is_private_has_no_digest_that_a_guess_could_be_compared_with(run: Path) -> None:
    known = manifest.read_manifest(run).files
    sealed = {path for path, one in known.items() if one.sealed}
    assert {path for path in known if path.startswith(("private/", "attacks/", "reconstructions/"))} <= sealed
    for path in known:
        assert (known[path].sha256 == manifest.digest_of(run / path)) == (path not in sealed)
    assert os.stat(run / manifest.KEY_FILE).st_mode & 0o077 == 0


def test_without_its_key_nothing_is_said_to_be_unchanged(run: Path, refused: Refused) -> None:
    (run / manifest.KEY_FILE).unlink()
    assert "without which its sealed files cannot be compared" in refused("evidence", "verify", run)


# --- the pack ----------------------------------------------------------------------------------------------------


def test_a_signed_pack_is_verified_without_a_network(pack: Path, run: Path, key: Path, cli: Cli) -> None:
    found = cli("evidence", "verify", pack, "--key", f"{key}.pub", "--run", run)
    assert "signed by SHA256:" in found.out
    assert "the key you gave" in found.out
    assert f"of this run: all files of {run} are those" in found.out.replace("\n", " ")
    alone = cli("evidence", "verify", pack).out
    assert "ask the auditor" in alone
    assert "of this run" not in alone
    assert cli("evidence", "verify", pack, "--run", run, "--json").json["run"] == {
        "path": str(run),
        "matches": True,
    }
    assert cli("evidence", "verify", pack, "--json").json["run"] is None


def test_every_byte_of_every_file_counts(pack: Path, cli: Cli) -> None:
    for path in sorted(pack.iterdir()):
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 2):
            flip(path, at)
            found = cli("evidence", "verify", pack, code=None)
            assert found.code in (1, 2), f"{path} at {at}: {found}"
            assert "Traceback" not in found.err
            path.write_bytes(whole)
    cli("evidence", "verify", pack)


def test_a_file_that_is_gone_is_seen(pack: Path, key: Path, cli: Cli) -> None:
    for gone in ("manifest.json.sig", "signer.pub", "annex.html"):
        whole = (pack / gone).read_bytes()
        (pack / gone).unlink()
        cli("evidence", "verify", pack, code=1)
        cli("evidence", "verify", pack, "--key", f"{key}.pub", code=1)
        (pack / gone).write_bytes(whole)
    cli("evidence", "verify", pack)


def test_not_one_byte_may_stand_beside_a_signature(pack: Path, key: Path, cli: Cli) -> None:
    with (pack / "manifest.json.sig").open("a") as file:
        file.write("\n")
    cli("evidence", "verify", pack, "--key", f"{key}.pub", code=1)


def test_another_key_has_not_signed_it(pack: Path, cli: Cli) -> None:
    cli("evidence", "keygen", "other.pem")
    cli("evidence", "verify", pack, "--key", "other.pem.pub", code=1)


def test_a_pack_signed_anew_by_somebody_else_is_not_the_auditors(pack: Path, run: Path, key: Path, cli: Cli) -> None:
    cli("evidence", "keygen", "other.pem")
    cli("evidence", "pack", run, "--out", pack, "--sign", "other.pem")
    cli("evidence", "verify", pack)  # the pack's own key: whose it is only its name tells
    cli("evidence", "verify", pack, "--key", f"{key}.pub", code=1)


def test_a_pack_of_another_run_is_not_of_this_one(pack: Path, run: Path, cli: Cli) -> None:
    shutil.copytree(run, "later")
    cli("evidence", "verify", pack, "--run", "later")
    flip(Path("later/private/truth.safetensors"), -3)
    cli("evidence", "verify", pack, "--run", "later", code=1)
    manifest.write_manifest(Path("later"))
    found = cli("evidence", "verify", pack, "--run", "later", code=1)
    assert "another one" in found.out
    assert "unchanged: all" in found.out
    assert "NOT OF THIS RUN: later" in found.out
    known = cli("evidence", "verify", pack, "--run", "later", "--json", code=1).json
    assert (known["good"], known["differences"], known["run"]) == (False, [], {"path": "later", "matches": False})
    assert "another one" in known["problems"][0]


def test_a_pack_holds_no_picture_no_truth_and_no_folder(pack: Path, run: Path, home: Path) -> None:
    names = {path.name for path in pack.iterdir()}
    assert not {path for path in names if path.endswith((".png", ".safetensors", ".key"))}
    text = "".join(path.read_text() for path in pack.iterdir() if path.name != "result.json")
    assert "data:image" not in text
    assert str(home) not in text
    assert (run / manifest.KEY_FILE).read_text().strip() not in text


def test_a_pack_replaces_a_pack_and_nothing_else(pack: Path, run: Path, home: Path, cli: Cli, refused: Refused) -> None:
    cli("evidence", "pack", run, "--out", pack)
    assert not (pack / "signer.pub").exists()
    (home / "mine").mkdir()
    (home / "mine" / "letter.txt").write_text("dear")
    assert "is not empty and no evidence pack" in refused("evidence", "pack", run, "--out", "mine")


def test_the_same_run_gives_the_same_files(pack: Path, run: Path, key: Path, cli: Cli) -> None:
    cli("evidence", "pack", run, "--out", "again", "--sign", key, "--auditor", "Dr. N.", "--subject", "Faces, round 1")
    assert {path.name: path.read_bytes() for path in pack.iterdir()} == {
        path.name: path.read_bytes() for path in Path("again").iterdir()
    }


def test_what_is_no_private_key_signs_nothing(key: Path, run: Path, refused: Refused) -> None:
    for name in ("auditor.pem.pub", "tiny.toml", "none.pem"):
        assert "key" in refused("evidence", "pack", run, "--out", "pack", "--sign", key.parent / name), name


def test_a_key_is_its_owners_alone_and_is_never_replaced(key: Path, refused: Refused) -> None:
    assert key.stat().st_mode & 0o077 == 0
    assert "no key is replaced" in refused("evidence", "keygen", key)


def test_openssl_checks_the_same_signature(pack: Path, key: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    raw = subprocess.run(["base64", "-d", pack / "manifest.json.sig"], capture_output=True, check=True).stdout
    Path("raw.sig").write_bytes(raw)
    command = [openssl, "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", f"{key}.pub", "-sigfile", "raw.sig"]
    assert subprocess.run([*command, "-in", pack / "manifest.json"], check=False).returncode == 0
    flip(pack / "manifest.json", 5)
    assert subprocess.run([*command, "-in", pack / "manifest.json"], check=False).returncode != 0


# --- formats, read by others -------------------------------------------------------------------------------------


def test_the_result_follows_the_published_schema(pack: Path) -> None:
    import jsonschema  # seconds, for the one worker that runs this

    schema = json.loads((ROOT / "docs" / "result.schema.json").read_text())
    assert json.loads((pack / "result.schema.json").read_text()) == schema
    jsonschema.validate(json.loads((pack / "result.json").read_text()), schema)


def test_the_annex_says_its_verdict_once(pack: Path) -> None:
    page = (pack / "annex.html").read_text()
    assert "<strong>LEAKS.</strong> Private examples can be reconstructed" in page
    assert "copies." not in page
    assert 'not tried: ask with <span class="option">--membership</span>' in page
    assert not re.findall(r"&lt;|&amp;lt;", page)


def test_evidence_says_what_the_run_found(pack: Path) -> None:
    found = json.loads((pack / "evidence.json").read_text())
    # Two faces, one example a batch: the closed form gives both back, and the search of five steps neither.
    assert (found["maximum_risk"]["hits"], found["maximum_risk"]["of"]) == (2, 2)
    assert found["threat_model"]["letter"] == "C"
    assert all("20" in source for source in found["sources"].values())
    assert found["auditor"] == "Dr. N."
    assert any("bounds" in item for item in found["not_tried"])
    assert any("malicious server" in item for item in found["not_tried"])


def test_evidence_names_the_model_and_the_update_that_were_judged(pack: Path) -> None:
    files = json.loads((pack / "evidence.json").read_text())["judged_files"]
    assert [one["name"] for one in files] == ["observed/model.safetensors", "observed/rounds/000000.safetensors"]
    for one in files:
        assert one["sha256"] == manifest.digest_of(Path("run") / one["name"])
        assert one["sha256"][:16] in (pack / "annex.html").read_text()


def test_evidence_of_a_recording_that_lies_elsewhere_names_its_files(run: Path, cli: Cli) -> None:
    cli("attack", run / "observed", "--attack", "linear", "--out", "blind", "--jobs", 1)
    cli("evidence", "pack", "blind", "--out", "blind-pack")
    files = json.loads(Path("blind-pack/evidence.json").read_text())["judged_files"]
    assert [one["name"] for one in files] == ["model.safetensors", "rounds/000000.safetensors"]
    assert files[0]["sha256"] == manifest.digest_of(run / "observed/model.safetensors")


def test_evidence_tells_attacks_that_cannot_apply_from_those_that_were_not_tried(pack: Path) -> None:
    items = json.loads((pack / "evidence.json").read_text())["not_tried"]
    (asked,) = [item for item in items if "attacks of seepage that this run did not ask for" in item]
    (barred,) = [item for item in items if "attacks that apply to no case" in item]
    for name in ("token_sequences", "lora", "cafe", "patch_unmixing"):
        assert name in barred.split(": ")[1].split(", ")
    for name in ("gradient_matching", "cocktail_party"):
        assert name in asked.split(": ")[1].split(", ")


def test_junit_is_read_by_another_reader(pack: Path) -> None:
    from junitparser import JUnitXml

    found = JUnitXml.fromfile(str(pack / "junit.xml"))
    assert (found.tests, found.failures, found.errors, found.skipped) == (2, 1, 0, 1)
    assert {case.name for suite in found for case in suite if case.result and not case.is_skipped} >= {"linear"}


def test_sarif_is_accepted_by_the_validator_of_its_makers(pack: Path) -> None:
    tool = os.environ.get("SEEPAGE_SARIF_MULTITOOL") or shutil.which("sarif-multitool")
    log = json.loads((pack / "results.sarif").read_text())
    results = log["runs"][0]["results"]
    assert [(one["kind"], one["level"]) for one in results] == [("fail", "error"), ("informational", "none")]
    assert all(log["runs"][0]["tool"]["driver"]["rules"][one["ruleIndex"]]["id"] == one["ruleId"] for one in results)
    if tool is None:
        pytest.skip("npm's @microsoft/sarif-multitool is not installed")
    ended = subprocess.run([tool, "validate", pack / "results.sarif"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ": error " not in ended.stdout, ended.stdout


def test_a_fingerprint_stays_when_the_number_changes(pack: Path, run: Path, cli: Cli) -> None:
    before = json.loads((pack / "results.sarif").read_text())["runs"][0]["results"]
    cli("audit", "tiny.toml", "--seed", 5, "--out", "other", "--jobs", 1, "--quiet")
    after = json.loads(cli("evidence", "pack", "other", "--print", "sarif").out)["runs"][0]["results"]
    assert [one["partialFingerprints"] for one in before] == [one["partialFingerprints"] for one in after]


def test_every_format_can_be_printed(run: Path, cli: Cli) -> None:
    for name in FORMATS:
        found = cli("evidence", "pack", run, "--print", name)
        assert (found.err, bool(found.out)) == ("", True), name


def test_an_unknown_format_is_named_with_the_known(run: Path, refused: Refused) -> None:
    assert "did you mean 'sarif'" in refused("evidence", "pack", run, "--print", "sariff")


@pytest.mark.slow  # a browser starts
def test_the_annex_prints_on_two_pages(pack: Path, run: Path, cli: Cli) -> None:
    if find_browser() is None:
        pytest.skip("no browser is installed")
    cli("evidence", "pack", run, "--out", pack, "--pdf")
    assert (pack / "annex.pdf").read_bytes().startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", (pack / "annex.pdf").read_bytes())) <= 2


def test_without_a_browser_the_annex_is_left_to_be_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr("seepage.report.evidence.annex.BROWSERS", ())
    monkeypatch.delenv("SEEPAGE_BROWSER", raising=False)
    assert "open the page and print it" in refused("evidence", "pack", run, "--out", "pack", "--pdf")


# --- two checkpoints ---------------------------------------------------------------------------------------------


def test_two_checkpoints_become_a_red_build_and_a_signed_page(observed: Path, key: Path, cli: Cli) -> None:
    found = cli("attack", observed, "--attack", "linear", "--attack", "dlg", "--set", "attack.steps=2",
                 "--out", "round",
                "--all", "--jobs", 1, "--fail-if", "certified>0", "--quiet", code=1)  # fmt: skip
    assert "certified" in found.err
    cli("evidence", "pack", "round", "--out", "pack", "--sign", key)
    cli("evidence", "verify", "pack", "--key", f"{key}.pub")
    evidence = json.loads(Path("pack/evidence.json").read_text())
    assert evidence["maximum_risk"] is None
    assert evidence["findings"][0]["counts"] == {"certified": [2, None]}
    log = json.loads(Path("pack/results.sarif").read_text())
    # Nobody can say whether a guess without certificate is right: that is no pass.
    assert [one["kind"] for one in log["runs"][0]["results"]] == ["fail", "review"]
    assert 'skipped="1"' in Path("pack/junit.xml").read_text()
    # What an audit's option would ask for, no option of this command does.
    assert (
        evidence["summary"]["membership"]
        == "not tried: ask with seepage attack OBSERVED --candidates FILE --public FILE"
    )


@pytest.mark.slow
def test_the_annex_names_the_rate_the_loss_and_that_the_update_looks_clipped(home: Path, cli: Cli) -> None:
    torch.manual_seed(0)
    model = fc2((1, 8, 8), 10)
    torch.save(model.state_dict(), "before.pt")
    F.cross_entropy(model(torch.rand(2, 1, 8, 8)), torch.tensor([3, 8])).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    gradient = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.save(gradient, "gradient.pt")
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.save(model.state_dict(), "after.pt")
    known = ("--model=fc2", "--shape=1,8,8", "--classes=10", "--batch-size=2", "--attack=linear", "--jobs=1")
    cli("attack", "before.pt", "after.pt", "--lr=0.1", "--steps=1", *known, "--out=round")
    cli("attack", "before.pt", "--gradient=gradient.pt", *known, "--out=sent")
    for run, made in (("round", "one step of SGD at a learning rate of 0.1"), ("sent", "one gradient")):
        cli("evidence", "pack", run, "--out", f"{run}-pack")
        page = Path(f"{run}-pack/annex.html").read_text()
        assert f"Assumed by the attacks: {made}, on the loss cross_entropy" in page
        assert "looks clipped: the norm of the update is 0.5" in page


LEAST = ("--model", "convnet", "--set", "batch.count=1", "--set", "training.steps=0", "--out", "unread")


@pytest.mark.parametrize(
    ("captured", "why", "head"),
    [(True, "no truth was at hand", "NOT SCORED."), (False, "no attack gave a result", "NO RESULT.")],
)
def test_what_could_not_be_scored_says_why_and_says_it_once(captured: bool, why: str, head: str, cli: Cli) -> None:
    cli("record", "tiny.toml", *LEAST[:-1], "recorded")
    found = (
        cli("attack", "recorded/observed", "--attack", "dlg:steps=2", "--out", "unread", "--jobs", 1, code=2)
        if captured
        else cli("audit", "tiny.toml", "--attack", "linear", *LEAST, code=2)
    )
    assert "--allow-inconclusive" in found.err
    again = ("report", "unread", "--allow-inconclusive")
    cli(*again[:2], code=2)
    cli(*again)
    cli("evidence", "pack", "unread", "--out", "pack")
    pages = {path.name: path.read_text() for path in Path("pack").iterdir()}
    evidence = json.loads(pages["evidence.json"])
    assert f"<strong>{head}</strong> " in pages["annex.html"]
    assert "Not scored." not in pages["annex.html"]
    assert pages["annex.html"].count(f"not scored: {why}") == 1
    assert f"{why.capitalize()}, so" in pages["summary.md"]
    assert not [item for item in evidence["not_tried"] if "not tried" in item or "not known" in item]
    assert ("no attack had a result" in pages["annex.html"]) is not captured
    assert [one["state"] for one in evidence["findings"]] == ["open"]
    assert ("leaks: not known" if captured else "ran on none of") in pages["annex.html"]
    suites = ET.fromstring(pages["junit.xml"])
    assert (suites.get("errors"), suites.get("failures"), suites.get("skipped")) == ("1", "0", "0")


def test_a_share_that_no_guess_can_reach_is_no_gate(observed: Path, refused: Refused) -> None:
    for condition in ("certified>1", "certified>=2", "recovered>1"):
        said = refused("attack", observed, "--attack", "linear", "--out", "round", "--fail-if", condition)
        assert "is a share, from 0 to 1" in said


def test_the_name_of_a_checkpoint_is_not_in_what_is_handed_on(home: Path, run: Path, cli: Cli) -> None:
    state = load_file(run / "observed/model.safetensors")
    update = load_file(run / "observed/rounds/000000.safetensors")
    save_file({name.partition("/")[2]: tensor for name, tensor in state.items()}, home / "weights.safetensors")
    sent = {name.partition("/")[2]: tensor for name, tensor in update.items() if name.startswith("update/")}
    save_file(sent, home / "Anna_Schmidt.safetensors")
    line = ("attack", "weights.safetensors", "--gradient", "Anna_Schmidt.safetensors", "--shape", "1,8,8")
    line += ("--set", "model.hidden=16")
    cli(*line, "--model", "fc2", "--attack", "linear", "--out", "captured", "--jobs", 1)
    cli("evidence", "pack", "captured", "--out", "pack")
    assert "Schmidt" not in "".join(path.read_text() for path in Path("pack").iterdir())
    files = json.loads(Path("pack/evidence.json").read_text())["judged_files"]
    assert [one["name"] for one in files] == ["BEFORE", "GRADIENT"]
    assert files[1]["sha256"] == manifest.digest_of(home / "Anna_Schmidt.safetensors")
