"""Sequences from what layers have read: which tokens at which place, and which of them stood together.

The first layer that reads tokens says which token may have stood at which place, in any of the sequences. There a
vector is, up to scale, the sum of a token's row and a place's, so a token may also stand where it did not: with a at
1, b at 1 and b at 2 the sums a + 2 = (a + 1) - (b + 1) + (b + 2) lie in the span too. A deeper layer leaves no such
doubt: it reads vectors that depend on the tokens before (in decoders) or on all tokens of a sequence (in encoders),
so a sequence is right where its vectors lie in that layer's span. DAGER (Petrov et al., NeurIPS 2024) introduced both
checks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.base import Progress
from seepage.attacks.text.layers import Reader
from seepage.attacks.text.span import GradientSpan
from seepage.base.rounding import FLOAT32_NETWORK

CHUNK_NUMBERS = 2**24
"""Numbers of a block of candidates' vectors: 64 MiB in float32."""
MOST_PREFIXES = 2**14
"""Prefixes that are followed; where more lie in the span, the span excludes nothing."""
STEPS = 6
"""Steps of an encoder's search from one anchor."""
ANCHORS = 4
"""Places whose tokens are tried as anchors: two sequences may share the token at a place, but hardly at four."""
MOST_TRIES = 256
"""Anchors that are tried in all; every length of a batch with padding has its own."""


@dataclass(frozen=True, eq=False)
class LayerCheck:
    """A layer that has to have read every vector of a right sequence."""

    module: str
    span: GradientSpan
    weights: tuple[str, ...] = ()


def candidates(reader: Reader, first: LayerCheck, tokens: Tensor, length: int) -> list[Tensor]:
    """For each place the tokens that the first layer has read there.

    Args:
        reader: Runs the network.
        first: A layer whose vectors depend on a token and its place alone.
        tokens: `[v]` the tokens that come into question.
        length: Places.
    """
    found: list[list[Tensor]] = [[] for _ in range(length)]
    for part in tokens.split(max(1, CHUNK_NUMBERS // (length * first.span.width))):
        # A sequence of one token throughout: its vector at place p is that of the token at p.
        read = reader.read([first.module], part[:, None].expand(-1, length))[first.module]
        inside = first.span.inside(read.reshape(-1, read.shape[-1])).reshape(len(part), length).cpu()
        for place in range(length):
            found[place].append(part[inside[:, place]])
    return [torch.cat(parts) for parts in found]


def _excess(reader: Reader, checks: list[LayerCheck], ids: Tensor) -> Tensor:
    """`[k, tokens]` the largest distance of each token's vectors from the spans, in units of what noise explains."""
    if not len(ids):
        return torch.empty(ids.shape, dtype=torch.float64)
    modules, worst = [check.module for check in checks], []
    width = max(check.span.width for check in checks)
    for part in ids.split(max(1, CHUNK_NUMBERS // (4 * ids.shape[1] * width))):
        read = reader.read(modules, part)
        flat = (c.span.excess(read[c.module].reshape(-1, c.span.width)).reshape(part.shape) for c in checks)
        worst.append(torch.stack(list(flat)).amax(0).cpu())
    return torch.cat(worst)


def decode(reader: Reader, checks: list[LayerCheck], places: list[Tensor], progress: Progress) -> list[Tensor]:
    """Sequences of a decoder, token by token: a prefix goes on with each token whose vector lies in the spans.

    Returns:
        Token numbers of every prefix that nothing continues.
    """
    done: list[Tensor] = []
    prefixes = places[0][:, None]
    prefixes = prefixes[_excess(reader, checks, prefixes)[:, -1] <= 1]
    for place in range(1, len(places) + 1):
        progress.report(place, len(places), float(len(prefixes)))
        if not len(prefixes) or len(prefixes) > MOST_PREFIXES:
            break
        tokens = places[place] if place < len(places) else places[0][:0]
        longer = torch.cat(
            [prefixes.repeat_interleave(len(tokens), 0), tokens.repeat(len(prefixes))[:, None]], 1
        )  # [prefixes * tokens, place + 1]
        kept = torch.zeros(len(longer), dtype=torch.bool)
        if len(longer):
            kept = _excess(reader, checks, longer)[:, -1] <= 1
        ended = ~kept.reshape(len(prefixes), -1).any(1)
        done += list(prefixes[ended])
        prefixes = longer[kept]
    return done


def deepest(reader: Reader, checks: list[LayerCheck], found: list[Tensor], wanted: int) -> list[Tensor]:
    """Those `wanted` sequences whose vectors lie deepest in the spans, by the mean of their tokens' excess.

    Where noise lets in more than there are, a right one is no further out than the noise's usual size.
    """
    excess = torch.stack([_excess(reader, checks, row[None])[0].mean() for row in found])
    return [found[place] for place in excess.argsort(stable=True)[:wanted].tolist()]


def assemble(
    reader: Reader, checks: list[LayerCheck], places: list[Tensor], wanted: int | None, progress: Progress
) -> list[Tensor]:
    """Sequences of an encoder, in which every vector depends on all tokens, from an anchor: one token that is held.

    Attention adds up tokens, so the part of the anchor's vector outside the spans is nearly linear in which token
    stands where. Least squares gives these indicators all at once, place by place the largest is taken, and the step
    is repeated from there, as in Gauss-Newton. What comes out is kept only where every one of its vectors lies in the
    spans.

    Args:
        reader: Runs the network.
        checks: Layers behind the first attention.
        places: For each place the tokens that may have been there in any sequence.
        wanted: Number of sequences, where known.
        progress: Receives the number of sequences found.
    """
    found: list[Tensor] = []
    tried, equations = 0, sum(check.span.width - check.span.rank for check in checks)
    longest = next((p for p, tokens in enumerate(places) if not len(tokens)), len(places))
    for length in range(longest, 0 if reader.takes_shorter else len(places) - 1, -1):
        if sum(len(tokens) - 1 for tokens in places[:length]) > equations:
            continue  # more indicators than equations: nothing would be determined
        # Few tokens at a place leave few anchors to try; a place with fewer than there are sequences misses some.
        enough = min(wanted or 1, max(map(len, places[:length])))
        anchors = sorted((p for p in range(length) if len(places[p]) >= enough), key=lambda p: len(places[p]))
        for anchor in anchors[:ANCHORS]:
            for token in places[anchor].tolist():
                progress.report(len(found), wanted or len(found) + 1, float(length))
                if any(len(row) == length and row[anchor] == token for row in found):
                    continue
                tried += 1
                if tried > MOST_TRIES:
                    return found
                row = _from_anchor(reader, checks, places[:length], anchor, token, len(places))
                if row is not None and not any(torch.equal(row, other) for other in found):
                    found.append(row)
                if wanted is not None and len(found) >= wanted:
                    return found
    return found


def _from_anchor(
    reader: Reader, checks: list[LayerCheck], places: list[Tensor], anchor: int, token: int, width: int
) -> Tensor | None:
    """`[tokens]` the sequence with this token at the anchor's place, or None."""
    length, ids = len(places), torch.full((width,), -1, dtype=torch.int64)
    ids[:length] = torch.stack([tokens[anchor % len(tokens)] for tokens in places])
    ids[anchor] = token
    if length == 1:
        return ids[:1] if (_excess(reader, checks, ids[None])[0, :1] <= 1).all() else None
    least = torch.inf
    for _ in range(STEPS):
        others = [(p, int(t)) for p in range(length) if p != anchor for t in places[p] if t != ids[p]]
        tried = ids.repeat(len(others) + 1, 1)
        for row, (place, other) in enumerate(others, 1):
            tried[row, place] = other
        outside = _outside(reader, checks, tried, anchor)  # [1 + others, m]
        if float(outside[0].norm()) >= least:
            break  # it comes no nearer: the token never stood there, or the search is stuck
        least = float(outside[0].norm())
        # outside(ids) + sum_k w_k (outside(tried_k) - outside(ids)) = 0, with w_k near 1 for the right ones: least
        # squares with one column per other token [m, others], cut to directions that rounding does not fill.
        u, s, vt = torch.linalg.svd((outside[1:] - outside[0]).T, full_matrices=False)
        kept = s > FLOAT32_NETWORK * s[:1]
        w = vt[kept].T @ ((u[:, kept].T @ -outside[0]) / s[kept])
        before = ids.clone()
        for place in range(length):
            of_place = [k for k, (p, _) in enumerate(others) if p == place]
            if of_place:
                best = max(of_place, key=lambda k: float(w[k]))
                if w[best] > 1 - w[of_place].sum():  # what is left of 1 is the indicator of the present token
                    ids[place] = others[best][1]
        if torch.equal(ids, before):
            break
    right = (_excess(reader, checks, ids[None])[0, :length] <= 1).all()
    return ids[:length] if right else None


def _outside(reader: Reader, checks: list[LayerCheck], ids: Tensor, place: int) -> Tensor:
    """`[k, m]` the parts outside the spans of the vectors at one place, side by side, relative to their size."""
    modules, found = [check.module for check in checks], []
    width = max(check.span.width for check in checks)
    for rows in ids.split(max(1, CHUNK_NUMBERS // (4 * ids.shape[1] * width))):
        read, parts = reader.read(modules, rows), []
        for check in checks:
            x, basis = read[check.module][:, place].double(), check.span.basis  # [k, d], U [d, r]
            # x - U U^T x, zero for vectors that were read; each layer's in units of its vectors' length.
            parts.append((x - (x @ basis) @ basis.T) / x.norm(dim=1).mean())
        found.append(torch.cat(parts, 1).cpu())
    return torch.cat(found)
