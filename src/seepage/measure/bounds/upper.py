"""Upper bounds for any attacker: all bounds that hold for one update, found by the auditor, who holds the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from seepage.base.second_derivatives import twice_differentiable
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.clients import FedSGD
from seepage.federation.types import Batch, ClientUpdate, Defense, GaussianMechanism, Tensors
from seepage.measure.bounds.bound import Bound, Method, UpperBounds
from seepage.measure.bounds.chance import blind_chance
from seepage.measure.bounds.channel import Channel, channel_of
from seepage.measure.bounds.jacobian import UpdateJacobian
from seepage.measure.bounds.prior import GaussianPrior
from seepage.measure.bounds.rank import RankAccount, dense_account, limited_account
from seepage.measure.bounds.tradeoff import gaussian_auc, gaussian_mu, gaussian_tpr
from seepage.measure.bounds.van_trees import (
    DENSE,
    SMALL,
    InformationSpectrum,
    LeastError,
    counted_error,
    decibels,
    estimated_error,
)

ALL = "every attacker, whatever it knows beside the update and however long it computes"
PRIOR = "every attacker who knows of this example no more than the stated prior, whatever it knows of the others"
FIRST_ORDER = (
    "every estimator, on average over the prior, to first order; an attacker who knows more than the prior, such as a "
    "list of candidates, is not bound"
)


@dataclass(frozen=True, kw_only=True)
class BoundOptions:
    """Assumptions and limits of `upper_bounds`.

    Attributes:
        public: Public examples distributed as the private ones: they give the prior and the chance of a blind guess.
        candidates: Number of equally likely candidates among which the attacker knows each example to be; a blind guess
            is then right with chance 1 / candidates. None: no such list.
        rounds: Number of times that the batch is sent at these weights, each time with fresh noise.
        t: Index of the first round; a decaying noise and the client's order of examples depend on it.
        level: False positive rate, in (0, 1), at which membership is bounded.
        exact_db: PSNR in dB from which on a copy counts as exact.
        value_range: Smallest and largest value of an input.
        seed: Seed of the client, the defense and the probes.
        budget_seconds: Time limit in seconds of the bounds that are estimated.
    """

    public: Batch | None = None
    candidates: int | None = None
    rounds: int = 1
    t: int = 0
    level: float = 0.01
    exact_db: float = 40.0
    value_range: tuple[float, float] = (0.0, 1.0)
    seed: int = 0
    budget_seconds: float = 60.0

    def __post_init__(self) -> None:
        wrong = []
        if self.candidates is not None and self.candidates < 1:
            wrong.append(f"candidates >= 1, got {self.candidates}")
        if self.rounds < 1:
            wrong.append(f"rounds >= 1, got {self.rounds}")
        if not 0 < self.level < 1:
            wrong.append(f"level between 0 and 1, got {self.level}")
        if not self.budget_seconds > 0:
            wrong.append(f"budget_seconds > 0, got {self.budget_seconds}")
        if wrong:
            raise SeepageError(f"bounds need {'; '.join(wrong)}; correct the value")


def upper_bounds(
    model: nn.Module,
    batch: Batch,
    *,
    client: ClientUpdate | None = None,
    defense: Defense | None = None,
    params: Tensors | None = None,
    buffers: Tensors | None = None,
    sent: Sequence[str] | None = None,
    options: BoundOptions | None = None,
) -> UpperBounds:
    """Upper bounds on the success of any attacker who sees this update.

    The truth is used, as by an auditor who holds it: no attack process may call this. Bounds on membership and on exact
    copies come from a clip and Gaussian noise alone; those in decibels from the Jacobian of the update at the truth.

    Args:
        model: The model at its current weights. It is not changed.
        batch: The private examples.
        client: The client's rule; None: FedSGD in train mode.
        defense: What the client does to its update before sending it.
        params: Weights that were sent out; None: the model's own.
        buffers: Buffers at that time; None: the model's own.
        sent: Names of the tensors that were sent; None: as client and defense have it.
        options: Public examples, rounds, level, seed and time; None: defaults.

    Returns:
        The bounds, and for each kind that does not hold the reason.

    Raises:
        SeepageError: For public examples of another shape, and for a defense that cannot be applied.

    >>> import torch
    >>> from seepage.federation.defenses import GaussianNoise
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    >>> batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([2]))
    >>> found = upper_bounds(model, batch, defense=GaussianNoise(sigma=2.0, clip=1.0))
    >>> found.of("tpr").line, found.of("psnr_db").line
    ('members identified: at most 9.24 % at 1 % false alarms', "PSNR of the batch's mean error: at most 10.1 dB")
    >>> bare = upper_bounds(model, batch)
    >>> bare.of("rank").line, bare.of("unseen_share").line
    ('numbers about the batch that can be read: not bounded', 'energy that no attacker sees: not bounded')
    """
    client, options = client or FedSGD(), options or BoundOptions()

    def make_channel() -> Channel:
        return channel_of(
            model,
            batch,
            client,
            defense,
            params=params,
            buffers=buffers,
            sent=sent,
            seed=options.seed,
            t=options.t,
            rounds=options.rounds,
        )

    public, shape = options.public, tuple(batch.inputs.shape[1:])
    if public is not None and batch.inputs.is_floating_point() and tuple(public.inputs.shape[1:]) != shape:
        raise SeepageError(
            f"public examples have the shape {tuple(public.inputs.shape[1:])} and private ones {shape}; give public "
            "examples of that shape"
        )
    bounds: list[Bound] = []
    reasons: list[str] = []
    for made, why in (
        _private(batch, client, defense, options),
        _first_order(model, make_channel, batch, options),
    ):
        bounds += made
        reasons += why
    return UpperBounds(tuple(bounds), tuple(reasons))


Found = tuple[list[Bound], list[str]]
"""Bounds that hold, and for each kind that does not hold a sentence with the reason."""


def _private(batch: Batch, client: ClientUpdate, defense: Defense | None, options: BoundOptions) -> Found:
    """Bounds on membership and exact copies, from the clip and the noise multiplier of the defense alone.

    Returns:
        The bounds, and the reasons why some do not hold.
    """
    stages = () if defense is None else defense.stages()
    stated = [stage.mechanism(range(options.t, options.t + options.rounds)) for stage in stages]
    place = next((number for number, one in enumerate(stated) if one is not None), None)
    none = "membership and exact copies are not bounded: "
    if place is None:
        return [], [none + "no stage of the defense is a mechanism of differential privacy"]
    looking = next((stage for stage in stages[place + 1 :] if stage.reads_examples), None)
    if looking is not None:
        return [], [f"{none}{type(looking).__name__} looks at the private examples again behind the noise"]
    mechanism = stated[place]
    assert mechanism is not None
    size = -(-len(batch) // client.num_clients)  # the largest client's examples
    mu = gaussian_mu(mechanism, options.rounds, client.per_client.max_participations(size))
    if mu is None:
        return [], [none + "nothing is clipped, so nothing limits what one example changes; set a clip"]
    sentence = _mechanism_words(mechanism, options.rounds)
    bounds = list(_membership(mu, sentence, options.level))
    made, why = _exact(mu, sentence, batch, options)
    return [*bounds, *made], why


def _mechanism_words(mechanism: GaussianMechanism, rounds: int) -> str:
    unit = "each example's gradient" if mechanism.unit == "example" else "the whole update"
    times = "" if rounds == 1 else f" in each of {rounds} rounds"
    first = mechanism.sigma if isinstance(mechanism.sigma, float | int) else mechanism.sigma[0]
    return f"{unit} is clipped to {mechanism.clip:g} and noised with multiplier {first:g}{times}, as the defense states"


def _membership(mu: float, sentence: str, level: float) -> list[Bound]:
    # With or without one example the batch has one size, so another stands in its place: twice the clip.
    apart = 2 * mu
    words = f"{sentence}; a batch with another example in the place of this one is distinguished by mu = {apart:.4g}"
    rate, area = gaussian_tpr(level, apart), gaussian_auc(apart)
    return [
        Bound("tpr", "membership", rate, (rate, rate), f"{words}.", ALL, at=level),
        Bound("auc", "membership", area, (area, area), f"{words}.", ALL),
    ]


def _exact(mu: float, sentence: str, batch: Batch, options: BoundOptions) -> Found:
    """The bound on the share of exact copies: the largest success rate at `mu` for a blind guess's success rate.

    Args:
        mu: Gaussian trade-off parameter of one example's presence.
        sentence: The mechanism in words.
        batch: The private examples.
        options: Assumptions: candidates or public examples give the chance of a blind guess.
    """
    if options.candidates is not None:
        blind, source = 1 / options.candidates, f"the attacker knows {options.candidates} equally likely candidates"
    elif not batch.inputs.is_floating_point():
        return [], ["exact copies are not bounded: between tokens there is no PSNR; state candidates"]
    elif options.public is not None and len(options.public) >= 2:
        blind = blind_chance(options.public.inputs, psnr_db=options.exact_db, value_range=options.value_range)
        source = f"{len(options.public)} public examples are drawn as the private ones are (95 % confidence)"
    else:
        return [], ["exact copies are not bounded: the chance of a blind guess needs public examples or candidates"]
    # The scorer gives each example the best of as many guesses as there are examples.
    kappa = min(1.0, len(batch) * blind)
    value = gaussian_tpr(kappa, mu)
    guess = f"a blind guess is right with chance {blind:.3g}, one of {len(batch)} guesses with {kappa:.3g}"
    words = f"{sentence}; {source}, so {guess}"
    return [Bound("exact_share", "rero", value, (value, value), f"{words}.", PRIOR, at=options.exact_db)], []


def _first_order(model: nn.Module, make_channel: Callable[[], Channel], batch: Batch, options: BoundOptions) -> Found:
    """Bounds on the PSNR, the rank and the unseen share, from the Jacobian J of the update at the private batch.

    The update is linearized: `u = J x + noise`. With noise, the least mean squared error of any estimator of x follows
    from `J^T J`; without, the rank of J and the energy outside its row space.

    Args:
        model: The model, made twice differentiable meanwhile.
        make_channel: The map from the private inputs to the update, and its noise. It raises `Inapplicable` where the
            update has no known derivative.
        batch: The private examples.
        options: Assumptions and limits.

    Returns:
        The bounds, and the reasons why some do not hold.
    """
    try:
        with twice_differentiable(model):
            channel = make_channel()
            jacobian = UpdateJacobian(channel, channel.batch.inputs.flatten())
            public = None if options.public is None else options.public.inputs
            prior = GaussianPrior.of(batch, public, options.value_range)
            if channel.deviation > 0:
                return _noisy(channel, jacobian, prior, options)
            return _silent(channel, jacobian, prior, options)
    except Inapplicable as error:
        return [], [f"the PSNR is not bounded: {error.reason}; {error.remedy}"]


def _noisy(channel: Channel, jacobian: UpdateJacobian, prior: GaussianPrior, options: BoundOptions) -> Found:
    """The bound on the PSNR of a noisy update, by the van Trees inequality; exact up to `SMALL` input values."""
    deviation = channel.deviation
    error: LeastError | None
    if jacobian.values <= SMALL:
        error = InformationSpectrum.of(jacobian.dense_gram(), prior).least_error(deviation)
    else:
        error = estimated_error(jacobian, prior, deviation, budget_seconds=options.budget_seconds, seed=options.seed)
    if error is None:
        return [], [
            f"the PSNR is not bounded: products with the Jacobian of {jacobian.values:,} values take longer than "
            f"{options.budget_seconds:g} s; raise budget_seconds"
        ]
    how = f"noise of deviation {deviation:.3g} in each of {channel.numbers_sent:,} numbers"
    if channel.law == "laplace":
        how = f"Laplace noise of scale {deviation:.3g} in each of {channel.numbers_sent:,} numbers"
    words = f"{how}; {_prior_words(prior)}; the update is near its linearization at the truth"
    words += "" if error.converged else "; the time ended before the systems were solved, so the bound is looser"
    return [_in_decibels(error, words, options)], []


def _silent(channel: Channel, jacobian: UpdateJacobian, prior: GaussianPrior, options: BoundOptions) -> Found:
    """Bounds of an update without noise: rank, unseen share and PSNR; above `DENSE` input values only by counting."""
    inputs, numbers = channel.batch.inputs, channel.numbers_sent
    # Rounding does not count as noise: it is left out, so that the bounds are those of the exact numbers.
    left = "".join(f"; {name} is left out, which can only hide more" for name in channel.left_out)
    if jacobian.values > DENSE:
        account = limited_account(jacobian, inputs, numbers, seed=options.seed)
        least = counted_error(account.rank, prior)
        bounds = _account_bounds(account, left)
        if account.rank < jacobian.values and least > 0:
            error = LeastError(least, (least, least), prior.energies[:0], exact=True)
            words = f"{account.rank:,} numbers are read of {account.private:,}{left}; {_prior_words(prior)}"
            bounds.append(_in_decibels(error, words, options))
        return bounds, [f"the rank of a Jacobian of {jacobian.values:,} values is not computed, only limited by counts"]
    gram = jacobian.dense_gram()
    bounds = _account_bounds(dense_account(gram, inputs, numbers), left)
    error = InformationSpectrum.of(gram, prior).least_error(0.0)
    words = f"no noise, numbers in single precision{left}; {_prior_words(prior)}; the update is near its linearization"
    return [*bounds, _in_decibels(error, words, options)], []


def _prior_words(prior: GaussianPrior) -> str:
    granted = "each example's mean color and contrast are granted, " if prior.channels else ""
    return f"{granted}the rest is a Gaussian " + (
        "with the covariance of public examples" if prior.known else "of independent values (no public examples given)"
    )


def _in_decibels(error: LeastError, words: str, options: BoundOptions) -> Bound:
    def psnr(value: float) -> float:
        return decibels(value, options.value_range)

    low, high = psnr(error.interval[1]), psnr(error.interval[0])
    examples = tuple(psnr(float(value)) for value in error.examples)
    return Bound("psnr_db", "van_trees", psnr(error.mean), (low, high), f"{words}.", FIRST_ORDER, examples=examples)


def _account_bounds(account: RankAccount, left_out: str) -> list[Bound]:
    method: Method = "rank" if account.exact else "count"
    how = "singular values below 2^-23 of the largest count as 0" if account.exact else "by counting alone"
    words = f"{account.sent:,} numbers were sent of {account.private:,} private ones; {how}{left_out}"
    shares = tuple(float(share) for share in account.hidden)
    hidden = sum(shares) / len(shares)
    binds = "every attacker that reads the update alone, to first order"
    return [
        Bound("rank", method, account.rank, (account.rank, account.rank), f"{words}.", binds, account.private),
        Bound("unseen_share", method, hidden, (hidden, hidden), f"{words}.", binds, None, shares, account.pixels),
    ]
