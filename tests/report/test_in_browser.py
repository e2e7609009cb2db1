"""The report as a real browser shows it. Skipped where no Chromium is installed."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from markupsafe import escape

from seepage.papers.markdown import as_code, as_words
from seepage.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(NAMES)} is installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=10000",
)

# A window cannot be narrower than about 500 pixels, a frame can: media queries see the frame's width.
LOOKOUT = """<!doctype html><meta charset="utf-8"><body><pre id="out">still looking</pre><script>
const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
function ground(element, view) {
  for (; element; element = element.parentElement) {
    const color = rgb(view.getComputedStyle(element).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
function faint(doc, view) {
  const found = [];
  for (const element of doc.body.querySelectorAll("*")) {
    const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join("").trim();
    if (!text) continue;
    const [a, b] = [light(rgb(view.getComputedStyle(element).color)), light(ground(element, view))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${text.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return found;
}
async function look(width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "report.html";
  await new Promise(done => { frame.onload = done; document.body.append(frame); });
  const [doc, view] = [frame.contentDocument, frame.contentWindow];
  await Promise.all([...doc.images].map(image => image.decode().catch(() => 0)));
  return {
    inner: view.innerWidth, scroll: doc.documentElement.scrollWidth, images: [...doc.images].map(i => i.naturalWidth),
    shown: [...doc.images].map(i => Math.min(i.width, i.height)), faint: faint(doc, view),
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches, title: doc.title,
  };
}
Promise.all([400, 1400].map(look)).then(all => {
  document.getElementById("out").textContent = JSON.stringify(all);
});
</script>"""


@dataclass(frozen=True)
class Sight:
    """What the browser saw: one view per width, what it complained about, and what it asked the server for."""

    views: list[dict[str, Any]]
    complaints: list[str]
    requests: list[str]


class Handler(SimpleHTTPRequestHandler):
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    requests: list[str] = []

    class Recorder(Handler):
        seen = requests

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Recorder, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def look(folder: Path, *extra: str) -> Sight:
    """Open `folder/report.html` at 400 and 1400 pixels."""
    (folder / "lookout.html").write_text(LOOKOUT, encoding="utf-8")
    with served(folder) as (address, requests):
        command = [str(BROWSER), *FLAGS, *extra, f"--user-data-dir={folder / 'profile'}", "--window-size=1500,1000"]
        for _ in range(3):  # on a busy machine its virtual time can run out before the page has come
            requests.clear()
            done = subprocess.run(
                [*command, "--dump-dom", f"{address}/lookout.html"],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            seen = done.stdout.partition('<pre id="out">')[2].partition("</pre>")[0]
            if seen.startswith("["):
                break
    assert seen.startswith("["), f"the browser did not finish: {seen!r}\n{done.stderr[-2000:]}"
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Sight(json.loads(unescape(seen)), complaints, requests)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, build_run: Callable[..., Path]) -> Path:
    """A run with long names, many cases and more examples than fit on a line."""
    cases = ("fc2_size-12_steps-0", "a_case_with_one_very_long_name_" + "that_goes_on" * 6, "b", "c", "d")
    attacks = ("linear", "dlg", "inverting_gradients")
    folder = build_run(tmp_path_factory.mktemp("run"), cases=cases, attacks=attacks, batches=(12,))
    expose(folder, *cases)
    return folder


def expose(folder: Path, *cases: str) -> None:
    """Let each case give away a dozen tensors with long names."""
    names = [f"features.denselayer{n}.{'convolution' * 3}.weight" for n in range(12)]
    tensors = [{"name": name, "gives": "12 private examples exactly, row by row", "withhold": True} for name in names]
    norms = [{"norm": "bn", "mode": "train", "variances": 3, "channels": 80}]
    labels = {"present": list(range(12)), "sound": True}
    table = {"examples": 11, "vectors": 12, "batch_size": 12, "looks_like": ["looks clipped: the norm is 1"]}
    found = [{"case": case, **table, "tensors": tensors, "norms": norms, "labels": labels} for case in cases]
    (folder / "exposure.json").write_text(json.dumps({"schema": 1, "cases": found}))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_in_a_browser(run: Path, tmp_path: Path, scheme: str) -> None:
    shutil.copy(write_report(run), tmp_path)
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    sight = look(tmp_path, *dark)
    assert [view["inner"] for view in sight.views] == [400, 1400]
    for view in sight.views:
        assert view["dark"] == (scheme == "dark")
        assert view["scroll"] <= view["inner"], "the page scrolls sideways"
        assert len(view["images"]) > 100
        assert min(view["images"]) > 0, "a picture did not load"
        assert min(view["shown"]) >= 64, "a picture is shown too small"
        assert view["faint"] == [], "text without enough contrast (WCAG AA wants 4.5)"
    assert sight.complaints == []
    assert set(sight.requests) <= {"/lookout.html", "/report.html", "/favicon.ico"}


EVIL = (
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</title><svg onload=document.title='owned'>",
    "{{ 7 * 7 }}<a href=javascript:document.title='owned'>x</a>",
)


@pytest.mark.slow
@pytest.mark.parametrize("evil", EVIL, ids=["script", "attribute", "closing tag", "template"])
def test_no_script_of_a_stranger_runs(tmp_path: Path, build_run: Callable[..., Path], evil: str) -> None:
    folder = build_run(tmp_path / "run", cases=("a", "b"))
    for name in ("result.json", "flags.json", "env.json"):
        (folder / name).write_text(json.dumps(spoiled(json.loads((folder / name).read_text()), evil)))
    expose(folder, "a")
    content = json.loads((folder / "exposure.json").read_text())
    (folder / "exposure.json").write_text(json.dumps(spoiled(content, evil)))
    page = write_report(folder).read_text(encoding="utf-8")
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    sight = look(tmp_path)
    assert str(escape(evil)) in page, "the words are there, as words"
    assert [view["scroll"] <= view["inner"] for view in sight.views] == [True, True]
    # The title names model and data in the words of the files; a script would have put another in its place.
    assert all(view["title"].startswith("Leakage report: run (fc2") for view in sight.views)
    assert set(sight.requests) <= {"/lookout.html", "/report.html", "/favicon.ico"}, "nothing was fetched"


def spoiled(value: Any, evil: str) -> Any:
    """JSON with a stranger's words in every text that is not a name that others refer to."""
    if isinstance(value, dict):
        keep = ("name", "case", "attack", "severity", "status", "outcome", "mode", "schema")
        return {key: item if key in keep else spoiled(item, evil) for key, item in value.items()}
    if isinstance(value, list):
        return [spoiled(item, evil) for item in value]
    return f"{value[:9]}{evil}" if isinstance(value, str) else value


def test_what_the_book_makes_of_a_strangers_words_runs_nowhere(tmp_path: Path) -> None:
    """A builder of pages passes on what is no Markdown: as a tag, were it one. No policy helps here."""
    words = "".join(f"<p>{as_words(evil)}</p><p>{as_code(evil)}</p>" for evil in EVIL)
    (tmp_path / "report.html").write_text(f"<!doctype html><title>book</title><body>{words}", encoding="utf-8")
    sight = look(tmp_path)
    assert [view["title"] for view in sight.views] == ["book"] * 2
    assert [view["images"] for view in sight.views] == [[], []]
    assert set(sight.requests) <= {"/lookout.html", "/report.html", "/favicon.ico"}, "nothing was fetched"


def test_a_policy_stops_a_script_that_came_in(tmp_path: Path, run: Path) -> None:
    """A second wall: were a text not escaped one day, the browser would still not run it."""
    page = write_report(run).read_text(encoding="utf-8")
    (tmp_path / "report.html").write_text(page.replace("<main>", f"<main>{EVIL[0]}{EVIL[1][2:]}"), encoding="utf-8")
    sight = look(tmp_path)
    assert "owned" not in {view["title"] for view in sight.views}
    assert any("Content Security Policy" in line for line in sight.complaints)


def test_the_lookout_sees_faults(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(
        '<!doctype html><body style="margin: 0; background: #fff"><img src="missing.png" alt="">'
        '<p style="width: 600px; color: #999">wide and faint</p><script>console.error("a complaint")</script>'
        f"{EVIL[0]}"
    )
    sight = look(tmp_path)
    assert [view["scroll"] > view["inner"] for view in sight.views] == [True, False]
    assert [view["images"] for view in sight.views] == [[0], [0]]
    assert [view["faint"] for view in sight.views] == [["wide and faint: 2.85"]] * 2
    assert any("a complaint" in line for line in sight.complaints)
    assert [view["title"] for view in sight.views] == ["owned"] * 2
    assert "/missing.png" in sight.requests
