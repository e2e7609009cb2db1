"""What the gradients of a language model's first layers reveal together."""

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.text import TokenSequences
from seepage.attacks.text.positions import places_of
from seepage.base.nn import vocabulary_of
from seepage.errors import Inapplicable
from seepage.federation.types import Knowledge, Round, Transcript


def text_findings(transcript: Transcript) -> list[ClosedForm]:
    """The tokens of a batch, and whether their order comes with them; none where model or round do not allow it.

    Args:
        transcript: Its first round is read.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> from seepage.base.nn import next_tokens
        >>> ids = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
        >>> model = build(Architecture("gpt", {"width": 32}), (5,), 90)
        >>> (found,) = text_findings(record(model, Batch(ids, next_tokens(ids))))
        >>> found.evidence["width"], found.evidence["ordered"], found.tensors[0]
        (32, True, 'blocks.0.query.weight')
    """
    vocabulary = vocabulary_of(transcript.knowledge.model)
    if vocabulary is None:
        return []
    try:
        seen = TokenSequences().prepare(transcript)
    except Inapplicable:
        return []
    checks, ordered = [seen.first, *seen.deeper], bool(seen.deeper)
    # An embedding that is the last layer as well has no row of zeros.
    tokens = len(seen.tokens) if len(seen.tokens) < vocabulary else None
    rank, width = seen.first.span.rank, seen.first.span.width
    identified = "" if tokens is None else f"the {tokens} tokens of the batch by name, and "
    what = "its texts, token by token" if ordered else "which tokens stood at which place, but not which together"
    message = (
        f"{identified}{what}, from what the first layers read: a span of {rank} directions, in which at "
        f"most {width - 2} tokens can be distinguished; token_sequences reads them, and withholding or noising these "
        "weights hides it"
    )
    evidence = {"rank": rank, "width": width, "identified": tokens, "ordered": ordered}
    limit = "No sequence was put together here: the attack does, and certifies it."
    tensors = tuple(name for check in checks for name in check.weights)
    return [ClosedForm(name="text", message=message, evidence=evidence, limit=limit, tensors=tensors)]


def place_findings(knowledge: Knowledge, observed: Round) -> list[ClosedForm]:
    """Which token stood at which place, by sums of rows of two tables; none where nothing adds up.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
    """
    found = places_of(knowledge, observed)
    if found is None or not any(found.tokens):
        return []
    known, most = sum(map(bool, found.tokens)), max(map(len, found.tokens))
    return [
        ClosedForm(
            name="places",
            message=found.words,
            evidence={"places": len(found.tokens), "known": known, "most": most, "further": found.further},
            limit="Of several texts it stays open which tokens of two places stood together.",
            tensors=found.tables,
            examples=int(found.text is not None),
        )
    ]
