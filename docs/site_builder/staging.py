"""The written pages, with links out of docs/ turned into links to pages of the site."""

import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MOVED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
SHOWN = {".py": "python", ".toml": "toml", ".md": "markdown", ".sh": "bash", ".txt": "text"}
FENCE = re.compile(r"^ *(`{3,}|~{3,})", re.MULTILINE)
FOLD = '??? note "How each number of this page was made"'
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FOLDED = re.compile(r"^<details><summary>How these numbers were made</summary>\n\n(.*?)\n\n</details>\n*", re.M | re.S)
FOUND = re.compile(r"\[(exact|recognizable|(?:members|tokens|labels) only|nothing found)\]\([^)]*\)")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


@dataclass
class Staged:
    """What the site is built from.

    Attributes:
        pages: Text of each page by its path within the site, in the order of the navigation.
        files: Files that are copied as they are, by their path within the site.
    """

    pages: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        for name, text in self.pages.items():
            _file(folder, name).write_text(text, encoding="utf-8")
        for name, source in self.files.items():
            _file(folder, name).write_bytes(source.read_bytes())


def stage_written() -> Staged:
    """All Markdown and pictures of docs/, and the changelog."""
    staged = Staged()
    for path in sorted(DOCS.rglob("*")):
        name = path.relative_to(DOCS).as_posix()
        if path.suffix == ".md":
            text = with_links(path.read_text(encoding="utf-8"), f"docs/{name}", name, staged)
            staged.pages[name] = colored(gathered(text)) if name == "attacks/index.md" else gathered(text)
        elif path.suffix in {".png", ".svg", ".css", ".json"}:
            staged.files[name] = path
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    staged.pages["changelog.md"] = with_links(changes, "CHANGELOG.md", "changelog.md", staged)
    return staged


def colored(text: str) -> str:
    """A page whose words of what leaks, in tables, have the class that site.css colors.

    >>> colored("| [labels only](a.md), [how](b.md) |")
    '| [labels only](a.md){ .found-labels }, [how](b.md) |'
    """
    rows = (
        FOUND.sub(lambda found: f"{found[0]}{{ .found-{found[1].split()[0]} }}", line) if line[:1] == "|" else line
        for line in text.split("\n")
    )
    return "\n".join(rows)


def gathered(text: str) -> str:
    """A page whose folds of how numbers were made stand together in one fold at its end, each under its heading."""
    made: list[str] = []
    for fold in FOLDED.finditer(text):
        heading = HEADING.findall(text, 0, fold.start())[-1]
        same = made and made[-1].startswith(f"**{heading}**")
        made.append(fold[1] if same else f"**{heading}**\n\n{fold[1]}")
    if not made:
        return text
    folded = textwrap.indent("\n\n".join(made), "    ")
    return f"{FOLDED.sub('', text).rstrip()}\n\n{FOLD}\n\n{folded}\n"


def with_links(text: str, where: str, page: str, staged: Staged) -> str:
    """A page whose links to files of the repository lead to pages that show them.

    Args:
        text: Markdown.
        where: Its path in the repository, which its links are relative to.
        page: Its path in the site.
        staged: Takes the pages of the files that are linked to.
    """

    def moved(match: re.Match[str]) -> str:
        opening, target, anchor, closing = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        aim = os.path.normpath(PurePosixPath(where).parent / target)
        return f"{opening}{relative(_page_of(aim, staged), page)}{anchor or ''}{closing}"

    return "".join(part if code else LINK.sub(moved, part) for code, part in _parts(text))


def relative(target: str, page: str) -> str:
    """The way from one page of the site to another.

    >>> relative("attacks/dlg.md", "concepts/index.md")
    '../attacks/dlg.md'
    """
    return PurePosixPath(os.path.relpath(target, PurePosixPath(page).parent)).as_posix()


def _page_of(aim: str, staged: Staged) -> str:
    """The page of the site that shows a file of the repository."""
    if aim in MOVED:
        return MOVED[aim]
    if aim == "docs" or aim.startswith("docs/"):
        inside = aim.removeprefix("docs").removeprefix("/")
        return f"{inside}/index.md".lstrip("/") if (ROOT / aim).is_dir() else inside
    path = ROOT / aim
    if path.is_dir():
        name = f"source/{aim}/index.md"
        if name not in staged.pages:
            staged.pages[name] = ""  # before its files, which may lead back here
            staged.pages[name] = _listing(path, aim, name, staged)
        return name
    if path.suffix not in SHOWN or not path.exists():
        if path.exists():
            staged.files[f"source/{aim}"] = path
        return f"source/{aim}"
    name = f"source/{aim}.md"
    if path.suffix == ".md" and aim.startswith("results/"):  # tables that pages lead to, by their headings
        if name not in staged.pages:
            staged.pages[name] = ""  # before its links, which lead back here
            staged.pages[name] = with_links(path.read_text(encoding="utf-8"), aim, name, staged)
        return name
    staged.pages[name] = _code(path, aim)
    return name


def _listing(path: Path, aim: str, name: str, staged: Staged) -> str:
    hidden = {"__pycache__", "__init__.py"}
    inside = sorted(item.name for item in path.iterdir() if item.name not in hidden and item.name[0] != ".")
    lines = [f"- [{item}]({relative(_page_of(f'{aim}/{item}', staged), name)})" for item in inside]
    return f"# {aim}\n\n" + "\n".join(lines) + "\n"


def _code(path: Path, aim: str) -> str:
    return f"# {aim}\n\n``````{SHOWN[path.suffix]}\n{path.read_text(encoding='utf-8')}\n``````\n"


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """A page cut at its code fences: whether a part is code, and its text."""
    start, fence = 0, None
    for match in FENCE.finditer(text):
        if fence is None:
            yield False, text[start : match.start()]
            start, fence = match.start(), match[1]
        elif match[1].startswith(fence):
            yield True, text[start : match.end()]
            start, fence = match.end(), None
    yield fence is not None, text[start:]


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
