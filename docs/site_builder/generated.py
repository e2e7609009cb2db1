"""Pages made from the package itself: attacks, defenses, recipes and the Python reference. Nothing is typed twice."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from staging import DOCS, FOLD, HEADING, Staged, relative
from typer.main import get_command

from seepage.attacks import ATTACKS
from seepage.audit.recipe.files import BUILT_IN, list_recipes, read_recipe
from seepage.cli import app
from seepage.federation.defenses import DEFENSES

TABLE = re.compile(r"^\|.*\n\|[-|: ]+\n(?:\|.*\n?)+", re.MULTILINE)
REFERENCE = {
    "verbs": (
        "Verbs",
        ["seepage.api", "seepage.federation.transcript.recorded", "seepage.federation.transcript.truth"],
    ),
    "types": ("Types", ["seepage.federation.types"]),
    "errors": ("Errors", ["seepage.errors"]),
    "attacks": ("What an attack is", ["seepage.attacks.base"]),
    "clients": (
        "Client rules",
        [
            f"seepage.federation.clients.{name}"
            for name in ("fedsgd", "fedavg", "fedprox", "aggregate", "base", "losses", "step")
        ],
    ),
    "metrics": (
        "Scores and alignment",
        ["seepage.measure.metrics.score", "seepage.measure.metrics.scores", "seepage.measure.metrics.align"],
    ),
    "exposure": (
        "Exposure without an attack",
        ["seepage.attacks.exposure.analysis", "seepage.attacks.exposure.finding"],
    ),
    "diagnostics": ("Diagnostics", ["seepage.audit.diagnostics"]),
    "accounting": ("Epsilon", ["seepage.measure.privacy.accounting"]),
    "contracts": ("Contracts for your own parts", ["seepage.testing.attack", "seepage.testing.defense"]),
    "recorder": ("The recorder", ["seepage.recorder.recorder"]),
    "integrations": (
        "Frameworks and clusters",
        [f"seepage.recorder.{name}" for name in ("flower_hooks", "opacus", "nvflare", "ray")],
    ),
}


def add_generated(staged: Staged) -> None:
    """Add all generated pages; those that link to a written page are made after it was staged."""
    _attacks(staged)
    _defenses(staged)
    _recipes(staged)
    staged.pages["reference/command-line.md"] = _command_line()
    _reference(staged)


def _command_line() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    parts = ["# Command line", "Exit codes: 0 well, 1 a gate is closed, 2 a mistake, 130 interrupted."]
    verbs = get_command(app).commands
    inner = {f"{name} {one}": verb for name in verbs for one, verb in getattr(verbs[name], "commands", {}).items()}
    for name, command in (verbs | inner).items():
        rows = [_row(f"`{_said(option)}`", option.help or "") for option in command.params]
        heads = [_row("argument or option", "meaning"), _row("---", "---")]
        parts += [f"## seepage {name}", inspect.cleandoc(command.help or ""), "\n".join([*heads, *rows])]
    return "\n\n".join(parts) + "\n"


def _said(option: Any) -> str:
    """An option as it is typed; an argument in capitals."""
    return str(option.opts[0] if option.opts[0].startswith("-") else option.opts[0].upper())


def _attacks(staged: Staged) -> None:
    """One page for each attack: the written page of docs/attacks with its facts and docstring, or these alone."""
    families = [page for page in _written_attacks(staged) if _stem(page) not in {*ATTACKS, "index"}]
    for name, entry in ATTACKS.items():
        page = f"attacks/{name}.md"
        facts = {
            "Family": entry.facts.get("family", "closed form"),
            "Published": entry.paper,
            "Needs": entry.needs,
            "Limit on the batch": _batch(entry.needs),
            "Cost": entry.cost,
        }
        rows = [found for family in families for found in _rows_of(name, staged.pages[family], family)]
        staged.pages[page] = _part_page(name, "attack", entry.make, facts, page, staged.pages.get(page, ""), rows)
    for name in ATTACKS:  # the table of the overview links to the pages that are written; here all of them are there
        index = staged.pages["attacks/index.md"]
        staged.pages["attacks/index.md"] = index.replace(f"\n| `{name}` |", f"\n| [`{name}`]({name}.md) |")


def _written_attacks(staged: Staged) -> list[str]:
    return [page for page in staged.pages if page.startswith("attacks/")]


def _stem(page: str) -> str:
    return Path(page).stem


def _rows_of(name: str, text: str, page: str) -> list[str]:
    """The rows of a family's tables that are an attack's, each table under a link to where it stands."""
    found = []
    for table in TABLE.finditer(text):
        head, rule, *rows = table[0].splitlines()
        own = [row for row in rows if re.match(rf"\| (?:[^|`]*\| )?`{name}[`-]", row)]
        heading = HEADING.findall(text, 0, table.start())[-1].replace("`", "")
        if own:
            link = f"[{heading}]({Path(page).name}#{_slug(heading)}):"
            found.append("\n".join([link, "", head, rule, *own]))
    return found


def _slug(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _batch(needs: str) -> str:
    """What an attack's needs say of the number of examples; an attack that says nothing has no stated limit."""
    parts = (part.strip() for part in re.split(r"[;,]", needs))
    said = [part for part in parts if re.search(r"\bexamples?\b", part) and not part.startswith("rounds")]
    return ", ".join(said) or "none stated"


def _defenses(staged: Staged) -> None:
    rows = []
    for name, entry in DEFENSES.items():
        page = f"defenses/{name}.md"
        staged.pages[page] = _part_page(name, "defense", entry.make, {}, page)
        rows.append(_row(f"[`{name}`]({name}.md)", entry.about))
    staged.pages["defenses/index.md"] = (
        "# Defenses\n\nEach page is made from the defense's own docstring. What each promises, how that is tested, and "
        f"what still leaks behind it: [promises and leakage]({relative('defenses.md', 'defenses/index.md')}); what it "
        f"costs: [frontier]({relative('frontier.md', 'defenses/index.md')}).\n\n"
        f"{_row('defense', 'what it does')}\n{_row('---', '---')}\n" + "\n".join(rows) + "\n"
    )


def _part_page(
    name: str,
    kind: str,
    make: Callable[..., Any],
    facts: Mapping[str, str],
    page: str,
    written: str = "",
    rows: Sequence[str] = (),
) -> str:
    """The page of one attack or defense; in a written one facts follow the introduction, and options come last."""
    command = f"```\nseepage audit --{kind} {name}{'' if kind == 'attack' else _required(make)}\n```"
    known = "\n".join([_row(kind, f"`{name}`"), "|---|---|", *(_row(*fact) for fact in facts.items())])
    read_on = [f"- [{_title(path)}]({relative(where, page)})" for where, path in _topics(name) if where != page]
    read_on += [
        f"- recipe [`{recipe}`]({relative(_recipe_page(recipe), page)}#{_anchor(recipe)})"
        for recipe in _recipes_with(kind, name)
    ]
    docstring = f"::: {_module(make)}.{make.__qualname__}"
    before, made, rest = written.partition(FOLD)
    head, section, sections = before.partition("\n## ")
    parts = [
        head.strip() or f"# {name}",
        *([known] if facts else []),
        *([] if "```" in head or "    seepage " in head else [command]),
        *([f"## {sections.strip()}"] if section else []),
        *([] if written else [docstring]),
        *(["## Beside others of its family", *rows] if rows else []),
        *(["## Where it is used and measured\n\n" + "\n".join(read_on)] if read_on else []),
        *([f"## Method and options\n\n{docstring}"] if written else []),
        *([f"{made}{rest}"] if made else []),
    ]
    return "\n\n".join(parts) + "\n"


def _required(make: Callable[..., Any]) -> str:
    """The options that a defense cannot do without, as the command line sets them."""
    parameters = inspect.signature(make).parameters.values()
    return "".join(f" --set defense.{p.name}=…" for p in parameters if p.default is p.empty)


def _topics(name: str) -> list[tuple[str, Path]]:
    """Written pages that speak of a part by name: where each stands in the site, and its file."""
    pages = [*sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("attacks/*.md"))]
    known = [path for path in pages if f"`{name}`" in path.read_text(encoding="utf-8")]
    return [(path.relative_to(DOCS).as_posix(), path) for path in known]


def _recipes_with(kind: str, name: str) -> list[str]:
    return [recipe for recipe in list_recipes() if name in _uses(_tables(recipe), kind)]


@cache
def _tables(recipe: str) -> dict[str, Any]:
    return read_recipe(_recipe_file(recipe))


def _uses(tables: Any, kind: str) -> set[str]:
    """The names that a recipe gives under `attack` or `defense`, also in its grid and its cases."""
    if isinstance(tables, list):
        return set().union(*(_uses(item, kind) for item in tables))
    if not isinstance(tables, dict):
        return set()
    own = _names(tables.get(kind, []))
    return own.union(*(_uses(value, kind) for key, value in tables.items() if key != kind))


def _names(parts: Any) -> set[str]:
    if isinstance(parts, dict):
        return {str(parts.get("use"))}
    return set().union(*map(_names, parts)) if isinstance(parts, list) else set()


def _recipes(staged: Staged) -> None:
    about = list_recipes()
    for page in dict.fromkeys(map(_recipe_page, about)):
        own = [name for name in about if _recipe_page(name) == page]
        title = Path(page).stem
        staged.pages[page] = f"# Recipes: {title}\n\n" + "\n\n".join(map(_recipe_section, own)) + "\n"
    rows = [
        _row(f"[`{name}`]({relative(_recipe_page(name), 'recipes/index.md')}#{_anchor(name)})", text)
        for name, text in about.items()
    ]
    staged.pages["recipes/index.md"] = (
        "# Recipes\n\nA recipe is a TOML file that says what is audited; its numbers under `[expect]` are the paper's. "
        "`seepage audit NAME` runs one, `--set KEY=VALUE` changes any value of it.\n\n"
        f"{_row('recipe', 'what it runs')}\n{_row('---', '---')}\n" + "\n".join(rows) + "\n"
    )


def _recipe_section(name: str) -> str:
    text = _recipe_file(name).read_text(encoding="utf-8")
    comment, _, rest = text.partition("\nname =")
    said = " ".join(line.lstrip("# ") for line in comment.splitlines() if line.startswith("#"))
    commands = ["seepage frontier" if name == "frontier" else f"seepage audit {name}"]
    expect = _tables(name).get("expect", {})
    if "paper" in expect:  # with `by` it is no audit
        commands = [f"seepage reproduce {name} --size small", *([] if "by" in expect else commands)]
    shown = "\n".join(commands)
    code = textwrap.indent(f"```toml\nname ={rest.rstrip()}\n```", "    ")
    return f'## {name}\n\n{said}\n\n```\n{shown}\n```\n\n??? note "The recipe"\n\n{code}'


def _recipe_file(name: str) -> Path:
    return BUILT_IN / f"{name}.toml"


def _recipe_page(name: str) -> str:
    folder = name.rpartition("/")[0]
    return f"recipes/{folder or 'general'}.md"


def _anchor(name: str) -> str:
    return name.replace("/", "").replace(" ", "-").lower()


def _reference(staged: Staged) -> None:
    options = textwrap.indent(
        "options:\n  members: null\n  show_root_heading: false\n  show_root_toc_entry: false", "    "
    )
    for name, (title, modules) in REFERENCE.items():
        blocks = [f"::: {module}\n{options}" for module in modules]
        staged.pages[f"reference/{name}.md"] = f"# {title}\n\n" + "\n\n".join(blocks)
    staged.pages["reference/index.md"] = (
        "# Reference\n\n- [Command line](command-line.md)\n\n"
        "## Python\n\nMade from the docstrings; `import seepage` names the most used of these.\n\n"
        + "\n".join(f"- [{title}]({name}.md): {_listed(modules)}" for name, (title, modules) in REFERENCE.items())
        + "\n"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _title(path: Path) -> str:
    """What a page calls itself; an attack's page has what it is below its name."""
    name, _, said, *_ = path.read_text(encoding="utf-8").split("\n")
    return said.strip("*.") if said.startswith("**") and said.endswith("**") else name.lstrip("# ")


def _module(make: Callable[..., Any]) -> str:
    return str(make.__module__)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _row(*cases: str) -> str:
    return "| " + " | ".join(case.replace("|", "\\|") for case in cases) + " |"
