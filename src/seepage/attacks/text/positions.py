"""Which token stood at which place, by a table of places whose rows are sums of the same vectors as the words' rows.

Where a network adds a vector of the token v and one of its place t before anything else, both have the gradient d_it
of the sum, text by text. With E the table of words and P that of places,

    dL/dE_v = sum over i, t with token v of d_it        dL/dP_t = sum over i of d_it

whatever stands behind: dropout, a mask, any loss. A place's row is then the sum of the rows of the tokens that stood
there, as far as each stood nowhere else; and of one text each word's row is the sum of its places' rows. Which rows add
up is searched for, and proved where they do within the errors of all numbers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from seepage.base.nn import captured_calls, forward, generator, in_mode, padding_row, token_table
from seepage.base.rounding import DEVIATIONS, FALSE_ALARM, FLOAT32_NETWORK, FLOAT32_SUM
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round, Update

WIDTH = 4
"""Sums that are followed at once while rows are added up."""
MOST_PARTS = 8
"""Rows that one row is taken apart into where least squares does not name them."""
MOST_FOLLOWED = 2**27
"""Products of numbers, of all rows with all others, up to which sums are followed: some seconds."""
MOST_OPEN = 40
"""Places left open up to which all pairs of them are tried."""
WITHIN = 6.0
"""Standard deviations within which every number of a sum must be: of a thousand normal ones all are but 2 in 10^6."""


@dataclass(frozen=True, eq=False)
class Places:
    """What stood at each place.

    Attributes:
        tokens: For each place the tokens that the texts held there, in rising order; empty where that stays open.
        tables: Names of the parameters that hold the words' rows, and the places'.
        further: Tokens of the texts that were found at no place.
        padding: The token that stands for none and is never trained.
    """

    tokens: tuple[tuple[int, ...], ...]
    tables: tuple[str, str]
    further: int = 0
    padding: int | None = None

    @property
    def text(self) -> Tensor | None:
        """`[1, places]` the text where there was one, and each place is known or padding; None elsewhere.

        Tokens that several texts share at a place count once, so that the same text twice is one.
        """
        rest = () if self.padding is None else (self.padding,)
        whole = [one or rest for one in self.tokens]
        alone = not self.further and any(self.tokens) and all(len(one) == 1 for one in whole)
        return torch.tensor([[one[0] for one in whole]]) if alone else None

    @property
    def words(self) -> str:
        """How much is known, for people."""
        how = f"by sums of rows of {self.tables[1]}"
        if self.text is not None:
            return f"the text in order, {how}"
        known, most = sum(map(bool, self.tokens)), max(map(len, self.tokens), default=0)
        what = "the token" if most == 1 else f"up to {most} tokens"
        further = f"; {self.further} tokens stood at places that stay open" * bool(self.further)
        return f"{what} at {known} of {len(self.tokens)} places, {how}{further}"


def places_of(knowledge: Knowledge, observed: Round) -> Places | None:
    """What stood at each place of the texts behind a round's update.

    Args:
        knowledge: What the attacker knows.
        observed: The round, of a rule that can be read as a gradient.

    Returns:
        None where the network reads no tokens, has no table whose rows are sums of the same vectors (tried by one
        pass), or where neither was sent.
    """
    table = token_table(knowledge.model)
    if table is None or len(knowledge.input_shape) != 1:
        return None
    words = f"{table[0]}.weight" if table[0] else "weight"
    sent = observed.update.tensors
    found = _place_table(knowledge, observed, table[0], words) if words in sent else None
    if found is None or found[0] not in sent:
        return None
    name, rows, factor = found
    moved = sent[words].any(1).nonzero().flatten()
    try:
        seen = _tables(observed, knowledge, {words: moved, name: slice(None)}).measured(knowledge.client)
    except SeepageError:
        return None  # a rule that leaves no gradient
    bent = words in seen.moved and name in seen.moved
    own, off, place, place_off = (
        one
        for table in (words, name)
        for one in (seen.moved[table] if bent else (seen.value[table], seen.error[table]))
    )
    place, place_off = (one.reshape(-1, own.shape[1])[rows] for one in (place, place_off))
    place, place_off = factor * place, abs(factor) * place_off
    off, place_off = _errors(own, off), _errors(place, place_off)
    seen_rows = (own.abs() > DEVIATIONS * off).any(1)
    find, live = _alike if bent else _solve, moved[seen_rows]
    stood = (place.abs() > DEVIATIONS * place_off).any(1)  # what has no gradient, as padding, is in every sum
    tokens: list[set[int]] = [set() for _ in place]
    solved = find(own[seen_rows], off[seen_rows], place[stood], place_off[stood])
    for at, one in zip(stood.nonzero().flatten().tolist(), solved, strict=True):
        tokens[at] = one
    named = tuple(tuple(sorted(int(live[k]) for k in one)) for one in tokens)
    return Places(
        named, (words, name), len(live) - len({token for one in named for token in one}), padding_row(knowledge.model)
    )


def _alike(words: Tensor, off: Tensor, places: Tensor, place_off: Tensor) -> list[set[int]]:
    """For each place the one row of words that moved as it did: of an optimizer that moves each number by its gradient.

    Sums of gradients are no sums of such moves, but what one token alone moved at a place moved in both tables alike.
    Two numbers of one size agree by chance in half of the cases, so that 2^-d k must be below `FALSE_ALARM`. A row that
    moved as several places did tells of none: where one text outweighs the others, its places move alike.
    """
    found: list[set[int]] = [set() for _ in places]
    if words.shape[1] * math.log(2) < math.log(max(1, len(words)) / FALSE_ALARM):
        return found
    for t, (target, variance) in enumerate(zip(places, place_off.square(), strict=True)):
        same = ((words - target).abs() <= WITHIN * (off.square() + variance).sqrt()).all(1).nonzero().flatten().tolist()
        found[t] = set(same) if len(same) == 1 else set()
    return [one if sum(one == other for other in found) == 1 else set() for one in found]


def _tables(observed: Round, knowledge: Knowledge, rows: Mapping[str, Tensor | slice]) -> Round:
    """The round, of these rows of these tensors alone: tables are large, and most of their rows stand still.

    Several steps of SGD are taken as one: sums of their gradients add up as one's do.
    """
    update = observed.update
    tensors = {name: update.tensors[name][own] for name, own in rows.items()}
    params = {name: observed.params[name][own] for name, own in rows.items()}
    if update.kind == "delta" and knowledge.client.linear_in_gradient:
        return replace(observed, params=params, update=Update({n: -moved for n, moved in tensors.items()}, rate=1.0))
    return replace(observed, params=params, update=replace(update, tensors=tensors))


def _errors(value: Tensor, error: Tensor) -> Tensor:
    """Errors with those of the sums in float32 that made the rows, which are of the size of a row's largest number."""
    return (error.square() + (FLOAT32_SUM * value.abs().amax(1, keepdim=True)).square()).sqrt()


def _place_table(knowledge: Knowledge, observed: Round, layer: str, words: str) -> tuple[str, Tensor, float] | None:
    """Name of the table of places, its row `[places]` of each, and what its gradient is to be multiplied by.

    One pass on made-up texts: the rows of its gradient are the sums over texts of the gradient in what the table of
    words returned, times one factor, as where the words' vectors are scaled first.
    """
    model, (length,) = knowledge.model, knowledge.input_shape
    own = {name: p.detach() for name, p in (*model.named_parameters(), *observed.params.items())}
    vocabulary, width = own[words].shape
    ids = torch.randint(vocabulary, (2, length), generator=generator(0, "token set"))
    wide = (n for n, p in own.items() if p.is_floating_point() and p.shape[-1:] == (width,) and n != words)
    able = [name for name in wide if own[name].numel() >= length * width]
    slopes = slopes_of(knowledge, observed, layer, ids, [words, *able])
    if slopes is None:
        return None
    given, direct, *grads = slopes
    if given is None or given.shape != (2, length, width):
        return None
    sums = torch.zeros_like(own[words]).index_add_(0, ids.flatten().to(given.device), given.flatten(0, 1))
    if (padding := padding_row(model)) is not None:
        sums[padding] = 0  # which is never trained
    if direct is None or not torch.allclose(direct, sums, atol=FLOAT32_NETWORK * float(sums.abs().max())):
        return None  # the table is the last layer as well
    expected = given.sum(0)  # [places, width]
    for name, found in zip(able, grads, strict=True):
        if found is None:
            continue
        rows = found.reshape(-1, width)
        # Each place's row is the one that points its way. [places]
        best = (torch.nn.functional.normalize(expected, dim=1) @ torch.nn.functional.normalize(rows, dim=1).T).argmax(1)
        size = rows[best].square().sum()
        factor = float((expected * rows[best]).sum() / size) if size > 0 else 0.0
        near = torch.allclose(factor * rows[best], expected, atol=FLOAT32_NETWORK * float(expected.abs().max()))
        if factor and near and len(best.unique()) == length:
            return name, best, factor
    return None


def slopes_of(
    knowledge: Knowledge, observed: Round, layer: str, ids: Tensor, names: Sequence[str]
) -> tuple[Tensor | None, ...] | None:
    """Gradients of a sum of all outputs, each times a number drawn, at made-up texts: one pass at the sent weights.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
        layer: The table that looks the texts up.
        ids: `[n, places]` the texts.
        names: Parameters.

    Returns:
        The gradient in what the table returned, and in each parameter; None where the network does not take such texts,
        or looks them up twice.
    """
    model = knowledge.model
    own = {name: p.detach() for name, p in (*model.named_parameters(), *observed.params.items())}
    leaves = {name: own[name].clone().requires_grad_() for name in names}
    try:
        with torch.enable_grad(), in_mode(model, training=False), captured_calls(model, [layer]) as calls:
            logits = forward(model, {**own, **leaves}, ids.to(own[names[0]].device), buffers=observed.buffers)
            (made,) = (call.output for call in calls[layer])
            draw = torch.rand(logits.shape, generator=generator(0, "slopes")).to(logits)
            return torch.autograd.grad((logits * draw).sum(), [made, *leaves.values()], allow_unused=True)
    except (IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return None


def _solve(words: Tensor, off: Tensor, places: Tensor, place_off: Tensor) -> list[set[int]]:
    """For each place the rows of words that stood there: empty where that stays open."""
    found: list[set[int]] = [set() for _ in places]
    # What every text held at the same places: its row is the sum of these places' rows, as each of one text's is.
    for k, parts in enumerate(_taken_apart(words, off, places, place_off)):
        for t in parts or ():
            found[t] = {k}
    open_ = [t for t in range(len(places)) if not found[t]]
    for t, parts in zip(open_, _taken_apart(places[open_], place_off[open_], words, off), strict=True):
        found[t] = set(parts or ())
    # A word that stood at two places alone is in neither's sum, and is that of both.
    open_ = [t for t in open_ if not found[t]]
    left = sorted(set(range(len(words))).difference(*found))
    pairs = list(combinations(open_ if len(open_) <= MOST_OPEN else [], 2))
    if pairs and left:
        firsts, seconds = map(list, zip(*pairs, strict=True))
        both = places[firsts] + places[seconds]
        errors = torch.hypot(place_off[firsts], place_off[seconds])
        for pair, parts in zip(pairs, _taken_apart(both, errors, words[left], off[left]), strict=True):
            if parts is not None and len(parts) == 1 and not found[pair[0]] and not found[pair[1]]:
                found[pair[0]] = found[pair[1]] = {left[parts[0]]}
    return found


def _taken_apart(targets: Tensor, off: Tensor, rows: Tensor, rows_off: Tensor) -> Iterator[Sequence[int] | None]:
    """Of each row `[m, d]` which rows `[k, d]` add up to it within all errors; None where none do, or chance may.

    Of all `k^n` sums of n rows one is within the errors by a chance of at most k^n times the product over numbers of
    (error over size), which must be below `FALSE_ALARM`. Where rows are independent least squares names them.
    """
    shares, small = None, rows.numel() * len(targets) <= MOST_FOLLOWED
    if 0 < len(rows) <= rows.shape[1] and bool(rows_off.isfinite().all() & off.isfinite().all()):
        shares = torch.linalg.lstsq(rows.T, targets.T).solution.T  # [m, k]
    for m, target in enumerate(targets):
        known = off[m].isfinite() & rows_off.isfinite().all(0)
        here = target[known], off[m][known].square(), rows[:, known], rows_off[:, known].square()
        if len(rows) == 0 or not bool((here[0].abs() > DEVIATIONS * here[1].sqrt()).any()):
            yield None
            continue
        taken = [] if shares is None else (shares[m] > 0.5).nonzero().flatten().tolist()
        yield taken if _adds_up(taken, *here) else _followed(*here) if small else None


def _adds_up(taken: Sequence[int], target: Tensor, variance: Tensor, rows: Tensor, rows_variance: Tensor) -> bool:
    own = list(taken)
    left, error = target - rows[own].sum(0), (variance + rows_variance[own].sum(0)).sqrt()
    if not own or bool((left.abs() > WITHIN * error).any()):
        return False
    chance = (WITHIN * error / target.square().mean().sqrt()).clamp(max=1).log().sum()
    return len(own) * math.log(len(rows)) + float(chance) < math.log(FALSE_ALARM)


def _followed(target: Tensor, variance: Tensor, rows: Tensor, rows_variance: Tensor) -> Sequence[int] | None:
    """The same by following the sums that leave the least, `WIDTH` of them at once."""
    sums: list[tuple[int, ...]] = [()]
    for _ in range(min(MOST_PARTS, len(rows))):
        tried: dict[tuple[int, ...], float] = {}
        for taken in sums:
            own: list[int] = list(taken)
            after, errors = target - rows[own].sum(0) - rows, variance + rows_variance[own].sum(0) + rows_variance
            scores = (after.square() / errors).sum(1)  # [k]
            scores[own] = math.inf
            for k in scores.topk(min(WIDTH, len(rows)), largest=False).indices.tolist():
                tried[tuple(sorted([*own, k]))] = float(scores[k])
        sums = sorted(tried, key=lambda taken: tried[taken])[:WIDTH]
        for taken in sums:
            if _adds_up(taken, target, variance, rows, rows_variance):
                return taken
    return None
