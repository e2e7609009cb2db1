"""One client's turn: rule, then update, then defense, each with its own randomness. Nothing else makes an update."""

from dataclasses import dataclass

from torch import nn

from seepage.core.nn import generator
from seepage.types import Batch, ClientUpdate, ClientView, Defense, Tensors, Update


@dataclass(frozen=True)
class Client:
    """A client of the protocol, which holds no examples: it is handed those of each round.

    Attributes:
        rule: What it computes from them.
        defense: What it does to its update before sending it.
        seed: Seeds the client's own order of its examples and its defense, together with the round.
        purpose: What the defense's randomness is drawn for, so that a federation's training and its audited round draw
            their noise apart.
    """

    rule: ClientUpdate
    defense: Defense | None = None
    seed: int = 0
    purpose: str = "defense"

    def send(
        self,
        model: nn.Module,
        params: Tensors,
        batch: Batch,
        *,
        buffers: Tensors | None = None,
        t: int = 0,
        number: int = 0,
        clients: int = 1,
        draw: int | None = None,
    ) -> Update:
        """What leaves the client.

        Args:
            model: The architecture.
            params: The weights that it was sent.
            batch: Its examples.
            buffers: The model's buffers; None: those of the module.
            t: The round.
            number: Its place among the clients whose updates are summed.
            clients: How many these are.
            draw: What seeds its randomness beside `seed`; None: round and number, so that no two clients share any.
        """
        draw = t * clients + number if draw is None else draw
        rule = self.rule.for_round(self.seed, draw)
        update = rule(model, params, batch, buffers=buffers)
        view = ClientView(model, params, batch, rule, buffers or {}, t, number, clients)
        return self.defended(update, view, draw)

    def defended(self, update: Update, view: ClientView, draw: int) -> Update:
        """An update after the defense."""
        if self.defense is None:
            return update
        return self.defense(update, view, generator=generator(self.seed, self.purpose, draw))
