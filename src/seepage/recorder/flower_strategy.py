"""Flower: a strategy around another one. Needs `seepage[flower]`."""

from collections.abc import Iterable

from seepage.errors import not_installed

try:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
except ImportError as error:
    raise not_installed("Flower", "flower") from error


class StrategyAround(Strategy):
    """A strategy that evaluates and sums up as another one does; training is left to subclasses.

    Attributes:
        strategy: The other one.
    """

    strategy: Strategy

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()
