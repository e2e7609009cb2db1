"""Scores of text: sequences that are equal, tokens and pairs of tokens that were recovered.

With the n-grams of guess and text as multisets, ROUGE-N (Lin 2004) as an F measure is

    2 |both| / (|guess| + |text|)        n = 1: the overlap of the bags of tokens; n = 2: of neighboring pairs

on token numbers, not on words: nothing is stemmed or lowered.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.base.limits import ROUGE_2
from seepage.base.schema import Summary
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics.scores import Scores, counted

NAMES = ("rouge_1", "rouge_2")


def tokens_of(row: Tensor) -> list[int]:
    """The token numbers of a row `[tokens]`, without what stands behind its end."""
    return [int(token) for token in row.tolist() if token >= 0]


def rouge(guess: Sequence[int], text: Sequence[int], n: int) -> float:
    """ROUGE-N of two sequences of tokens, from 0 to 1; 1 where both are too short to hold an n-gram and equal.

    >>> rouge([1, 2, 3], [1, 2, 4], 1), rouge([1, 2, 3], [1, 2, 4], 2)
    (0.6666666666666666, 0.5)
    """
    ours, theirs = (Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1)) for row in (guess, text))
    total = ours.total() + theirs.total()
    if not total:
        return float(list(guess) == list(text))
    return 2 * (ours & theirs).total() / total


@dataclass(frozen=True, eq=False)
class TextPairs:
    """All guesses beside all texts of one batch.

    Attributes:
        guesses: `[k, tokens]`.
        texts: `[n, tokens]`.
    """

    guesses: Tensor
    texts: Tensor

    @cached_property
    def scores(self) -> Tensor:
        """`[2, k, n]` float64 ROUGE-1 and ROUGE-2 of every pair."""
        ours, theirs = [tokens_of(row) for row in self.guesses], [tokens_of(row) for row in self.texts]
        found = [[[rouge(a, b, n) for b in theirs] for a in ours] for n in (1, 2)]
        return torch.tensor(found, dtype=torch.float64).reshape(2, len(ours), len(theirs))

    @cached_property
    def equal(self) -> Tensor:
        """`[k, n]` bool: which guess equals which text."""
        return (self.guesses[:, None] == self.texts[None]).all(2)

    def errors(self, chosen: Tensor) -> Tensor:
        """0 for each chosen guess that equals a text of the batch, else 1; `chosen` is `[k]` bool."""
        return 1.0 - self.equal[chosen].any(1).double()


@dataclass(frozen=True, eq=False)
class TextAlignment:
    """Guesses in the order of the texts, one to one.

    Attributes:
        permutation: `[n]` int64: the place of each text's guess, -1 for none.
        guesses: `[n, tokens]` the matched guesses; where there is none, no tokens.
        pairs: What was matched.
    """

    permutation: Tensor
    guesses: Tensor
    pairs: TextPairs

    @property
    def matched(self) -> Tensor:
        """`[n]` bool: whether the text has a guess."""
        return self.permutation >= 0


def align_text(reconstruction: Reconstruction, truth: Batch) -> TextAlignment:
    """Match guesses with texts: the one-to-one matching with the most tokens and pairs of tokens in common.

    Raises:
        SeepageError: Where guesses and texts differ in length, or the guesses are no token numbers.
    """
    from scipy.optimize import linear_sum_assignment

    guesses, texts = reconstruction.inputs.detach().cpu(), truth.inputs.cpu()
    if guesses.shape[1:] != texts.shape[1:] or guesses.is_floating_point():
        raise SeepageError(
            f"guesses {tuple(guesses.shape)} of type {guesses.dtype} are no token numbers of texts "
            f"{tuple(texts.shape)}; return int64 sequences of one length, with -1 behind the end"
        )
    pairs = TextPairs(guesses, texts)
    # Equal ones first, whatever else overlaps more.
    rows, columns = linear_sum_assignment((pairs.scores.sum(0) + 3 * pairs.equal).numpy(), maximize=True)
    permutation = torch.full((len(texts),), -1, dtype=torch.int64)
    permutation[torch.from_numpy(columns)] = torch.from_numpy(rows)
    filled = torch.full_like(texts, -1)
    filled[permutation >= 0] = guesses[permutation[permutation >= 0]]
    return TextAlignment(permutation, filled, pairs)


def score_text(reconstruction: Reconstruction, truth: Batch, aligned: TextAlignment | None = None) -> Scores:
    """Scores of guessed texts: `exact`, `recovered`, `rouge_1`, `rouge_2`, and `label` where classes were guessed.

    Args:
        reconstruction: The guesses, `[k, tokens]` token numbers with -1 behind the end.
        truth: The private batch.
        aligned: What `align_text` made of the two, where it is known already.

    >>> text = Batch(torch.tensor([[1, 2, 3, -1], [4, 5, 6, 7]]), torch.tensor([0, 1]))
    >>> found = score_text(Reconstruction(torch.tensor([[4, 5, 6, 7], [1, 2, 9, -1]])), text)
    >>> found.exact, found.rouge_2
    (0.5, 0.75)
    """
    from seepage.measure.metrics.labels import label_accuracy, label_hits

    if not len(truth):
        raise SeepageError("the private batch is empty: nothing to score; pass at least one text")
    aligned, labels = aligned or align_text(reconstruction, truth), reconstruction.labels
    matched, places = aligned.matched, torch.arange(len(truth))
    rouges = torch.zeros(2, len(truth), dtype=torch.float64)
    rouges[:, matched] = aligned.pairs.scores[:, aligned.permutation[matched], places[matched]]
    exact = torch.zeros(len(truth), dtype=torch.bool)
    exact[matched] = aligned.pairs.equal[aligned.permutation[matched], places[matched]]
    values = dict(zip(NAMES, rouges, strict=True))
    share = torch.nan
    if labels is not None and truth.labels.ndim == 1:
        values["label"] = label_hits(labels, truth.labels, aligned.permutation)
        share = label_accuracy(labels, truth.labels)
    return Scores(
        alignment="hungarian",
        metrics=tuple(values),
        values=values,
        baseline_values={},
        matched=matched,
        recovered_each=exact | (rouges[1] >= ROUGE_2),
        exact_each=exact,
        batches=torch.zeros(len(truth), dtype=torch.int64),
        label_shares=torch.tensor([share], dtype=torch.float64),
    )


def score_token_set(
    found: Sequence[Reconstruction | None],
    truth: Sequence[Batch],
    *,
    vocabulary: int | None,
    padding: int | None = None,
) -> tuple[dict[str, Summary], dict[str, dict[str, float]], int]:
    """How right sets of tokens are: `(scores, baselines, wrong certificates)`.

    With the distinct tokens of a batch T and the named ones S, added up over the batches,

        recall = |S and T| / |T|        precision = |S and T| / |S|

    with the interval of Clopper and Pearson. The baseline `all` names every token there is.

    Args:
        found: The named tokens of each batch, `[k, 1]`; None: none.
        truth: The batches.
        vocabulary: Number of tokens there are.
        padding: A token that stands for none, and does not count.

    >>> text = Batch(torch.tensor([[1, 2, 3, -1], [4, 4, 4, 1]]), torch.tensor([0, 1]))
    >>> sure = torch.tensor([True, True, False])
    >>> guess = Reconstruction(torch.tensor([[1], [4], [9]]), space="token", certified=sure)
    >>> scores, beside, wrong = score_token_set([guess], [text], vocabulary=10)
    >>> scores["token_recall"].mean, round(scores["token_precision"].mean, 3), beside["all"]["token_precision"], wrong
    (0.5, 0.667, 0.4, 0)
    """
    right = named = held = wrong = 0
    for guess, batch in zip(found, truth, strict=True):
        tokens = set(tokens_of(batch.inputs.flatten())) - {padding}
        held += len(tokens)
        if guess is None:
            continue
        own = tokens_of(guess.inputs[:, 0])
        sure = [True] * len(own) if guess.certified is None else guess.certified.tolist()
        right += len(tokens.intersection(own))
        named += len(own)
        wrong += sum(vouched and token not in tokens for token, vouched in zip(own, sure, strict=True))
    shares = (("token_recall", right, held), ("token_precision", right, named))
    scores = {name: counted(hits, of) for name, hits, of in shares if of}
    every = {"token_recall": 1.0, "token_precision": held / (vocabulary * len(truth))} if vocabulary else {}
    return scores, {"all": every} if every else {}, wrong


def frequent_share(texts: Tensor, public: Tensor) -> float:
    """Recall of a set of tokens that needs no update: the most frequent ones of public text, as many as there are.

    Args:
        texts: `[n, tokens]` the texts whose distinct tokens are guessed.
        public: `[m, tokens]` texts that are not private.

    >>> frequent_share(torch.tensor([[1, 2, 2, -1]]), torch.tensor([[1, 1, 3, 3, 3, 2]]))
    0.5
    """
    held = set(tokens_of(texts.flatten()))
    ranked = public[public >= 0].bincount().argsort(descending=True, stable=True)[: len(held)]
    return len(held.intersection(ranked.tolist())) / len(held)


def frequent(texts: Tensor, public: Tensor) -> Tensor:
    """`[n, tokens]` a guess without the update: the most frequent tokens of public text, as many as each text has.

    Args:
        texts: `[n, tokens]` the texts to guess.
        public: `[m, tokens]` texts that are not private.
    """
    ranked = public[public >= 0].bincount().argsort(descending=True, stable=True)[: texts.shape[1]]
    guess = torch.full((texts.shape[1],), -1)
    guess[: len(ranked)] = ranked
    return torch.where(texts >= 0, guess, -1)
