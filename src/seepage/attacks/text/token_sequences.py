"""Whole batches of text, exactly, from the gradients of the layers that read the tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.network import AttackedRound, vouch
from seepage.attacks.text.layers import Reader, TokenLayer
from seepage.attacks.text.sequences import LayerCheck, assemble, candidates, decode, deepest
from seepage.attacks.text.span import GradientSpan
from seepage.attacks.text.targets import targets_by_errors
from seepage.attacks.text.unread import targets_by_direction
from seepage.base.adapters import inside_adapters
from seepage.base.nn import as_inputs, codes_of, next_tokens, token_table, vocabulary_of
from seepage.base.registry import attacks
from seepage.federation.types import Batch, Reconstruction, Tensors, Transcript

TEXT_MISMATCH = 3e-3
"""Relative difference of the network's own update at the text from the observed one, up to which it is certified.

Twice what rounding an update to bfloat16 left of a right text, 1.6e-3; texts on record that it refused are off by 0.4.
"""
REMEDY = "lower the batch size or the number of tokens"


@dataclass(frozen=True)
class TokenGradients:
    """What the attack works on.

    Attributes:
        attacked: The round.
        reader: Runs the network.
        tokens: `[v]` the tokens that come into question.
        first: The layer that reads tokens one by one.
        deeper: Layers that read them in their context, in the order of their calls.
        causal: Whether the network is a decoder.
    """

    attacked: AttackedRound
    reader: Reader
    tokens: Tensor
    first: LayerCheck
    deeper: list[LayerCheck]
    causal: bool


@attacks.register(
    "token_sequences",
    paper="after DAGER (Petrov et al., NeurIPS 2024), without rank tolerances",
    cost="seconds to minutes (closed form and forward passes)",
)
@dataclass(frozen=True, kw_only=True)
class TokenSequences(Attack):
    """Reads whole batches of text out of a transformer's update, token by token, and proves them.

    The gradient of a query, key or value weight is a sum of outer products over tokens, so it spans the vectors that
    the layer has read. In the first block a vector depends on the token and its place alone: every token of the
    vocabulary is tried at every place, and lies in the span or not. Behind the first attention a vector depends on
    the tokens before it, so in a decoder each prefix is extended by the tokens whose vectors lie in the second span;
    in an encoder, where it depends on all tokens, sequences are searched for and are right where all their vectors
    lie in it. Both checks are DAGER's (Petrov et al., NeurIPS 2024).

    Differences: there is no tolerance to set. Rank and noise floor come from the singular values of each gradient,
    and a vector lies in the span where noise of that size explains its distance. Encoders are searched place by place
    instead of by enumeration. Labels, and the last token of a text whose next tokens are predicted, which no layer
    reads, follow from the errors in the last layer, by least squares.

    It reads as many distinct tokens as a token has numbers, less two: above that the span is everything.

    A batch is certified where the network's own update at it is the observed one, to 0.3 %.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("gpt", {"width": 32}), (6,), 90)
        >>> ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])
        >>> targets = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
        >>> found = TokenSequences()(record(model, Batch(ids, targets)), seed=0)
        >>> found.inputs.tolist(), found.certified
        ([[2, 7, 1, 8, 2, 8], [3, 1, 4, 1, 5, 9]], tensor([True, True]))
    """

    needs: ClassVar[Needs] = Needs(
        text="a network that embeds tokens; fewer tokens in the batch than a token has numbers",
        linear_in_gradient="no gradient spans what a layer has read",
        instead="token_set, which needs no gradient",
    )

    def examine(self, transcript: Transcript) -> TokenGradients:
        """Find the layers, and what their gradients span.

        Raises:
            Inapplicable: Where the network reads no tokens, or its gradients span everything.
        """
        attacked = AttackedRound.of(transcript)
        vocabulary, gradient = vocabulary_of(attacked.model), attacked.gradient
        if vocabulary is None or len(attacked.knowledge.input_shape) != 1:
            raise refuse("no_tokens")(
                "the network does not begin with an embedding of tokens",
                "use inverting_gradients for images and tables",
            )
        if codes_of(attacked.model) is not None:
            raise refuse("fields")("each number of an example is a code of a field of its own", "use token_set")
        reader = Reader(attacked)
        layers = [layer for layer in reader.layers(vocabulary) if layer.mixtures(gradient).any()]
        adapters = bool(inside_adapters(attacked.model))
        first = next((check for check in _checks(layers, gradient, local=True, adapters=adapters)), None)
        if first is None:
            raise refuse("full_span")(
                "no fully connected layer that reads single tokens sends a gradient that spans less than everything "
                "(there is none, the batch has too many tokens, or query, key and value are withheld or noised)",
                REMEDY,
            )
        causal = all(layer.causal for layer in layers)
        deeper = _checks(layers, gradient, local=False, adapters=adapters)
        return TokenGradients(attacked, reader, _present(attacked, vocabulary), first, deeper, causal)

    def run(self, seen: TokenGradients, /, *, seed: int, progress: Progress) -> Reconstruction:
        """Find the tokens at each place, then sequences, then what no layer reads; prove the result."""
        wanted, length = seen.attacked.observed.batch_size, seen.attacked.knowledge.input_shape[0]
        places = candidates(seen.reader, seen.first, seen.tokens, length)
        notes = [f"{sum(map(len, places))} tokens at {length} places, by {seen.first.module}"]
        found: list[Tensor] = []
        if not seen.deeper:
            notes.append("which tokens stood together stays open: deeper layers span everything")
        elif seen.causal:
            found = decode(seen.reader, seen.deeper, places, progress)
        else:
            found = assemble(seen.reader, seen.deeper, places, wanted, progress)
        if not seen.reader.takes_shorter:
            # No layer reads the last token of a decoder of next tokens, which is open and not missing.
            last_open = seen.causal and not _one_label(seen.attacked)
            found = [row for row in found if len(row) >= length - last_open]
        if not found:
            return Reconstruction(
                torch.empty(0, length, dtype=torch.int64, device=seen.reader.device), notes=tuple(notes)
            )
        if wanted is not None and len(found) > wanted:
            notes.append(f"{len(found)} sequences lie in the spans, the {wanted} that lie deepest are kept")
            found = deepest(seen.reader, seen.deeper, _without_repeats(found), wanted)
        ids = pad_sequence(sorted(found, key=lambda row: row.tolist()), batch_first=True, padding_value=-1)
        ids = torch.nn.functional.pad(ids, (0, length - ids.shape[1]), value=-1)
        batch, complete = _completed(seen, ids), wanted is None or len(ids) == wanted
        if not complete:
            notes.append(f"{len(ids)} of {wanted} sequences lie in the spans")
        difference = torch.inf
        if complete and batch is not None:
            difference, _ = vouch(seen.attacked, batch.inputs, batch.labels)
            notes.append(f"the network's own update at this text differs by {difference:.1e}")
        labels = None if batch is None or batch.labels.ndim > 1 else batch.labels
        device = seen.reader.device
        return Reconstruction(
            inputs=(ids if batch is None else batch.inputs).to(device),
            labels=labels,
            certified=torch.full((len(ids),), difference <= TEXT_MISMATCH, device=device),
            notes=tuple(notes),
        )


def _without_repeats(found: list[Tensor]) -> list[Tensor]:
    """The sequences but for those of one token alone, where another begins with that token.

    Where no position is added to the tokens (rotary or relative positions), attention over a token repeated gives what
    the token alone gives, so its repetition lies in every span.
    """
    return [
        row
        for row in found
        if len(row) == 1
        or bool((row != row[0]).any())
        or not any(other[0] == row[0] and bool((other != other[0]).any()) for other in found)
    ]


def _checks(layers: list[TokenLayer], gradient: Tensors, *, local: bool, adapters: bool = False) -> list[LayerCheck]:
    """The first layers of one kind whose gradient does not span everything: one of tokens alone, some in context.

    A decoder's prefixes need two. In an encoder every number outside a span is an equation, and the third layer, behind
    the activation, has the most. Of low-rank adapters those count that show the most of what was read: the query's does
    not show the first token, and one whose every column is independent may show a part of the span alone.
    """
    found: list[LayerCheck] = []
    wanted = 1 if local else 2 if all(layer.causal for layer in layers) else 3
    for layer in layers:
        if layer.local == local and (len(found) < wanted or adapters):
            mixtures = layer.mixtures(gradient)
            span = GradientSpan.of(mixtures)
            usable = span.informative and (not adapters or span.rank < mixtures.shape[1])
            found += [LayerCheck(layer.module, span, tuple(name for name, _ in layer.weights))] * usable
    if not adapters:
        return found
    # An adapter's A reads whole tokens, its B only `rank` numbers: the wider check tells more.
    found.sort(key=lambda check: -check.span.width)
    largest = max((check.span.rank for check in found), default=0)
    return [check for check in found if check.span.rank == largest][:wanted]


def _present(attacked: AttackedRound, vocabulary: int) -> Tensor:
    """`[v]` tokens whose row of the embedding's gradient is not zero: the batch's, unless the weight is shared."""
    layer = token_table(attacked.model)
    rows = None if layer is None else attacked.gradient.get(f"{layer[0]}.weight" if layer[0] else "weight")
    used = None if rows is None else rows.any(1).nonzero().flatten().cpu()
    return torch.arange(vocabulary) if used is None or not len(used) else used


def _completed(seen: TokenGradients, ids: Tensor) -> Batch | None:
    """The batch with what no layer reads: labels of sequences, or the last token of each and all targets."""
    attacked = seen.attacked
    if not attacked.knowledge.client.softmax_gradient:
        return None
    ids = ids.to(seen.reader.device)
    lengths = (ids >= 0).sum(1)
    one_label = not seen.causal or _one_label(attacked)
    places, count = (None, len(ids)) if one_label else (lengths - 1, int(lengths.sum()))
    # What stands at open places moves nothing that a decoder makes of the others.
    run = ids if seen.reader.takes_shorter else ids.clamp(min=0)
    found = None if inside_adapters(attacked.model) else targets_by_errors(attacked, run, places, count)
    if found is None:
        found = targets_by_direction(attacked, run, places, None if one_label else next_tokens(ids))
    if one_label:
        return Batch(ids, found)
    if not (lengths < ids.shape[1]).all():
        return None
    ids = ids.clone()
    ids[torch.arange(len(ids)), lengths] = found
    return Batch(ids, next_tokens(ids))


def _one_label(attacked: AttackedRound) -> bool:
    """Whether the network says one thing of a sequence, not one of each token."""
    zeros = torch.zeros(1, *attacked.knowledge.input_shape, device=attacked.like().device)
    with torch.no_grad():
        return attacked.forward(as_inputs(attacked.model, zeros))[0].ndim == 2
