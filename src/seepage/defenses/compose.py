"""Several defenses, one after the other."""

from dataclasses import dataclass

from torch import Generator

from seepage.errors import SeepageError
from seepage.types import ClientView, Defense, Update


@dataclass(frozen=True)
class Compose(Defense):
    """Apply defenses from left to right, all from one generator.

    Args:
        parts: The defenses. One that makes the update anew from the batch, such as `dp_sgd`, can only come first.

    Example:
        >>> from seepage.defenses import DPSGD, Soteria
        >>> both = Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5)))  # FedLeak, Figure 5
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        for part in self.parts[1:]:
            if part.from_batch:
                raise SeepageError(
                    f"{type(part).__name__} makes the update anew from the batch, so the defenses before it would be "
                    "lost; put it first"
                )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        for part in self.parts:
            update = part(update, client, generator=generator)
        return update
