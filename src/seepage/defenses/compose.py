"""Several defences, one after the other."""

from dataclasses import dataclass

from torch import Generator

from seepage.types import ClientView, Defense, Update


@dataclass(frozen=True)
class Compose(Defense):
    """Apply defences from left to right, all from one generator.

    Args:
        parts: The defences.
    """

    parts: tuple[Defense, ...]

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        for part in self.parts:
            update = part(update, client, generator=generator)
        return update
