"""The client step: the rule computes an update, then the defense is applied. All updates are made here."""

from dataclasses import dataclass, replace

from torch import nn

from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation.types import Batch, ClientUpdate, ClientView, Defense, Tensors, Update


@dataclass(frozen=True)
class Client:
    """A client of the protocol. It stores no examples; those of each round are passed to `send`.

    Attributes:
        rule: The rule that computes the update from the examples.
        defense: The defense that is applied to the update before it is sent.
        seed: Seeds, together with the round, the order of the examples and the defense.
        purpose: A word mixed into the seed of the defense, so that a federation's training and its audited round
            draw different noise.
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
        neighbor: Update | None = None,
    ) -> Update:
        """The update that the client sends, after the defense.

        Args:
            model: The architecture; its own weights are not read.
            params: The weights that the server sent, by name.
            batch: The client's examples.
            buffers: The model's buffers, by name; None: those of the module.
            t: Index of the round, from 0.
            number: Index of this client among those whose updates are summed, from 0.
            clients: Number of clients whose updates are summed.
            draw: Third part of the seed, beside `seed` and `purpose`. None: `t * clients + number`, which differs
                between all clients and rounds, so that no two share randomness.
            neighbor: Undefended update of the client before it, for a defense that needs it (`needs_neighbor`).

        Returns:
            The update, of the kind that the rule sends.
        """
        draw = t * clients + number if draw is None else draw
        rule = self.rule.for_round(self.seed, draw)
        update = rule(model, params, batch, buffers=buffers)
        view = ClientView(model, params, batch, rule, buffers or {}, t, number, clients, neighbor)
        return self.defended(update, view, draw)

    @property
    def needs_neighbor(self) -> bool:
        """Whether `send` is to be given the plain update of the client before this one, which `undefended` computes."""
        return self.defense is not None and self.defense.needs_neighbor

    @property
    def undefended(self) -> "Client":
        """A copy of the client without a defense."""
        return replace(self, defense=None)

    def defended(self, update: Update, view: ClientView, draw: int) -> Update:
        """The update after the defense; the update itself where there is none.

        Args:
            update: What the rule computed.
            view: What the defense may read of the client.
            draw: Third part of the seed of the defense's randomness, as in `send`.

        Raises:
            SeepageError: For a defense that returns no update.
        """
        if self.defense is None:
            return update
        found: object = self.defense(update, view, generator=generator(self.seed, self.purpose, draw))
        if not isinstance(found, Update):  # a defense may be user code
            raise SeepageError(
                f"the defense {type(self.defense).__name__} returned a {type(found).__name__} instead of a "
                "seepage.Update; return Update(tensors, update.kind)"
            )
        return found
