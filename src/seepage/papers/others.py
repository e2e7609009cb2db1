"""Tables and figures of the papers for which nothing is run, and why."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seepage.base.toml import load_toml


@dataclass(frozen=True)
class Other:
    """A table or figure without a recipe.

    Attributes:
        paper: `cafe`, `cpa` or `fedleak`.
        item: As the paper numbers it.
        about: What it shows.
        kind: Whether it makes no claim that can be measured, or one that was not measured here.
        reason: Why there is nothing to measure, or what a run would take.
    """

    paper: Literal["cafe", "cpa", "fedleak"]
    item: str
    about: str
    kind: Literal["no measurable claim", "not run"]
    reason: str

    @property
    def id(self) -> str:
        """`cafe/table-1`."""
        return f"{self.paper}/{self.item.lower().replace(' ', '-')}"


OTHERS: tuple[Other, ...] = tuple(
    Other(**one) for one in load_toml(Path(__file__).with_name("others.toml").read_text("utf-8"))["other"]
)
"""All sixteen: with the recipes' items they are the 67 tables and figures of the three papers."""
