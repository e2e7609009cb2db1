"""What the gradients of a language model's first layers reveal together."""

from dataclasses import dataclass

from seepage.attacks.exposure.finding import Finding
from seepage.attacks.text import TokenSequences
from seepage.base.nn import vocabulary_of
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript


@dataclass(frozen=True)
class TextLeak:
    """What the first layers' gradients span.

    Attributes:
        tensors: Names of the weights that the tokens and their order are read from.
        rank: Independent vectors that the layer of single tokens has read.
        width: Numbers of a vector: as many tokens less two can be read.
        identified: Number of tokens whose rows of the embedding's gradient are not zero; None where that are all, as in
            an embedding that is the last layer as well.
        ordered: Whether deeper layers show which tokens stood together.
    """

    tensors: tuple[str, ...]
    rank: int
    width: int
    identified: int | None
    ordered: bool


def text_leak(transcript: Transcript) -> TextLeak | None:
    """Look at the spans of a language model's update; None where the model or the round does not allow it.

    Args:
        transcript: Its first round is read.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> from seepage.base.nn import next_tokens
        >>> ids = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
        >>> model = build(Architecture("gpt", {"width": 32}), (5,), 90)
        >>> leak = text_leak(record(model, Batch(ids, next_tokens(ids))))
        >>> leak.width, leak.ordered, leak.tensors[0]
        (32, True, 'blocks.0.query.weight')
    """
    vocabulary = vocabulary_of(transcript.knowledge.model)
    if vocabulary is None:
        return None
    try:
        seen = TokenSequences().prepare(transcript)
    except Inapplicable:
        return None
    checks = [seen.first, *seen.deeper]
    identified = len(seen.tokens) if len(seen.tokens) < vocabulary else None
    tensors = tuple(name for check in checks for name in check.weights)
    return TextLeak(tensors, seen.first.span.rank, seen.first.span.width, identified, bool(seen.deeper))


def text_findings(leak: TextLeak | None) -> list[Finding]:
    """The tokens of a batch, and whether their order comes with them."""
    if leak is None:
        return []
    identified = "" if leak.identified is None else f"the {leak.identified} tokens of the batch by name, and "
    what = "its texts, token by token" if leak.ordered else "which tokens stood at which place, but not which together"
    message = (
        f"{identified}{what}, from what the first layers read: a span of {leak.rank} directions, in which at most "
        f"{leak.width - 2} tokens can be distinguished; token_sequences reads them, and withholding or noising these "
        "weights hides it"
    )
    evidence = {"rank": leak.rank, "width": leak.width, "identified": leak.identified, "ordered": leak.ordered}
    limit = "No sequence was put together here: the attack does, and certifies it."
    return [Finding(name="text", message=message, evidence=evidence, limit=limit, tensors=leak.tensors)]
