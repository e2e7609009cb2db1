"""Which tensors of a model were sent, and why the others were not."""

from dataclasses import dataclass

from torch import nn

from seepage.federation.types import Knowledge, Round


@dataclass(frozen=True)
class SentParts:
    """How much of a model an update holds. Numbers are entries of tensors.

    Attributes:
        tensors: Tensors sent.
        numbers: Numbers sent.
        of_tensors: Parameters of the model.
        of_numbers: Numbers in them.
        withheld: Parameters that the client trained and did not send.
        personal: Parameters that are the client's own: their weights were never seen either.
        frozen: Parameters that the client did not train.
    """

    tensors: int
    numbers: int
    of_tensors: int
    of_numbers: int
    withheld: tuple[str, ...] = ()
    personal: tuple[str, ...] = ()
    frozen: int = 0

    @property
    def whole(self) -> bool:
        """Whether the update holds all of the model."""
        return self.tensors == self.of_tensors

    @property
    def line(self) -> str:
        """In words.

        >>> SentParts(2, 30, 5, 1030, withheld=("head.bias",), frozen=2).line
        "sent: 2 of 5 tensors, 30 of 1,030 numbers; frozen: 2; withheld: 1 ('head.bias')"
        """
        words = [f"sent: {self.tensors} of {self.of_tensors} tensors, {self.numbers:,} of {self.of_numbers:,} numbers"]
        words += [f"frozen: {self.frozen}"] * bool(self.frozen)
        for what, names in (("withheld", self.withheld), ("the client's own", self.personal)):
            more = ", ..." if len(names) > 3 else ""
            words += [f"{what}: {len(names)} ({', '.join(map(repr, names[:3]))}{more})"] * bool(names)
        return "; ".join(words)


def sent_parts(observed: Round, model: nn.Module) -> SentParts:
    """What of a model's parameters a round's update holds."""
    own = dict(model.named_parameters())
    sent, known = observed.update.tensors, observed.params.keys() | observed.personal
    return SentParts(
        tensors=len(sent),
        numbers=sum(observed.params[name].numel() for name in sent),
        of_tensors=len(own),
        of_numbers=sum(parameter.numel() for parameter in own.values()),
        withheld=observed.withheld,
        personal=tuple(sorted(observed.personal)),
        frozen=sum(name not in known for name in own),
    )


def sent_words(observed: Round, knowledge: Knowledge | nn.Module) -> str:
    """The same in words."""
    model = knowledge.model if isinstance(knowledge, Knowledge) else knowledge
    return sent_parts(observed, model).line
