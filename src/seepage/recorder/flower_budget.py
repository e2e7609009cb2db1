"""Flower: a run that ends when the clients' privacy is spent. Needs `seepage[flower]`.

app = ClientApp(mods=[budget_mod(Budget(ledger, epsilon=8.0))])    # on the client: the outermost mod
strategy = HaltingStrategy(FedAvg())                                 # on the server: ends the run
"""

import logging
from collections.abc import Callable, Iterable

from seepage.errors import SeepageError, not_installed
from seepage.recorder.accountants import flower_entry
from seepage.recorder.budget import Budget
from seepage.recorder.flower_hooks import Mod, Next, client_of, is_train, round_of
from seepage.recorder.flower_strategy import StrategyAround
from seepage.recorder.opacus import Ledger

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.exception import PrivacyBudgetExhausted
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise not_installed("Flower", "flower") from error

SPENT = 452
"""Code of the error that goes out in place of a reply that the budget holds back."""
SERVER = "server"
"""Name in the ledger of what all clients together spend by the server's own noise."""
log = logging.getLogger("flwr")


def budget_mod(budget: Budget) -> Mod:
    """A mod that lets no update out that the budget does not allow. Put it first in the list.

    A client whose ledger is spent does not train anymore. One that trains, and whose ledger then says more than the
    budget or nothing, answers with an error (code 452) in place of its update. A ledger that cannot be read holds
    everything back.

    Args:
        budget: The client's. Its code adds a line for each round to the ledger: `Ledger.record` or `Ledger.add`.
    """

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        if not is_train(message):
            return call_next(message, context)
        client, t = client_of(context), round_of(message)
        why = _said(lambda: budget.spent(client))
        if why is None:
            reply = call_next(message, context)
            if reply.has_error():
                return reply
            why = _said(lambda: budget.refusal(client, t))
            if why is None:
                return reply
        log.warning("seepage: round %d, client %s: the privacy budget holds the update back: %s", t, client, why)
        return Message(Error(SPENT, f"the privacy budget is spent: {why}"), reply_to=message)

    return mod


def _said(why: Callable[[], str | None]) -> str | None:
    try:
        return why()
    except SeepageError as error:
        return f"the ledger cannot be read: {error}"


class HaltingStrategy(StrategyAround):
    """Any strategy of Flower's, in a run that ends when no client has privacy left.

    It ends by Flower's own `PrivacyBudgetExhausted`, before the next round, where every client that was asked answered
    that its budget is spent. Replies of others are aggregated as ever.

    Args:
        strategy: The strategy that trains.
        ledger: Where the strategy has Flower's accountant, as those of fixed clipping may, what it states goes here in
            a line for each round, under the name `server`; None: nowhere.
        epsilon: Most that Flower's accountant may state; above, the run ends as well. None: its own `max_epsilon`.

    Raises:
        SeepageError: For a budget of a strategy without an accountant.
    """

    def __init__(self, strategy: Strategy, *, ledger: Ledger | None = None, epsilon: float | None = None) -> None:
        self.strategy, self.ledger, self.epsilon = strategy, ledger, epsilon
        self.accountant = getattr(strategy, "accountant", None)
        if epsilon is not None and self.accountant is None:
            raise SeepageError(
                "this strategy has no accountant, so a budget on the server counts nothing; leave epsilon out, and "
                "give the clients budget_mod"
            )
        self._why: str | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does, unless nothing is left to spend."""
        if self._why is not None:
            raise PrivacyBudgetExhausted(self._why)
        messages: Iterable[Message] = self.strategy.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """As the strategy does, of the replies that came."""
        listed = list(replies)
        refused = [reply for reply in listed if reply.has_error() and reply.error.code == SPENT]
        if listed and len(refused) == len(listed):
            self._why = f"round {server_round}: every client answers that its privacy budget is spent"
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(server_round, listed)
        self._count(server_round)
        return found

    def _count(self, t: int) -> None:
        if self.accountant is None:
            return
        entry = flower_entry(self.accountant, clip=getattr(self.strategy, "clipping_norm", None))
        if self.ledger is not None:
            self.ledger.add(entry, t=t, client=SERVER)
        if self.epsilon is not None and (entry.epsilon is None or entry.epsilon >= self.epsilon):
            self._why = f"round {t}: {entry.line}, and the budget is {self.epsilon:g}"
