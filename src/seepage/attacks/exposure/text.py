"""What the gradients of a language model's first layers reveal together."""

from contextlib import suppress

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.network.outputs import draws
from seepage.attacks.text import TokenSequences
from seepage.attacks.text.bags import bags_of
from seepage.attacks.text.positions import places_of
from seepage.attacks.text.token_set import LookedUp, looked_up
from seepage.base.nn import Table, as_inputs, captured_calls, codes_of, in_mode, token_table, vocabulary_of
from seepage.base.words import plural
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.models.naming import tied_names
from seepage.federation.types import Knowledge, Round, Transcript

IF_PLAIN = ", if no dropout stood before them"
"""What it rests on where a pass in train mode draws random numbers: dropout makes other vectors of a token."""


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
    # Of an embedding that is the last layer as well every row has a gradient, and rounding leaves some zero.
    table, tied = token_table(transcript.knowledge.model), tied_names(transcript.knowledge.model).values()
    alone = table is not None and f"{table[0]}.weight".removeprefix(".") not in tied
    tokens = len(seen.tokens) if alone and len(seen.tokens) < vocabulary else None
    rank, width = seen.first.span.rank, seen.first.span.width
    identified = "" if tokens is None else f"the {tokens} tokens of the batch by name, and "
    what = "its texts, token by token" if ordered else "which tokens stood at which place, but not which together"
    knowledge = transcript.knowledge
    condition = IF_PLAIN * (
        knowledge.client.mode == "train" and draws(knowledge.model, knowledge.input_shape) is not False
    )
    message = (
        f"{identified}{what}, from what the first layers read{condition}: a span of {rank} directions, in which at "
        f"most {width - 2} tokens can be distinguished; token_sequences reads them, and withholding or noising these "
        "weights hides it"
    )
    evidence = {"rank": rank, "width": width, "identified": tokens, "ordered": ordered, "condition": condition}
    limit = "No sequence was put together here: the attack does, and certifies it."
    tensors = tuple(name for check in checks for name in check.weights)
    return [ClosedForm(name="text", message=message, evidence=evidence, limit=limit, tensors=tensors)]


MOST_COLUMNS = 16
"""Numbers of an example up to which it is tried which table looks each of them up."""


def code_findings(knowledge: Knowledge, observed: Round, size: int | None) -> list[ClosedForm]:
    """Which rows of each table were looked up; and the examples, where that leaves no choice.

    Where all columns of an example are codes, and all examples have the same ones but in one column, in which they have
    as many as they are, every example is known: as the items of one user.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
        size: Examples behind it, where that is known.
    """
    found, tables = dict[str, LookedUp](), [n for n, one in knowledge.model.named_modules() if isinstance(one, Table)]
    for name in tables:
        with suppress(SeepageError):  # places, a shared table, or one whose rows do not tell
            found[name] = looked_up(knowledge, observed, name)
    # A table of which every row, or all but one, was looked up does not tell its decay, which another one does.
    like = max((one.rows for one in found.values()), key=lambda rows: rows.still, default=None)
    for name in [name for name in tables if name not in found and like is not None]:
        with suppress(SeepageError):
            found[name] = looked_up(knowledge, observed, name, like)
    codes = {name: one.rows.moved.nonzero().flatten().tolist() for name, one in found.items()}
    columns = _columns(knowledge, list(found)) if len(knowledge.input_shape) == 1 and size is not None else {}
    held = [set(codes[columns[place]]) for place in range(knowledge.input_shape[0]) if place in columns]
    sizes = sorted(map(len, held))
    known = len(held) == knowledge.input_shape[0] > 1 and sizes[:-1] == [1] * (len(held) - 1) and sizes[-1] == size
    known &= not any(one.hidden or one.open for one in found.values())
    table = token_table(knowledge.model)
    # A text's, of which the table looks up all numbers alike.
    alone = table[0] if table is not None and list(codes) == [table[0]] and codes_of(knowledge.model) is None else None
    return [
        ClosedForm(
            name="codes",
            message=plural(len(own), f"distinct {'token' if name == alone else 'code'}")
            + _perhaps_more(found[name])
            + f", by the rows of {found[name].name}"
            + f" that moved{'; with the other columns, all examples' * known}",
            evidence={"table": name, "rows": own, "tokens": name == alone, "all": not _perhaps_more(found[name])},
            limit="How often each was looked up, and which of several tables together, is not told by rows alone.",
            tensors=(found[name].name,),
            examples=size if known and size is not None else 0,
        )
        for name, own in codes.items()
    ]


def _perhaps_more(found: LookedUp) -> str:
    more = f", and perhaps {found.open:,} more that moved by too little to tell" if found.open else ""
    more = ", and perhaps more that a decay in the gradient hides" if found.hidden else more
    if found.silent:
        more += ", and perhaps more that left no gradient"
    return more + (f", and perhaps the padding's, {found.padding}" if found.padding is not None else "")


def _columns(knowledge: Knowledge, tables: list[str]) -> dict[int, str]:
    """Which table looks up each number of an example, by changing one at a time; none of examples of many numbers."""
    (width,), model = knowledge.input_shape, knowledge.model
    if width > MOST_COLUMNS or not tables:
        return {}
    base = as_inputs(model, torch.zeros((1, width)).to(next(model.parameters())))
    found = dict[int, str]()
    with suppress(Exception):  # user code, and tables of one row, may raise anything: what is known stays
        read = _reads(model, tables, base)
        for place in range(width):
            other = base.clone()
            other[0, place] = 1
            moved = [name for name, value in _reads(model, tables, other).items() if not torch.equal(value, read[name])]
            found |= {place: moved[0]} if moved else {}
    return found


def _reads(model: nn.Module, tables: list[str], inputs: Tensor) -> dict[str, Tensor]:
    with torch.no_grad(), in_mode(model, training=False), captured_calls(model, tables) as calls:
        model(inputs)
    return {name: one[0].input for name, one in calls.items()}


def bag_findings(knowledge: Knowledge, observed: Round) -> list[ClosedForm]:
    """Which tokens stood together, where a network reads sums of word vectors; none where rows do not tell."""
    found = bags_of(knowledge, observed)
    if found is None:
        return []
    return [
        ClosedForm(
            name="bags",
            message=found.words,
            evidence={"texts": found.texts, "open": found.open},
            limit="Counts are multiples of the rarest token's; the order has no part in such a network.",
            tensors=(found.table,),
        )
    ]


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
            evidence={"tokens": found.tokens, "known": known, "most": most, "further": found.further},
            limit="Of several texts it stays open which tokens of two places stood together.",
            tensors=found.tables,
            examples=int(found.text is not None),
        )
    ]
