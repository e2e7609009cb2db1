"""Upper bounds for any attacker, from the clip and noise of one update, found by the auditor, who holds the batch."""

from dataclasses import dataclass

from seepage.errors import SeepageError
from seepage.federation.clients import FedSGD
from seepage.federation.types import Batch, ClientUpdate, Defense, GaussianMechanism
from seepage.measure.bounds.bound import Bound, UpperBounds
from seepage.measure.bounds.chance import blind_chance
from seepage.measure.bounds.tradeoff import gaussian_auc, gaussian_mu, gaussian_tpr

ALL = "every attacker, whatever it knows beside the update and however long it computes"
PRIOR = "every attacker who knows of this example no more than the stated prior, whatever it knows of the others"


@dataclass(frozen=True, kw_only=True)
class BoundOptions:
    """Assumptions and limits of `upper_bounds`.

    Attributes:
        public: Public examples distributed as the private ones: they give the chance of a blind guess.
        candidates: Number of equally likely candidates among which the attacker knows each example to be; a blind guess
            is then right with chance 1 / candidates. None: no such list.
        rounds: Number of times that the batch is sent at these weights, each time with fresh noise.
        t: Index of the first round; a decaying noise depends on it.
        level: False positive rate, in (0, 1), at which membership is bounded.
        exact_db: PSNR in dB from which on a copy counts as exact.
        value_range: Smallest and largest value of an input.
    """

    public: Batch | None = None
    candidates: int | None = None
    rounds: int = 1
    t: int = 0
    level: float = 0.01
    exact_db: float = 40.0
    value_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        wrong = []
        if self.candidates is not None and self.candidates < 1:
            wrong.append(f"candidates >= 1, got {self.candidates}")
        if self.rounds < 1:
            wrong.append(f"rounds >= 1, got {self.rounds}")
        if not 0 < self.level < 1:
            wrong.append(f"level between 0 and 1, got {self.level}")
        if wrong:
            raise SeepageError(f"bounds need {'; '.join(wrong)}; correct the value")


def upper_bounds(
    batch: Batch,
    *,
    client: ClientUpdate | None = None,
    defense: Defense | None = None,
    options: BoundOptions | None = None,
) -> UpperBounds:
    """Upper bounds on the success of any attacker who sees this update.

    They come from a clip and Gaussian noise alone, and hold for any network and any data.

    Args:
        batch: The private examples.
        client: The client's rule; None: FedSGD in train mode.
        defense: What the client does to its update before sending it.
        options: Public examples, rounds and level; None: defaults.

    Returns:
        The bounds, and for each kind that does not hold the reason.

    Raises:
        SeepageError: For public examples of another shape.

    >>> import torch
    >>> from seepage.federation.defenses import GaussianNoise
    >>> batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([2]))
    >>> upper_bounds(batch, defense=GaussianNoise(sigma=2.0, clip=1.0)).of("tpr").line
    'members identified: at most 9.24 % at 1 % false alarms'
    >>> upper_bounds(batch).reasons
    ('membership and exact copies are not bounded: no stage of the defense is a mechanism of differential privacy',)
    """
    client, options = client or FedSGD(), options or BoundOptions()
    public, shape = options.public, tuple(batch.inputs.shape[1:])
    if public is not None and batch.inputs.is_floating_point() and tuple(public.inputs.shape[1:]) != shape:
        raise SeepageError(
            f"public examples have the shape {tuple(public.inputs.shape[1:])} and private ones {shape}; give public "
            "examples of that shape"
        )
    bounds, reasons = _private(batch, client, defense, options)
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
    words = f"{sentence}; against no example in the place of this one, mu = {mu:.4g}; {source}, so {guess}"
    return [Bound("exact_share", "rero", value, (value, value), f"{words}.", PRIOR, at=options.exact_db)], []
