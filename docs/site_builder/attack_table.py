"""The table of docs/attacks/index.md, from the registry: `python docs/site_builder/attack_table.py` writes it."""

import re
from pathlib import Path

from seepage.base.registry import attacks

PAGE = Path(__file__).parents[1] / "attacks/index.md"
HEAD, END = "| attack | what it does | needs | cost | published |\n|---|---|---|---|---|\n", "\n\n"


def attack_table() -> str:
    """A row for each attack, cheapest first."""
    rows = [f"| {_linked(e.name)} | {_first(e.about)} | {e.needs} | {e.cost} | {e.paper} |" for e in attacks.values()]
    return HEAD + "\n".join(rows)


def _linked(name: str) -> str:
    """A link where the page is written; the site has one for every attack."""
    return f"[`{name}`]({name}.md)" if PAGE.with_name(f"{name}.md").exists() else f"`{name}`"


def _first(about: str) -> str:
    """The first sentence."""
    return re.split(r"\.\s+(?=[A-Z])", about)[0].rstrip(".").replace("|", "\\|")


def replaced(text: str) -> str:
    """A text whose table of attacks is the generated one."""
    before, _, rest = text.partition(HEAD)
    return before + attack_table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
