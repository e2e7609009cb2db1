"""What a membership test is, and how its statistics become p-values that hold."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.base import Progress, ignore
from seepage.base.nn import NO_TARGET, generator
from seepage.errors import SeepageError, refuse
from seepage.federation.types import Batch, Knowledge, Round, Transcript

Done = Callable[[], None]
"""Called after each example."""


def nothing() -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Membership:
    """What a test says of each candidate.

    Attributes:
        statistics: `[k]` larger for likelier members; the unit is the test's own.
        p_values: `[k]` in (0, 1]: the share of calibration examples, and the candidate itself, whose statistic is at
            least as large. Small for members.
        calibration: `[c]` statistics of public examples that were in no private batch.
        reference: Number of public examples that the test learned from.
    """

    statistics: Tensor
    p_values: Tensor
    calibration: Tensor
    reference: int

    def __len__(self) -> int:
        return len(self.statistics)

    def identified(self, level: float) -> Tensor:
        """`[k]` bool: candidates that the test calls members, with a false alarm in a share `level` of others.

        Raises:
            SeepageError: Where there are too few calibration examples for any p-value to be as small as `level`.
        """
        least = 1 / (len(self.calibration) + 1)
        if level < least:
            raise SeepageError(
                f"{len(self.calibration)} calibration examples give no p-value under {least:.2g}, so nobody can be "
                f"identified at {level:g}; use at least {round(1 / level) - 1} of them"
            )
        return self.p_values <= level


class Detector(ABC):
    """A test at one set of weights: what it learned from public examples there."""

    @abstractmethod
    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, d]` what the test looks for in an update, one row for each example, whatever the update is.

        Args:
            examples: `k` examples with labels.
            done: Called after each example.
        """

    @abstractmethod
    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` numbers, larger for likelier members, of an update at the detector's weights."""


class MembershipTest(ABC):
    """A frozen, keyword-only dataclass of options: it learns what public gradients look like, and makes a detector."""

    @abstractmethod
    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector at the weights of a round.

        Args:
            knowledge: What the attacker knows.
            observed: The round; of its update only names and shapes may be used.
            reference: Public examples with labels.
            seed: Seeds the test's own randomness.
            done: Called after each example.

        Raises:
            Inapplicable: Where the test can say nothing about this round.
        """

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether it makes anything of a defense that the attacker knows of."""
        return False


STANDARDS = 32
"""Reference examples whose statistics make those of several layers, or of several tests, one unit."""


def held_out(reference: Batch) -> int:
    """How many of the reference examples, the first ones, teach nothing so that they can be standards."""
    return min(STANDARDS, len(reference) // 4)


def in_deviations(seen: Tensor, standards: int) -> Tensor:
    """`[k, c]` statistics from those `[s + k, c]` that begin with s standards, in deviations from the standards' mean.

    >>> in_deviations(torch.tensor([[0.0], [2.0], [5.0]]), 2)
    tensor([[2.8284]])
    """
    known, rest = seen[:standards], seen[standards:]
    return rest if standards < 2 else (rest - known.mean(0)) / known.std(0).clamp_min(1e-6)


class MembershipInference:
    """A test with its public examples, at the weights of one round; it judges every update made at these weights.

    The public examples are split at random: some teach the test, the others calibrate it. The template of a calibration
    example is made as that of a candidate is, by the same detector, so the two can be compared.

    Args:
        test: The test.
        transcript: What the server saw.
        public: Examples with labels from the same source as the candidates, none of them in a private batch.
        t: The round whose weights are meant.
        seed: Seeds the split and the test.
        progress: Called with the number of public examples that are done.

    Raises:
        Inapplicable: Where the test can say nothing about this transcript.
        SeepageError: For examples that do not fit the model, and fewer than four public ones.
    """

    def __init__(
        self,
        test: MembershipTest,
        transcript: Transcript,
        public: Batch,
        *,
        t: int = 0,
        seed: int = 0,
        progress: Progress = ignore,
    ) -> None:
        self._knowledge, self._first = transcript.knowledge, transcript[t]
        _check(public, "public examples", self._knowledge)
        if len(public) < 4:
            raise SeepageError(
                f"a membership test needs at least 4 public examples, got {len(public)}; "
                "give it more, some hundreds if possible"
            )
        order = torch.randperm(len(public), generator=generator(seed, "public split"))
        reference, calibration = (_part(public, part) for part in order.tensor_split([round(len(public) / 2)]))
        done = _Counter(len(public), progress)
        self._detector = test.fit(self._knowledge, self._first, reference, seed=seed, done=done)
        self._calibration = self._detector.templates(calibration, done)  # [c, d]
        self._reference = len(reference)

    def fits(self, observed: Round) -> bool:
        """Whether a round starts from the weights that this inference is for."""
        own = self._first.params
        return observed is self._first or all(torch.equal(observed.params[name], own[name]) for name in own)

    def of(self, observed: Round, candidates: Batch, *, progress: Progress = ignore) -> Membership:
        """Test each candidate against the update of a round.

        Args:
            observed: The round.
            candidates: `k` examples with labels, of unknown standing.
            progress: Called with the number of candidates that are done.

        Returns:
            Statistics and p-values in the order of the candidates.

        Raises:
            Inapplicable: Where the update is zero everywhere.
            SeepageError: For candidates that do not fit the model, and a round at other weights.
        """
        _check(candidates, "candidates", self._knowledge)
        if not self.fits(observed):
            raise SeepageError(
                f"round {observed.t} starts from other weights than round {self._first.t}; make an inference for each"
            )
        if not any(bool(tensor.any()) for tensor in observed.update.tensors.values()):
            raise refuse("zero_update")(
                "the update is zero everywhere, so it says nothing about anybody",
                "check that the client trained, or use another round",
            )
        templates = self._detector.templates(candidates, _Counter(len(candidates), progress))
        found, null = (
            self._detector.statistics(observed, rows).detach().double().cpu() for rows in (templates, self._calibration)
        )
        return Membership(found, p_values(found, null), null, self._reference)


def infer_membership(
    transcript: Transcript,
    test: MembershipTest,
    candidates: Batch,
    public: Batch,
    *,
    t: int | Sequence[int] = 0,
    seed: int = 0,
    progress: Progress = ignore,
) -> Membership:
    """Test each candidate against the update of round `t`; arguments as of `MembershipInference`.

    With several rounds the question is whether a candidate was in all of them, as an example of a client is that
    trains on the same data in every round: see `combined`.

    Returns:
        Statistics and p-values in the order of the candidates.

    Raises:
        Inapplicable: Where the test can say nothing about this transcript.
        SeepageError: For examples that do not fit the model, and fewer than four public ones.

    >>> from seepage import Batch, record
    >>> from seepage.attacks.membership import MatchedFilter
    >>> draw = torch.Generator().manual_seed(0)
    >>> def some(n):
    ...     return Batch(torch.rand(n, 1, 6, 6, generator=draw), torch.randint(3, (n,), generator=draw))
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 3))
    >>> private, others, public = some(2), some(2), some(80)
    >>> candidates = Batch(torch.cat([private.inputs, others.inputs]), torch.cat([private.labels, others.labels]))
    >>> found = infer_membership(record(model, private), MatchedFilter(), candidates, public)
    >>> found.identified(0.05)
    tensor([ True,  True, False, False])
    """
    parts, inference = [], None
    for place in [t] if isinstance(t, int) else t:
        observed = transcript[place]
        if inference is None or not inference.fits(observed):
            inference = MembershipInference(test, transcript, public, t=place, seed=seed, progress=progress)
        parts.append(inference.of(observed, candidates, progress=progress))
    return combined(parts)


def combined(parts: Sequence[Membership]) -> Membership:
    """One test from those of several updates that the same candidates may all be in.

    The statistics are standardized update by update and added up (Stouffer et al. 1949): for Gaussian statistics
    that a member shifts by as many deviations in each, this is the likelihood ratio's order. The calibration examples
    go through all updates as a candidate does, and their sums calibrate it, so the p-values hold however the updates
    depend on each other. For that the deviation of an update is that of its calibration examples *and* the candidate,
    which treats them alike:

        p = (1 + #{i: sum_t (c_ti - x_t) / d_t(x) >= 0}) / (1 + c)

    Args:
        parts: What one test with the same public examples and seed says, update by update.

    Returns:
        Statistics in deviations, and p-values.

    Raises:
        SeepageError: For no part, or parts of other candidates or other calibration examples.

    >>> one = Membership(torch.tensor([3.0, 0.0]), torch.ones(2), torch.tensor([0.0, 1.0, -1.0]), 5)
    >>> combined([one, one]).p_values
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    found, null = _alike(parts)
    if len(parts) == 1:
        return parts[0]
    both = torch.cat([null[:, None].expand(-1, found.shape[1], -1), found[:, :, None]], 2)  # [t, k, c + 1]
    deviations = both.std(2).clamp_min(1e-30)  # [t, k]
    ahead = ((null[:, None] - found[:, :, None]) / deviations[:, :, None]).sum(0)  # [k, c]
    p = (1 + (ahead >= 0).sum(1)).double() / (1 + null.shape[1])
    scale = null.std(1, keepdim=True).clamp_min(1e-30)
    return Membership((found / scale).sum(0), p, (null / scale).sum(0), parts[0].reference)


def whose(parts: Sequence[Membership]) -> tuple[Membership, Tensor]:
    """One test of whether each candidate was in one of several clients' batches of a round, and in whose.

    The largest of the clients' statistics counts, each in deviations as of `combined`. The calibration examples, which
    are nobody's, have a largest one as well, so the p-values hold however many clients there are.

    Args:
        parts: What one test with the same public examples and seed says, client by client.

    Returns:
        Statistics and p-values of "in anybody's", and `[k]` the place of the client that is the likeliest.

    >>> null = torch.tensor([0.0, 1.0, -1.0])
    >>> parts = [Membership(torch.tensor(own), torch.ones(2), null, 5) for own in ([9.0, 0.5], [0.0, 0.8])]
    >>> found, client = whose(parts)
    >>> found.p_values.tolist(), client.tolist()
    ([0.25, 0.5], [0, 1])
    """
    found, null = _alike(parts)
    both = torch.cat([null[:, None].expand(-1, found.shape[1], -1), found[:, :, None]], 2)  # [clients, k, c + 1]
    spread = both.std(2, keepdim=True).clamp_min(1e-30)
    largest = ((both - both.mean(2, keepdim=True)) / spread).max(0)
    p = (1 + (largest.values[:, :-1] >= largest.values[:, -1:]).sum(1)).double() / (1 + null.shape[1])
    middle, scale = null.mean(1, keepdim=True), null.std(1, keepdim=True).clamp_min(1e-30)
    own, rest = (((part - middle) / scale).amax(0) for part in (found, null))
    return Membership(own, p, rest, parts[0].reference), largest.indices[:, -1]


def _alike(parts: Sequence[Membership]) -> tuple[Tensor, Tensor]:
    """`[t, k]` statistics of candidates and `[t, c]` of calibration examples, which must be the same in all parts."""
    if not parts:
        raise SeepageError("there is no round to test; name one at least")
    first = parts[0]
    if any((len(part), len(part.calibration)) != (len(first), len(first.calibration)) for part in parts):
        raise SeepageError(
            "tests of several updates can be combined for the same candidates and calibration examples only; use one "
            "seed and the same examples"
        )
    low = torch.finfo(torch.float32).min
    found, null = (
        torch.stack([getattr(part, name).double().nan_to_num(low) for part in parts])
        for name in ("statistics", "calibration")
    )
    return found, null


class _Counter:
    """Counts examples, and reports every 16th and the last."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.total, self.progress, self.count = total, progress, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count % 16 == 0 or self.count == self.total:
            self.progress.report(self.count, self.total, 0.0)


def p_values(statistics: Tensor, calibration: Tensor) -> Tensor:
    """`[k]` p-values by rank: `(1 + #{calibration >= statistic}) / (1 + c)`.

    Under the null hypothesis, that a candidate is exchangeable with the calibration examples, P(p <= a) <= a for
    every level a (conformal prediction, Vovk et al. 2005). No distribution is assumed. Statistics that are not a
    number count as the smallest.

    Args:
        statistics: `[k]` of the candidates.
        calibration: `[c]` of examples that were in no batch.

    >>> p_values(torch.tensor([5.0, 1.5]), torch.tensor([0.0, 1.0, 2.0]))
    tensor([0.2500, 0.5000], dtype=torch.float64)
    """
    low = torch.finfo(torch.float64).min
    null = calibration.double().nan_to_num(low, posinf=None).sort().values
    own = statistics.double().nan_to_num(low, posinf=None)
    reached = len(null) - torch.searchsorted(null, own)  # calibration examples with at least this statistic
    return (1 + reached).double() / (1 + len(null))


def _check(batch: Batch, what: str, knowledge: Knowledge) -> None:
    labels = batch.labels
    if tuple(batch.inputs.shape[1:]) != knowledge.input_shape:
        raise SeepageError(
            f"the {what} have shape {tuple(batch.inputs.shape[1:])} and the model takes {knowledge.input_shape}; "
            "bring them to that size and number of channels"
        )
    # A pixel of a map, or a token that nothing follows, may have no class.
    none = labels == NO_TARGET if labels.ndim > 1 else torch.zeros_like(labels, dtype=torch.bool)
    if not labels.is_floating_point() and not (none | (labels >= 0) & (labels < knowledge.num_classes)).all():
        raise SeepageError(
            f"the {what} have labels outside 0..{knowledge.num_classes - 1}; number them as the model's classes"
        )


def _part(batch: Batch, places: Tensor) -> Batch:
    return Batch(batch.inputs[places], batch.labels[places])
