"""People judge a run: the page, what it reveals, what a browser saves, and what is counted from that."""

import fcntl
import json
import re
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.report.test_in_browser import BROWSER, FLAGS, served

from seepage.base.lock import LOCK
from seepage.base.storage import read_tensors, write_tensors

RIGHT = {"same": "same", "other": "not", "flat": "not"}


@pytest.fixture
def judged(run: Path) -> Path:
    """The run with one private example turned around, so that its two do not look alike to a control."""
    path = run / "private" / "truth.safetensors"
    tensors = read_tensors(path)
    write_tensors(path, {**tensors, "000001/inputs": 1 - tensors["000001/inputs"]})
    return run


def page_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="pairs">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def key_of(run: Path, page: str) -> Any:
    return json.loads((run / "private" / f"judge-{page}.json").read_text())


def answers_of(run: Path, page: str, judge: str, guesses: str, *, missed: int = 0) -> Path:
    """Save what somebody says who answers all guesses alike and misses the first few controls."""
    answers = {}
    for name, subject in key_of(run, page)["pairs"].items():
        if subject["kind"] == "guess":
            answers[name] = guesses
        else:
            answers[name] = "unsure" if missed > 0 else RIGHT[subject["kind"]]
            missed -= 1
    path = Path(f"{judge}.json")
    path.write_text(json.dumps({"schema": 1, "page": page, "judge": judge, "answers": answers}))
    return path


def test_the_page_says_what_it_holds_and_not_which_is_which(cli: Cli, judged: Path) -> None:
    found = cli("evidence", "judge", judged, "--pairs=20", "--out=page.html")
    assert "private pictures" in found.out
    path = Path("page.html")
    text = path.read_text()
    page = page_of(text)
    key = judged / "private" / f"judge-{page['page']}.json"
    assert path.stat().st_mode & 0o777 == key.stat().st_mode & 0o777 == 0o600
    assert "This page contains private data" in text
    assert not re.search(r"(src|href)=|https?:|url\(|@import|fetch|XMLHttp|sendBeacon|WebSocket", text)
    assert [set(pair) for pair in page["pairs"]] == [{"id", "left", "right"}] * len(page["pairs"])
    rest = re.sub(r'"data:image/png;base64,[A-Za-z0-9+/=]*"', '""', text)
    rows = json.loads((judged / "result.json").read_text())["rows"]
    for word in ("linear", "inverting", "guess", "flat", "control", *(row["case"] for row in rows)):
        assert word not in rest, f"{word!r} gives something away"
    kinds = [subject["kind"] for subject in key_of(judged, page["page"])["pairs"].values()]
    assert sorted(set(kinds)) == ["flat", "guess", "other", "same"]
    assert [pair["id"] for pair in page["pairs"]] == list(key_of(judged, page["page"])["pairs"])


def test_the_same_seed_makes_the_same_page(cli: Cli, judged: Path) -> None:
    for name, seed in (("a.html", 0), ("b.html", 0), ("c.html", 1)):
        cli("evidence", "judge", judged, f"--seed={seed}", f"--out={name}")
    a, b, c = (Path(name).read_bytes() for name in ("a.html", "b.html", "c.html"))
    assert a == b != c


def test_from_judgements_to_a_report(cli: Cli, judged: Path) -> None:
    asked = cli("evidence", "judge", judged, "--attack=linear", "--json").json
    before = (judged / "result.json").read_bytes()
    files = [
        answers_of(judged, asked["page"], "yes", "same", missed=1),
        answers_of(judged, asked["page"], "no", "unsure"),
        answers_of(judged, asked["page"], "careless", "same", missed=2),
    ]
    found = cli("evidence", "count", judged, *files, "--json").json
    (row,) = found["rows"]
    assert (row["attack"], row["pairs"], row["judges"]) == ("linear", asked["guesses"], 2)
    assert (row["asr"], row["cannot_tell"], found["agreement"]) == (0.5, 0.5, 0)
    assert [judge["name"] for judge in found["judges"] if judge["left_out"]] == ["careless"]
    assert json.loads((judged / "judgements.json").read_text())["rows"] == found["rows"]
    assert (judged / "result.json").read_bytes() == before
    page = (judged / "report.html").read_text()
    assert "Judged by people" in page
    assert "missed 2 of 9 control pairs" in page
    spoken = cli("evidence", "count", judged, files[0])
    assert "attack success rate 100%" in spoken.out
    assert "judge yes" in spoken.out
    assert cli("evidence", "count", judged, files[0], "--quiet").out.count("\n") == 1


def test_nothing_is_written_while_another_process_writes(cli: Cli, judged: Path) -> None:
    """Pages, judgements and their keys: each writer of a finished run waits its turn, or says that it cannot."""
    page = cli("evidence", "judge", judged, "--attack=linear", "--json").json["page"]
    answers = answers_of(judged, page, "ab", "same")
    for command in (("evidence", "judge", judged), ("report", judged), ("evidence", "count", judged, answers)):
        before = {path: path.read_bytes() for path in judged.rglob("*") if path.is_file()}
        with (judged / LOCK).open("w") as theirs:
            fcntl.flock(theirs, fcntl.LOCK_EX)
            found = cli(*command, code=2)
        assert "another process is writing to" in found.err
        (judged / LOCK).unlink()
        assert {path: path.read_bytes() for path in judged.rglob("*") if path.is_file()} == before
        cli(*command)
        assert not (judged / LOCK).exists()


def test_a_machine_judges_blindly_and_is_named_as_one(cli: Cli, refused: Callable[..., str], judged: Path) -> None:
    found = cli("evidence", "judge", judged, "--machine=machine.json", "--features=missing.pt", code=2)
    assert "missing.pt" in found.err
    too_few = cli("evidence", "judge", judged, "--machine=machine.json", code=2)
    assert "draws its limit from 20 pairs of different private pictures" in too_few.err
    assert not Path("machine.json").exists()
    asked = cli("evidence", "judge", judged, "--attack=linear", "--json").json
    right = answers_of(judged, asked["page"], "machine", "not")
    right.write_text(json.dumps({**json.loads(right.read_text()), "machine": "distance below 0.2"}))
    counted = cli("evidence", "count", judged, right)
    assert "judged by a machine, and by no person: distance below 0.2" in counted.out
    page = (judged / "report.html").read_text()
    assert "Judged by a machine" in page
    assert "No person judged." in page
    person = answers_of(judged, asked["page"], "person", "same")
    assert "counted by themselves" in refused("evidence", "count", judged, right, person)
    assert "add --machine" in refused("evidence", "judge", judged, "--features=x.pt")


def test_mistakes(refused: Callable[..., str], judged: Path) -> None:
    assert "linear" in refused("evidence", "judge", judged, "--attack=linears")
    assert "unknown case" in refused("evidence", "judge", judged, "--case=nowhere")
    assert "--pairs 20" in refused("evidence", "judge", judged, "--pairs=5")
    assert "result.json" in refused("evidence", "judge", "nowhere")
    assert "nowhere.json" in refused("evidence", "count", judged, "nowhere.json")
    Path("a.json").write_text(json.dumps({"schema": 1, "page": "0" * 12, "judge": "AB", "answers": {"p001": "same"}}))
    assert "has no key" in refused("evidence", "count", judged, "a.json")


def test_a_run_without_its_truth(refused: Callable[..., str], judged: Path) -> None:
    (judged / "private" / "truth.safetensors").unlink()
    assert "no private and reconstructed pictures" in refused("evidence", "judge", judged)


# Presses keys like a person, in a frame as wide as a phone and in a wide one; what is saved is caught on its way out.
DRIVER = """<!doctype html><meta charset="utf-8"><body><pre id="out">still judging</pre><script>
async function drive(width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  frame.src = "judge.html";
  await new Promise(done => { frame.onload = done; document.body.append(frame); });
  const [doc, view] = [frame.contentDocument, frame.contentWindow], find = id => doc.getElementById(id);
  const press = (key, more = {}) => doc.dispatchEvent(new view.KeyboardEvent("keydown", { key, ...more }));
  let blob = null;
  view.URL.createObjectURL = found => { blob = found; return "#caught"; };
  view.HTMLAnchorElement.prototype.click = function () { view.caught = this.download; };
  const shown = () => ["start", "look", "end"].filter(id => !find(id).hidden).join();
  const log = { widths: [], begun: shown() };
  const wide = () => log.widths.push(doc.documentElement.scrollWidth <= view.innerWidth);
  wide();
  find("begin").click();
  log.nameless = shown();
  find("name").value = "  <b>A B</b> ";
  find("begin").click();
  wide();
  await Promise.all([find("left").decode(), find("right").decode()]);
  log.sizes = [find("left"), find("right")].map(image => [image.naturalWidth, Math.min(image.width, image.height)]);
  const total = +find("count").textContent.split(" of ")[1];
  press("1", { repeat: true }); press("1", { ctrlKey: true }); press("ArrowRight");
  log.ignored = find("count").textContent;
  press("1"); press("2");
  log.third = find("count").textContent;
  press("ArrowLeft");
  log.before = doc.querySelector('[aria-pressed="true"]').dataset.answer;
  press("3");
  while (!find("look").hidden) doc.querySelectorAll("[data-answer]")[1].click();
  log.total = total;
  wide();
  log.ended = shown();
  find("save").click();
  return { ...log, download: view.caught, saved: JSON.parse(await blob.text()) };
}
Promise.all([400, 1400].map(drive)).then(all => {
  document.getElementById("out").textContent = JSON.stringify(all);
});
</script>"""


def browse(folder: Path, address: str) -> tuple[str, list[str]]:
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1500,1000", "--dump-dom"]
    done = subprocess.run([*command, address], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_person_judges_in_a_browser(cli: Cli, judged: Path, home: Path, tmp_path_factory: Any) -> None:
    asked = cli("evidence", "judge", judged, "--out=seen/judge.html", "--json").json
    folder, profile = home / "seen", tmp_path_factory.mktemp("browser")
    (folder / "driver.html").write_text(DRIVER)
    with served(folder) as (address, requests):
        text, complaints = browse(profile, f"{address}/driver.html")
    seen = text.partition('<pre id="out">')[2].partition("</pre>")[0]
    assert seen.startswith("["), f"the browser did not finish: {seen!r} {complaints}"
    assert complaints == []
    assert set(requests) <= {"/driver.html", "/judge.html", "/favicon.ico"}
    for width, log in zip((400, 1400), json.loads(unescape(seen)), strict=True):
        assert log["widths"] == [True] * 3, "the page scrolls sideways"
        assert (log["begun"], log["nameless"], log["ended"]) == ("start", "start", "end")
        assert all(real > 0 and least >= (160 if width == 400 else 400) for real, least in log["sizes"])
        assert log["total"] == asked["pairs"]
        assert log["ignored"].startswith("1 of"), "held keys, shortcuts and skipping do not answer"
        assert log["third"].startswith("3 of")
        assert log["before"] == "not"
        assert log["download"] == "judgements.json"
        assert (log["saved"]["judge"], log["saved"]["page"]) == ("<b>A B</b>", asked["page"])
        assert list(log["saved"]["answers"].values())[:2] == ["same", "unsure"]
        assert set(list(log["saved"]["answers"].values())[2:]) == {"not"}
        assert len(log["saved"]["answers"]) == asked["pairs"]
    (home / "saved.json").write_text(json.dumps(log["saved"]))
    # It called examples beside themselves another thing, so it does not count; but the file is one that can be read.
    assert re.search(
        r"<b>A B</b> missed [45] of 9 control pairs", cli("evidence", "count", judged, "saved.json", code=2).err
    )


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_works_from_a_file(cli: Cli, judged: Path, tmp_path_factory: Any) -> None:
    cli("evidence", "judge", judged, "--out=judge.html")
    text, complaints = browse(tmp_path_factory.mktemp("browser"), Path("judge.html").resolve().as_uri())
    assert complaints == []
    assert '<section id="start">' in text, "the script ran"
