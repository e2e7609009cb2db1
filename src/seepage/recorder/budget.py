"""A halting rule: no update leaves that takes a client's ledger above its budget, and none that nobody counted."""

import math
from dataclasses import dataclass

from seepage.errors import SeepageError
from seepage.measure.privacy.ledger import LedgerEntry, read_entry
from seepage.recorder.opacus import Ledger


@dataclass(frozen=True)
class Budget:
    """What a client may spend, over all rounds.

    An update may leave where the client's ledger has a line of that very round whose epsilon, which counts the round,
    is within the budget. A line without an epsilon, or none at all, holds the update back: nobody knows what it costs.
    What was spent by updates that left is then never above the budget, as far as the ledger's accountant is right.

    Attributes:
        ledger: The client's ledger.
        epsilon: Most that may be spent.
        delta: Largest delta that a line may state its epsilon for; None: any below 1.

    Raises:
        SeepageError: For a budget out of range.
    """

    ledger: Ledger
    epsilon: float
    delta: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf or (self.delta is not None and not 0 <= self.delta < 1):
            raise SeepageError(
                f"a budget needs epsilon > 0 and delta in [0, 1), got epsilon={self.epsilon}, delta={self.delta}; "
                "correct it"
            )

    def spent(self, client: int | str) -> str | None:
        """Why a client need not train another round; None where it may, as where nothing was counted yet.

        Args:
            client: The client's number or name, as in the ledger.
        """
        rows = self.ledger.rows(client)
        return self._over(read_entry(rows[-1])) if rows else None

    def refusal(self, client: int | str, t: int) -> str | None:
        """Why the update of a round may not leave; None where it may.

        Args:
            client: The client's number or name, as in the ledger.
            t: The round.
        """
        row = next((row for row in self.ledger.rows(client) if row["t"] == t), None)
        if row is None:
            return f"the ledger has no line of round {t}, so nobody knows what it costs"
        return self._over(read_entry(row))

    def _over(self, entry: LedgerEntry | None) -> str | None:
        if entry is None or entry.epsilon is None:
            return "the ledger states no epsilon"
        if entry.epsilon > self.epsilon:
            return f"epsilon {entry.epsilon:.3g} is above the budget of {self.epsilon:g}"
        if entry.delta >= 1 or (self.delta is not None and entry.delta > self.delta):
            return f"epsilon is stated for delta {entry.delta:g}, above that of the budget"
        return None
