"""Tables and figures of the papers for which nothing is run, and why."""

from dataclasses import dataclass
from typing import Literal


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


OTHERS: tuple[Other, ...] = (
    Other(
        "cafe",
        "Table 1",
        "Batch sizes that earlier attacks reach",
        "no measurable claim",
        "a survey of other papers; its own line, batches of 100, is in Table 3",
    ),
    Other("cafe", "Figure 2", "Vertical federated learning", "no measurable claim", "a diagram"),
    Other("cafe", "Figure 3", "The three steps of the attack", "no measurable claim", "a diagram"),
    Other(
        "cafe",
        "Figure 4",
        "The network of the parties",
        "no measurable claim",
        "an architecture; `vertical` is built after it",
    ),
    Other(
        "cpa",
        "Figure 1",
        "Gradients of a layer as mixtures of its inputs, and a reconstructed batch",
        "not run",
        "its batch of pictures could be recovered as in Figures 5 and 8, which show the same attack",
    ),
    Other("cpa", "Figure 2", "Federated learning and gradient inversion", "no measurable claim", "a diagram"),
    Other("cpa", "Figure 3", "The cocktail party problem", "no measurable claim", "a diagram"),
    Other("cpa", "Figure 4", "Attack on a network with convolutions", "no measurable claim", "a diagram"),
    Other(
        "fedleak",
        "Table 1",
        "Settings in which earlier attacks were tested",
        "no measurable claim",
        "a survey of other papers",
    ),
    Other(
        "fedleak",
        "Table 2",
        "Risk of each setting of the paper",
        "not run",
        "its words follow from the PSNR of Tables 3 to 9 by fixed limits; at the "
        "paper's size those tables are not complete",
    ),
    Other("fedleak", "Table 12", "Factors that earlier papers found", "no measurable claim", "a survey"),
    Other("fedleak", "Table 13", "Default batch sizes of libraries", "no measurable claim", "a survey"),
    Other("fedleak", "Figure 2", "The parts of the attack", "no measurable claim", "a diagram"),
    Other(
        "fedleak",
        "Figure 3",
        "Reconstructed batches",
        "not run",
        "pictures of Table 4 at batch 32, on images that may not be shown here; that table has their PSNR",
    ),
    Other(
        "fedleak",
        "Figure 11",
        "The private batches of Figure 3",
        "no measurable claim",
        "private images, without any result",
    ),
    Other(
        "fedleak",
        "Figure 12",
        "What ROGS recovers of one batch",
        "not run",
        "pictures of ROGS in Table 4 at batch 32, on images that may not be shown here; that table has their PSNR",
    ),
)
"""All sixteen: with the recipes' items they are the 67 tables and figures of the three papers."""
