r"""Which local step made a difference of weights: rules are compared by how well each explains all tensors.

Two things tell, and each is held against the errors that number formats leave (`seepage.federation.measured`):

    a ceiling    of a bent step no entry moves by more than s, and where gradients are large many move by just that, up
                 to the rounding of each weight. A gradient's largest entries differ from one module to the next.
    sums         the rows of the gradient of a softmax's last layer add up to zero, column by column, and so does its
                 bias: sum_k x_k = 0 within (sum_k sigma_k^2)^1/2 for the right rule, and for no other.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from seepage.attacks.exposure.balance import Balance
from seepage.attacks.exposure.labels import head_of
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.nn import generator, last_linear
from seepage.base.rounding import DEVIATIONS, FALSE_ALARM, FLOAT32_SUM, FLOAT32_ZERO
from seepage.base.schema import Finding
from seepage.federation.measured import ROUNDING, Formats, Step, decay_of, format_told, measured_entries, spread_of
from seepage.federation.types import ClientUpdate, Target, Tensors

ADAM = "Adam, AdamW, RMSprop or Adagrad"
"""Optimizers whose first step is `g / (|g| + eps)` times a rate."""
LEAST_ENTRIES = 8
"""Entries of a tensor from which its largest is looked at."""
NEAR = 0.1
"""Relative distance from the ceiling within which a decay is fitted, and several steps' or Adadelta's entries end."""
LIVE = 0.01
"""Share of the ceiling below which an entry has next to no gradient."""
MANY_ENTRIES, LARGE_SHARE = 200, 0.3
"""Live entries of a tensor, and the share of them above half of the largest, from which they were held down: of 200
normal numbers 15 % are, and of a gradient's, whose tails are heavier, fewer."""
FULL_SHARE = 0.8
"""Share of a tensor's live entries near the ceiling from which few of them suffice."""
ADAM_EPS = 1e-8
"""PyTorch's, and the guess where nothing tells: it scales the gradient as a whole."""
GAP = 1e-3
"""Relative distance of the largest entry from a rate above it, of small gradients."""
MOST = 0.5
"""Share of a tensor's live entries at the ceiling from which it is of one step of Adam, where sums cannot be tested."""
BY_CHANCE = 1e-4
"""Chance of another rule to explain the sums, below which they prove one."""
DECAYED = 1e-4
"""Share of the ceiling by which a decay must move some weight: one of 1e-3 beside Adam moves a weight of 0.1 so far."""
FITS = 10
"""Grids in which a rate is looked for, each 2.5 times as fine as the one before."""
PASSES = 4
"""Of a mean over entries that agree with it."""
ROUND_DIGITS, ROUND = 3, 2e-6
"""Digits of a learning rate that somebody chose, and relative distance up to which a ceiling is taken for it."""
PAIRED, SHIFTS = 2**12, 4
"""Entries of a tensor that are paired to fit a decay, and pairs of each."""
FEWEST_BELOW = 40
"""Entries between half of the ceiling and nearly all of it, of which a step that bends would leave some nearer to it:
a tenth and more, so none with a chance of 1.5 %."""
FEWEST_EQUATIONS, MOST_UNKNOWN = 8, 1024
"""Equations more than unknowns, that no gradient meets by chance, and the most unknowns that are solved for."""
PIECES, COLUMNS = 2**16, 256
"""Entries of a tensor that are looked at, and columns of the last layer beside which a rate is fitted."""


@dataclass(frozen=True)
class Explained:
    """How one rule explains a difference of weights.

    Attributes:
        step: The rule's step.
        off: Root mean square of the sums that must vanish, in units of their errors; None: none can be tested.
        tested: Number of those.
        chance: Of the sums of any other rule to be as small: each falls within its errors with the chance
            `errors / terms`, and as many columns are independent as their rank. Two terms cancel under every rule, so
            the third largest counts.
    """

    step: Step
    off: float | None = None
    tested: int = 0
    chance: float = 1.0

    @property
    def proved(self) -> bool:
        """The sums vanish, as those of no other rule would."""
        return self.off is not None and self.off <= DEVIATIONS and self.chance < BY_CHANCE

    @property
    def words(self) -> str:
        """The rule, and how well it explains the sums."""
        if self.off is None:
            return f"{self.step.name} (its errors leave no sum to test)"
        return f"{self.step.name} ({self.off:.2g} times its errors in {self.tested} sums)"


@dataclass(frozen=True)
class Adaptive:
    """That a difference of weights is no step along a gradient, and what explains it best.

    Attributes:
        size: The most that a weight moved, but for decay.
        best: The rule that explains it; None: no single step that is known.
        others: What else was compared, the runner-up first.
        shares: The share of each weight that a decay beside the step took off it, by name.
        modules: Modules with entries at the ceiling.
        flat: All entries that moved are at it, so that nothing tells the sizes of a gradient.
        other: What was recognized that is none of those: how its entries look, in words.
    """

    size: float
    best: Explained | None
    others: tuple[Explained, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    modules: int = 0
    flat: bool = False
    other: str = ""

    @property
    def finding(self) -> Finding:
        """In words, with numbers."""
        evidence = {"size": self.size, "one_step": bool(self.flat or self.other or self.best), "modules": self.modules}
        evidence["proved"] = self.best is not None and self.best.proved
        evidence["other"], evidence["flat"] = bool(self.other), self.flat and self.best is None
        evidence["decay"] = max(self.shares.values(), default=0.0)
        evidence["coupled"] = 0.0 if self.best is None else self.best.step.coupled
        signs = "signSGD, Lion or Rprop"
        if self.other:
            message = f"{self.other}; only signs are read"
        elif self.flat and self.best is None:
            message = (
                f"assumed: one step of signs, as entries that moved changed by {self.size:.4g}: of {signs}, a "
                "clip by value, Adam on gradients far above its epsilon, or SGD on examples of zeros and ones"
            )
        elif self.best is None:
            message = (
                "assumed: held to one size, as in tensor after tensor the largest entries changed by "
                f"{self.size:.2g} and none by more, which no single step that was tried explains: several steps of "
                "Adam or AdamW, a clip by value, another optimizer, or SGD on absolute errors; only signs are read, "
                "unless the step is stated (--client fedavg:optimizer=adam,lr=…,steps=1)"
            )
        else:
            beside = f", beside a decay of {evidence['decay']:.2g} of the weights" * bool(self.shares)
            coupled = self.best.step.coupled
            beside += f", with a decay in its gradient, of {coupled:.3g} if that is Adam's" * bool(coupled)
            against = "".join(f"; {one.words} is the runner-up" for one in self.others[:1])
            how = "as" if self.best.proved else "assumed to be, as several may look alike,"
            message = (
                f"{how} one step of {self.best.words} from a fresh state leaves it: no entry changed by more than "
                f"{self.size:.4g}{beside}{against}"
                + f"; all that moved changed by that, as in a step of signs, too: of {signs}"
                * self.flat
            )
        return Finding(
            name="adaptive",
            message=message,
            evidence=evidence,
            limit="Later steps of such an optimizer, and several at once, need not have such a mark.",
        )


def vanishing_sums(
    model: nn.Module,
    outputs: int,
    rule: ClientUpdate,
    target: Target,
    input_shape: tuple[int, ...],
    params: Tensors | None = None,
) -> tuple[str, ...]:
    """Tensors of the last layer whose rows add up to zero in a gradient of the client's loss: a softmax's.

    Args:
        model: The network.
        outputs: Number of its outputs.
        rule: The client's rule.
        target: What examples are trained towards.
        input_shape: Shape of one example.
        params: Weights, where the model has others.

    Returns:
        None of a network that changes what its last layer returns, as a ReLU does.
    """
    names = last_linear(model, outputs) if rule.loss == "cross_entropy" and target == "class" else None
    if names is None or head_of(model, params or {}, input_shape, names[0]).kind != "outputs":
        return ()
    return tuple(filter(None, names))


TOLD = {
    True: "SGD, with momentum or without, by sums of the last layer, which moved by one rate",
    None: "assumed: SGD, as entries have many sizes",
    False: "assumed: SGD, though sums of the last layer are not a gradient's",
}
"""What is said of the optimizer by what `along_gradient` returns."""


def sgd_words(along: bool | None, balance: Balance | None, rates: Mapping[str, float]) -> str:
    """What is said of an optimizer that may be SGD.

    Args:
        along: As `along_gradient` returns it.
        balance: What the balance of neurons says.
        rates: The rate of each tensor over the last bias's, or the first's, where these differ.

    >>> sgd_words(True, Balance(26, {}), {})
    'SGD, with momentum or without, by the balance of 26 neurons, whose tensors moved by one rate'
    """
    if balance is None:
        return TOLD[along]
    by = f"by the balance of {balance.neurons} neurons"
    if not rates:
        return f"SGD, with momentum or without, {by}, whose tensors moved by one rate"
    low, high = min(rates.values()), max(rates.values())
    least, most = (min(name for name in rates if rates[name] == one) for one in (low, high))
    return (
        f"SGD with rates of their own for tensors, as LARS or groups of parameters have, {by}: that of {most} is "
        f"{high / low:.3g} times that of {least}; taken out"
    )


def along_gradient(moved: Mapping[str, Tensor], weights: Mapping[str, Tensor], *, sums: Collection[str]) -> bool | None:
    """Whether a difference of weights is linear in gradients: one or more steps of SGD, with momentum or without.

    Args:
        moved: By how much each tensor changed, but for decay.
        weights: What was sent out, by name.
        sums: As of `adaptive_step`.

    Returns:
        True where the sums of a gradient vanish, as those of no other rule would; False where they do not, within their
        errors; None where nothing tells: of two classes the sums of every optimizer vanish.
    """
    looked = _Looked.of(moved, weights)
    zero = [name for name in sums if name in moved and name in weights and len(moved[name]) > 2]
    if looked is None or not zero:
        return None
    plain = _explained(Step.sgd(), moved, weights, looked.formats, zero, {})
    if plain.proved:
        return True
    return False if plain.off is not None and plain.off > DEVIATIONS else None


def adaptive_step(
    moved: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    sums: Collection[str] = (),
) -> Adaptive | None:
    """What a difference of weights was made by where it was no step along a gradient; None where it may have been.

    Args:
        moved: By how much each tensor changed.
        weights: What was sent out, by name.
        sums: Tensors of the last layer whose rows add up to zero in a gradient: of a softmax. Empty: they need not.
    """
    looked = _Looked.of(moved, weights)
    if looked is None:
        return None
    zero = [name for name in sums if name in moved and name in weights and moved[name].ndim]
    ceiling, share = looked.ceiling()
    coupled = None if share else looked.coupled()  # what a decay beside the step took off depends on the weights, too
    if coupled is not None:
        looked = looked.without(coupled)
        ceiling, share = looked.ceiling()
    shares = looked.shares(ceiling, share)
    piled, over = looked.piled(ceiling, shares)
    flat = looked.flat(ceiling, shares)
    if flat and looked.alone:
        return Adaptive(ceiling, None, shares=shares, flat=True)
    plain = _explained(Step.sgd(), moved, weights, looked.formats, zero, {})
    other = None if flat else looked.sized_alone() or factored(moved, weights, looked.formats)
    if other is not None:
        return Adaptive(ceiling, None, (plain,), other=other)
    rate, near = looked.rate(share)
    if rate is not None and (over or _chosen(ceiling) != rate):
        ceiling, shares, full = rate, looked.shares(rate, share), near
        piled, over = looked.piled(ceiling, shares)
    else:
        full = {name for name, count in piled.items() if count >= LEAST_ALIKE}
    modules = len({name.rpartition(".")[0] for name in full})
    # Of a layer that moved alone the sums say that it is no gradient, or what gathers below a rate.
    alone = len(full) > 1 and plain.off is not None and plain.off > DEVIATIONS
    alone |= bool(full) and looked.gathers(_chosen(ceiling), shares)
    if not over and (modules > 1 or alone):
        known = coupled.coupled if coupled else 0.0
        found = _of_ceiling(looked, moved, weights, zero, shares, ceiling, piled, modules, plain, known)
        return replace(found, flat=flat)
    smooth = _smooth(looked, moved, weights, zero, plain)
    if smooth is not None:
        return Adaptive(smooth[0].step.rate, smooth[0], (*smooth[1:], plain))
    held = looked.held()
    # Of two classes whatever an optimizer does is antisymmetric, so that their sums vanish in any case.
    several = any(len(moved[name]) > 2 for name in zero)
    if several and plain.off is not None and plain.off < DEVIATIONS:
        return None  # the sums of a gradient: its largest entries met by chance
    return Adaptive(ceiling, None, (plain,)) if held else None


def _of_ceiling(
    looked: "_Looked",
    moved: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    zero: Sequence[str],
    shares: Mapping[str, float],
    ceiling: float,
    piled: Mapping[str, int],
    modules: int,
    plain: Explained,
    coupled: float,
) -> Adaptive:
    """Entries lie at one ceiling: bent there as by Adam, or cut off as by a clip; else several steps."""
    rate = _chosen(ceiling)
    told = abs(float(f"{ceiling:.{ROUND_DIGITS - 1}e}") / ceiling - 1) <= ROUND
    shares = {name: _chosen_share(share, rate) for name, share in shares.items()} if told else shares
    bent = replace(Step.adam(rate), name=ADAM, scaled=True, coupled=coupled)
    bent = bent if told else replace(bent, rate=ceiling)
    if told:  # the kin's own constants, float32 numbers each, move the ceiling by 1e-7 of itself
        kin = (bent, replace(bent, rate=Step.adagrad(rate).rate), replace(bent, rate=Step.rmsprop(rate / 10).most))
        bent = min(kin, key=lambda step: _worth(_explained(step, moved, weights, looked.formats, zero, shares)))
    cut = Step(name="SGD clipped by value", limit=ceiling * (1 - FLOAT32_SUM), scaled=True)
    # Of two classes every optimizer's sums vanish, and say nothing.
    zero = zero if any(len(moved[name]) > 2 for name in zero) else ()
    found = [_explained(step, moved, weights, looked.formats, zero, shares) for step in (bent, cut)]
    # Of a gradient far above eps the sums cannot be tested; what lies just below the ceiling tells the two apart.
    found.sort(key=lambda one: DEVIATIONS if one.off is None else one.off)
    if found[0].off is None or all(one.off is None or one.off <= DEVIATIONS for one in found):
        bends, tested = looked.bends(ceiling, shares), found[0].off is not None
        found.sort(key=lambda one: (one.step is bent) != bends)
        # Of several steps the ceiling is no rate that somebody chose, and of a small gradient few entries are there.
        many = tested or looked.share_at(ceiling, piled) >= MOST
        single = (bends and (told or many)) or (many and looked.cuts(ceiling, shares))
    else:
        fitted = _smooth(looked, moved, weights, zero, plain) if found[0].off > DEVIATIONS else None
        found = [*(fitted or ()), *found]
        single = found[0].off is not None and found[0].off <= DEVIATIONS
    size = max(ceiling, found[0].step.rate) if single and found[0].step.gain else ceiling
    return Adaptive(size, found[0] if single else None, (*(found[1:] if single else found), plain), shares, modules)


def factored(moved: Mapping[str, Tensor], weights: Mapping[str, Tensor], formats: Formats) -> str | None:
    """That entries were divided by means of their row and of their column, as Adafactor does; None: nothing says so.

    Of `u_ij = g_ij (m / (r_i c_j))^1/2` with the means r_i, c_j and m of g^2 over rows, columns and all,

        sum_j c_j u_ij^2 = m d       for each row i, with one positive weight for each column,

    and so for columns. It is tested with more equations than the squares have independent columns.
    """
    found = [_weighed(moved[name], weights[name], formats) for name in moved if name in weights]
    told = [one for one in found if one is not None]
    if not told or not all(fits for fits, _, _ in told):
        return None
    equations, unknown = (sum(counts) for counts in zip(*((one[1], one[2]) for one in told), strict=True))
    return (
        f"as Adafactor leaves it: one number for each column or row weighs out the squares of a matrix, in "
        f"{equations} equations of {unknown} unknowns"
    )


def _weighed(change: Tensor, weight: Tensor, formats: Formats) -> tuple[bool, int, int] | None:
    """Whether one number for each column weighs out a matrix's squares, by how many equations of how many unknowns.

    Columns and rows change places where there are more columns. None: there are too few equations to tell.
    """
    if change.ndim != 2:
        return None
    own, weight = ((one.T if change.shape[0] < change.shape[1] else one).double() for one in (change, weight))
    live = own.abs().amax(1) > 0
    own, weight = own[live], weight[live]
    if not len(own) > FEWEST_EQUATIONS or own.shape[1] > MOST_UNKNOWN:
        return None
    place = torch.linspace(0, len(own) - 1, min(len(own), 2 * own.shape[1] + PIECES // 2**9)).long()
    own, weight = own[place], weight[place]
    spread = spread_of(weight + own, formats.stored) + 3 * ROUNDING * own.abs()
    size = own.square().mean()
    squares, off = own.square() / size, 2 * own.abs() * spread / size
    left, kept, right = torch.linalg.svd(squares, full_matrices=False)
    rank = int((kept > DEVIATIONS * off.norm()).sum())
    # Rows of one pattern, such as of entries that were all cut off or of black and white inputs, are one equation: a
    # row counts where no row before it lies within both their errors.
    reach = DEVIATIONS * off.norm(dim=1)
    alike = torch.cdist(squares, squares) <= reach[:, None] + reach
    distinct = int((alike.tril(-1).sum(1) == 0).sum())
    sizes = own.abs()[own.abs() > LIVE * own.abs().max()] / own.abs().max()
    held = float((sizes > 1 - NEAR).double().mean()) >= NEAR  # below a ceiling, whose squares are nearly alike
    # Neurons that one of several steps of Adam or Adagrad reached moved by one size each, but for what epsilon leaves.
    moving = squares[:, squares.amax(0) > 0]
    held |= bool((moving.std(0) <= GAP * moving.mean(0)).any())
    if held:
        return False, 0, 0
    # Of rank one all rows have one pattern, which signs leave as well, and one example's rows.
    if distinct - rank < FEWEST_EQUATIONS or rank < 2:
        return None
    solved = right[:rank].T @ ((left[:, :rank].T @ torch.ones(len(own), dtype=own.dtype)) / kept[:rank])
    errors = ((off @ solved.abs()[:, None])[:, 0].square() + FLOAT32_SUM**2).sqrt()
    fits = float(((squares @ solved - 1) / errors).square().mean().sqrt()) <= DEVIATIONS
    fits &= float((solved * squares.mean(0)).min()) > -NEAR  # its weights are positive, as far as they are told
    return fits, len(own), rank


def _few_digits(value: float, off: float) -> float:
    """The number of one or two digits that a value is within its error; itself where none is.

    >>> _few_digits(1.0004e-6, 1e-9), _few_digits(1.2345e-6, 1e-9)
    (1e-06, 1.2345e-06)
    """
    every = (float(f"{value:.{digits}e}") for digits in (0, 1))
    return next((short for short in every if abs(short - value) <= DEVIATIONS * off), value)


def _smooth(
    looked: "_Looked",
    moved: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    zero: Sequence[str],
    plain: Explained,
) -> list[Explained] | None:
    """A bent step of which no entry reaches its ceiling, by the sums alone: its rate is fitted to them."""
    if plain.off is None or plain.off < DEVIATIONS or plain.tested < 2 * LEAST_ALIKE:
        return None
    own, start = (
        {name: one[name].reshape(len(one[name]), -1)[:, :COLUMNS] for name in zero} for one in (moved, weights)
    )
    # Rounding may have put an entry beyond the ceiling.
    top = max(float((change.abs() - DEVIATIONS * spread).max()) for change, _, spread in looked.entries.values())
    found = []
    for name, floor, eps in ((ADAM, 0.0, 1.0), ("Adadelta, or Adagrad above a start", 1.0, 0.0)):

        def at(rate: float, name: str = name, floor: float = floor, eps: float = eps) -> Explained:
            step = Step(name=name, rate=rate, floor=floor, gain=1.0, eps=eps, scaled=True, roundings=8)
            return _explained(step, own, start, looked.formats, zero, {})

        grid = [top * (1 + 10.0 ** (place / 2)) for place in range(-14, 7)]
        tried = sorted((at(rate) for rate in grid), key=_worth)
        best, width = tried[0], 10**0.5
        for _ in range(FITS):  # which sums can be tested changes with the rate, so that it is looked for in finer grids
            gaps = [(best.step.rate / top - 1) * width ** (place / 4) for place in range(-4, 5)]
            best = min([best, *(at(top * (1 + gap)) for gap in gaps)], key=_worth)
            width = width**0.4
        tried.append(best)
        found.append(min(tried, key=_worth))
    first, second = sorted(found, key=_worth)
    if first.off is None or first.off > DEVIATIONS / 2 or first.tested <= LEAST_ALIKE:
        return None
    # Units of the gradient: PyTorch's own constants, as far as nothing tells.
    step = replace(first.step, eps=ADAM_EPS) if first.step.eps else first.step
    return [replace(first, step=step), second]


def _chosen(rate: float) -> float:
    """The number of few digits that a rate is, but for rounding; itself where it is none.

    >>> _chosen(0.00099999992), _chosen(0.0021127)
    (0.001, 0.0021127)
    """
    short = float(f"{rate:.{ROUND_DIGITS - 1}e}")
    return short if abs(short / rate - 1) <= ROUND else rate


def _chosen_share(share: float, rate: float) -> float:
    """The decay of few digits times the rate that a share is, but for the rounding of `1 - share`; itself where none.

    >>> round(_chosen_share(5.000998e-5, 1e-3), 12)
    5e-05
    """
    every = (rate * float(f"{share / rate:.{digits}e}") for digits in (0, 1))
    return next((short for short in every if abs(short - share) <= 2.0**-24), share)


def _worth(one: Explained) -> float:
    return math.inf if one.off is None or not one.tested else one.off


def _explained(
    step: Step,
    moved: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    formats: Formats,
    zero: Sequence[str],
    shares: Mapping[str, float],
) -> Explained:
    """The sums of the last layer's rows in units of their errors, under one rule."""
    squares, logs, independent = list[Tensor](), list[Tensor](), 1
    tops = {name: float(moved[name].abs().max()) for name in zero}
    # Of a bias whose terms cancelled their rounding is left, as where each class is there as often as is expected.
    for name in (one for one in zero if tops[one] > FLOAT32_ZERO * max(tops.values())):
        value, error = measured_entries(weights[name], moved[name], step, formats, shares.get(name, 0.0))
        value, error = value.reshape(len(value), -1), error.reshape(len(error), -1)  # [classes, d]
        size = value.abs().sum(0)
        # A sum is tested where its errors are well below its terms, else any rule would pass.
        spread = (error.square().sum(0) + (FLOAT32_SUM * size).square()).sqrt()
        known = (size > 0) & (DEVIATIONS * spread < size)
        squares.append((value.sum(0)[known] / spread[known]).square())
        third = value.abs().topk(3, 0).values[2] if len(value) > 2 else torch.zeros_like(size)
        if not step.linear:
            # Where entries are small every rule is a factor, and where none was cut off every limit: SGD's sums vanish.
            plain, off = measured_entries(weights[name], moved[name], Step.sgd(), formats, shares.get(name, 0.0))
            plain, off = plain.reshape(len(plain), -1), off.reshape(len(off), -1)
            third = torch.where(plain.sum(0).abs() > 2 * DEVIATIONS * off.square().sum(0).sqrt(), third, 0.0)
        third = third if step.limit == math.inf else torch.zeros_like(third)
        logs.append((DEVIATIONS * spread[known] / third[known]).clamp(max=1.0).log())
        # Of one example all columns are multiples of one vector, whose sum is tested once.
        if bool(known.any()):
            part = value[:, known][:, :COLUMNS]
            noise = float((error[:, known][:, :COLUMNS].square().sum()).sqrt())
            values = torch.linalg.svdvals(part) if noise < math.inf else torch.zeros(0)
            independent = max(independent, int((values > DEVIATIONS * noise).sum()))
    every, ratios = (torch.cat(found) if found else torch.zeros(0) for found in (squares, logs))
    if not len(every):
        return Explained(step)
    chance = math.exp(float(ratios.median()) * min(independent, len(every)))
    return Explained(step, float(every.mean().sqrt()), len(every), chance)


@dataclass(frozen=True)
class _Looked:
    """Some entries of each tensor: by how much they moved, their weights, and how far rounding puts them off."""

    entries: Mapping[str, tuple[Tensor, Tensor, Tensor]]
    formats: Formats
    vectors: frozenset[str]
    widths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, moved: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> "_Looked | None":
        live = {name: tensor for name, tensor in moved.items() if name in weights and bool(tensor.any())}
        most = max(live, key=lambda name: live[name].numel(), default=None)
        if most is None or live[most].numel() < LEAST_ENTRIES:
            return None
        formats = format_told(-live[most], weights[most], Step.sgd(), 0.0)
        formats = formats if formats.stored != "float32" else Formats()
        entries = {}
        for name, tensor in live.items():
            change, weight = (one.flatten()[:PIECES].double() for one in (tensor, weights[name]))
            entries[name] = change, weight, spread_of(weight + change, formats.stored) + 3 * ROUNDING * change.abs()
        widths = {name: max(1, tensor[:1].numel()) if tensor.ndim else 1 for name, tensor in live.items()}
        return cls(entries, formats, frozenset(name for name in live if live[name].ndim < 2), widths)

    def coupled(self) -> Step | None:
        """Adam's step with the decay c in its gradient by which entries moved that had no gradient of their own.

        Rows that were not looked up, and columns of inputs that are zero, agree on x / w = c. Held against the same
        entries with their weights in another order, and against the next level, by Chernoff's bound.

        Returns:
            None where no more agree than by chance, and where c w is so far below epsilon that the step is a factor
            there, and the decay cannot be told from one beside it.
        """
        top = self.top()
        tried = [
            self._agreeing(replace(Step.adam(rate), name=ADAM, scaled=True)) for rate in {top, float(f"{top:.1e}")}
        ]
        most = max((one for one in tried if one is not None), key=lambda one: one[0], default=None)
        return None if most is None else most[1]

    def _agreeing(self, step: Step) -> tuple[int, Step] | None:
        """How many entries agree on a decay in the gradient of this step, and the step with it."""
        parts, rows = list[Tensor](), list[Tensor]()
        for name in self.entries:
            if name not in self.vectors:
                x, off, weight = self._inverted(name, step)
                use = off.isfinite() & (weight != 0) & (DEVIATIONS * off < NEAR * x.abs())
                order = torch.randperm(int(use.sum()), generator=generator(0, "decay in the gradient"))
                parts.append(torch.stack([x[use], off[use], weight[use], weight[use][order]]))
                rows.append((torch.arange(len(x)) // self.widths[name])[use].unique(return_counts=True)[1].double())
        x, off, weight, other = torch.cat(parts, 1) if parts else torch.zeros(4, 0)
        if len(x) < FEWEST_BELOW:
            return None
        same = x * other > 0
        by_chance = _level((x[same] / other[same]).log(), off[same] / x[same].abs())[1].sum()
        same = x * weight > 0
        logs, spread = (x[same] / weight[same]).log(), off[same] / x[same].abs()
        level, agree = _level(logs, spread)
        apart = (logs - level).abs() > NEAR
        by_chance = torch.maximum(by_chance, _level(logs[apart], spread[apart])[1].sum())
        chance, share = (int(by_chance) + 1) / len(x), int(agree.sum()) / len(x)
        if share <= chance:
            return None
        gain = share * math.log(share / chance)  # Kullback and Leibler's distance
        gain += (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
        # Entries of one row may agree for a reason of their own, as where its norm is a parameter: rows are counted.
        sizes = torch.cat(rows)
        gain *= float(sizes.sum().square() / sizes.square().sum())
        found = math.exp(level)
        small = found * float(weight[same][agree].abs().median()) < LIVE * step.eps
        if small or gain < math.log(len(x) / FALSE_ALARM):
            return None
        off_by = found * (float(spread[agree].square().reciprocal().sum()) ** -0.5 + FLOAT32_SUM)
        return int(agree.sum()), replace(step, coupled=_few_digits(found, off_by))

    def without(self, step: Step) -> "_Looked":
        """The same without entries that the step's decay explains by itself, which are no gradient's."""
        left = {}
        for name, one in self.entries.items():
            x, off, weight = self._inverted(name, replace(step, coupled=0.0))
            own = ~((x - step.coupled * weight).abs() <= DEVIATIONS * off) | ~off.isfinite()
            if bool(own.any()):
                left[name] = (one[0][own], one[1][own], one[2][own])
        return replace(self, entries=left) if left else self

    def _inverted(self, name: str, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        change, weight, _ = self.entries[name]
        return *measured_entries(weight, change, step, self.formats), weight

    def freed(self, name: str, share: float) -> tuple[Tensor, Tensor]:
        """Sizes of a tensor's changes beside a decay of this share, and their errors: what it left was rounded too."""
        change, weight, spread = self.entries[name]
        if not share:
            return change.abs(), spread
        beside = (change + decay_of(share) * weight).abs()
        return beside, (spread.square() + spread_of(weight, self.formats.stored).square()).sqrt()

    def top(self, share: float = 0.0) -> float:
        """The largest entry of the middle one of those tensors that come near the largest of all.

        Args:
            share: Of a decay, which is taken out of each tensor whose largest entry it makes smaller.
        """
        large = [name for name, (change, _, _) in self.entries.items() if len(change) >= LEAST_ENTRIES]
        tops = [min(float(self.freed(name, a)[0].max()) for a in {0.0, share}) for name in large]
        reaching = sorted(top for top in tops if top > (1 - NEAR) * max(tops))
        return reaching[len(reaching) // 2]

    def rate(self, share: float) -> tuple[float | None, set[str]]:
        """A number of two digits beside the largest entry that somebody chose as the rate of a bent step, if there is.

        Two modules' largest entries come within a hundredth of one number by chance, and a number of two digits lies
        within a thousandth of it by chance, both rarely; and entries are dense there, not above half of it.

        Args:
            share: Of a decay, that may lie beside it.

        Returns:
            The number, and the tensors with entries near it.
        """
        top = self.top(share)
        rate = float(f"{top:.1e}")
        shares = self.shares(rate, share)
        near = {
            name
            for name in self.entries
            if int((self.freed(name, shares.get(name, 0.0))[0] > (1 - NEAR / 5) * rate).sum()) >= LEAST_ALIKE
        }
        beyond = abs(rate / top - 1) > GAP or len(near) < 2 or self.piled(rate, shares)[1]
        return (None, set()) if beyond or not self.bends(rate, shares) else (rate, near)

    def ceiling(self) -> tuple[float, float]:
        """The ceiling s and the share a of decay that put most entries at the ceiling, within their errors.

        Optimizers spare vectors or do not, so that either kind of tensor is asked for the decay.
        """
        top = self.top()
        rows = [torch.stack([size, spread], 1) for size, spread in (self.freed(name, 0.0) for name in self.entries)]
        sizes, spread = torch.cat(rows).T
        near = (sizes / top - 1).abs() <= NEAR
        level, share = _mode(sizes[near], spread[near]), 0.0
        best = sum(self.piled(level, {})[0].values())
        for vectors in (False, True):
            found = self._pulled([name for name in self.entries if (name in self.vectors) == vectors], top)
            if found is not None and decay_of(found[1]) > 0:  # less is rounded away
                count = sum(self.piled(found[0], self.shares(*found))[0].values())
                # Of entries just below the ceiling some fit any small share.
                seen = (
                    found[1] * max(float(weight.abs().max()) for _, weight, _ in self.entries.values()) > DECAYED * top
                )
                if seen and count > max(1.5 * best, LEAST_ENTRIES):
                    best, (level, share) = count, found
        return level, share

    def _pulled(self, names: Sequence[str], top: float) -> tuple[float, float] | None:
        """Both of `|D| = s + a p, p = -w sign(D)`, at entries of some tensors: most pairs at the ceiling agree on a.

        Entries with small gradients fall short of it by different amounts, so that their pairs agree on nothing.
        """
        rows = list[Tensor]()
        for name in names:
            change, weight, _ = self.entries[name]
            size, spread = change.abs(), self.freed(name, 1.0)[1]
            rows.append(torch.stack([size, -weight * change.sign(), spread], 1)[size > top / 2][:PAIRED])
        every = torch.cat(rows) if rows else torch.zeros(0, 3)
        every = every[every[:, 1].argsort()]
        third = len(every) // 3
        if third < LEAST_ALIKE:
            return None
        low = torch.cat([every[:third]] * SHIFTS)
        high = torch.cat([every[-third:].roll(place * third // SHIFTS, 0) for place in range(SHIFTS)])
        gap = high[:, 1] - low[:, 1]
        wide = gap > gap.max() / 4
        if not bool(wide.any()):
            return None
        tried, off = (high[:, 0] - low[:, 0]) / gap, (high[:, 2].square() + low[:, 2].square()).sqrt() / gap
        share = _mode(tried[wide], off[wide])
        sizes, pulls, spread = every.T
        for _ in range(PASSES):
            freed = sizes - share * pulls
            own = (freed - _mode(freed, spread)).abs() <= DEVIATIONS * spread
            trust = own / spread.square()
            centered = pulls - (trust * pulls).sum() / trust.sum()
            total = float((trust * centered.square()).sum())
            share = float((trust * sizes * centered).sum()) / total if total else share
        return _mode(sizes - share * pulls, spread), share

    def shares(self, ceiling: float, share: float) -> dict[str, float]:
        """The decay of each tensor: that share or none, whichever puts more of its entries at the ceiling.

        And none beyond it: of small gradients few entries are at it, by chance. Tensors that do not tell follow the
        others of their kind, as optimizers spare vectors or do not.
        """
        votes = dict[str, int]()
        for name in self.entries if share else ():
            both = [self.freed(name, a) for a in (share, 0.0)]
            at = [int(((size - ceiling).abs() <= DEVIATIONS * spread).sum()) for size, spread in both]
            within = [not bool(_beyond(size, spread, ceiling).any()) for size, spread in both]
            better = within[0] - within[1] or at[0] - at[1]
            votes[name] = (better > 0) - (better < 0)
        kinds = {kind: sum(votes[name] for name in votes if (name in self.vectors) == kind) for kind in (True, False)}
        return {name: share for name, vote in votes.items() if (vote or kinds[name in self.vectors]) >= 0}

    def piled(self, ceiling: float, shares: Mapping[str, float]) -> tuple[dict[str, int], bool]:
        """Entries of each tensor at the ceiling within their errors, and whether some are beyond it."""
        count, over = dict[str, int](), False
        for name in self.entries:
            size, spread = self.freed(name, shares.get(name, 0.0))
            off = size - ceiling
            # What is as rough as the ceiling lies near it by chance.
            told = DEVIATIONS * spread <= NEAR * ceiling
            count[name] = int((told & (off.abs() <= DEVIATIONS * spread)).sum())
            over |= bool(_beyond(size, spread, ceiling).any())
        return count, over

    @property
    def alone(self) -> bool:
        """Whether one layer moved."""
        return len({name.rpartition(".")[0] for name in self.entries}) == 1

    def flat(self, ceiling: float, shares: Mapping[str, float]) -> bool:
        """Whether all entries that moved are at the ceiling, in two tensors or more, and rounding would let it be seen.

        Or, of one layer, half of them, and no other far below, as few gradients are near Adam's epsilon. Not of a
        gradient that was sent, which somebody may have rounded to signs.
        """
        rows = [torch.stack(self.freed(name, shares.get(name, 0.0)), 1) for name in self.entries]
        sizes, spread = torch.cat(rows).T
        live = sizes > DEVIATIONS * spread
        sizes, room = sizes[live], DEVIATIONS * spread[live] + FLOAT32_SUM * ceiling
        clear = bool((room <= GAP * ceiling).all()) and len(sizes) >= LEAST_ENTRIES and len(rows) > 1
        two = any(bool(weight.any()) for _, weight, _ in self.entries.values())
        at = (sizes - ceiling).abs() <= room
        close = at | (sizes < ceiling).logical_and(sizes > (1 - NEAR) * ceiling)
        return two and clear and bool(at.all() or (self.alone and close.all() and 2 * int(at.sum()) >= len(at)))

    def sized_alone(self) -> str | None:
        """That the entries of each tensor have one size of its own, beside a decay, in words; None where they have not.

        Of tensors with entries enough, in more than one module. Zeros and ones give rows of one size, not matrices.
        """
        modules, sizes, apart = set[str](), list[float](), 0.0
        for name, (change, weight, spread) in self.entries.items():
            top = float(change.abs().max())
            live = int((change.abs() > LIVE * top).sum())
            pull = float((change * weight).sum()) / max(float(weight.square().sum()), 1e-300)
            if bool(((change - pull * weight).abs() <= DEVIATIONS * spread).all()):
                continue  # as a decay alone moves it
            if live < LEAST_ENTRIES or DEVIATIONS * float(spread.max()) > NEAR / 5 * top:
                continue
            level, share = self._pulled([name], top) or (top, 0.0)
            shares = [(top, 0.0), (level, share)] if decay_of(share) > 0 and share * level < NEAR else [(top, 0.0)]
            freed = [(*self.freed(name, a), one) for one, a in shares]
            # Some fall short of it by epsilon over their gradient.
            at = [int(((size - one).abs() <= DEVIATIONS * off + GAP * one).sum()) for size, off, one in freed]
            if max(at) < MOST * live:
                return None
            modules.add(name.rpartition(".")[0])
            size, off, one = freed[at.index(max(at))]
            # Adam's sizes are so near to one another, but where hardly any entry of a tensor falls short of its own.
            own = (size - one).abs() <= 2 * DEVIATIONS * off + FLOAT32_SUM * one
            full = int(own.sum()) >= FULL_SHARE * live
            finest = int(torch.where(own, off, math.inf).argmin())  # of one size all are rounded to the same side
            sizes.append(float(size[finest]) if full else one)
            reach = 2 * DEVIATIONS * float(off[finest]) + FLOAT32_SUM * one
            apart = max(apart, min(reach, GAP * one) if full else GAP * one)
        # What rounding of the weights left even was sent so: levels of one bit.
        levels = all(int(c.abs()[c != 0].unique().numel()) <= 1 for c, _, _ in self.entries.values())
        if levels or len(modules) < 2 or max(sizes) - min(sizes) < apart:
            return None
        return (
            f"assumed: one step of signs, as most entries of each tensor changed by one size of its own, from "
            f"{min(sizes):.2g} to {max(sizes):.2g}: of LAMB, of Adafactor on one example, or of signs that were scaled"
        )

    def share_at(self, ceiling: float, piled: Mapping[str, int]) -> float:
        """Median share of the tensors' live entries that are at the ceiling, of those with some there."""
        found = []
        for name, (change, _, _) in self.entries.items():
            live = int((change.abs() > LIVE * ceiling).sum())
            found += [piled[name] / live] if piled[name] >= LEAST_ALIKE and live else []
        return sorted(found)[len(found) // 2] if found else 0.0

    def gathers(self, ceiling: float, shares: Mapping[str, float]) -> bool:
        """Whether the ceiling is a number that somebody chose, with most entries at it and some just below.

        Rows of ones and zeros put many entries of a gradient at one size too, and none just below it.
        """
        piled, over = self.piled(ceiling, shares)
        most = _chosen(ceiling) == float(f"{ceiling:.{ROUND_DIGITS - 1}e}") and self.share_at(ceiling, piled) >= MOST
        return most and not over and self._below(ceiling, shares)[0] >= LEAST_ENTRIES and self.bends(ceiling, shares)

    def bends(self, ceiling: float, shares: Mapping[str, float]) -> bool:
        """Whether entries gather below the ceiling, as those of Adam do, whose `1 - v = eps / |g|` is of any order.

        Entries that were cut off there are as dense just below as elsewhere: 1 in 25 of those above half of it.
        """
        near, middle = self._below(ceiling, shares)
        return 4 * near >= middle

    def cuts(self, ceiling: float, shares: Mapping[str, float]) -> bool:
        """Whether hardly any of many entries are just below the ceiling, where rounding would let them be seen."""
        near, middle = self._below(ceiling, shares)
        rough = [DEVIATIONS * spread.max() > 0.01 * ceiling for _, _, spread in self.entries.values()]
        return middle >= FEWEST_BELOW and 4 * near < middle and not any(rough)

    def _below(self, ceiling: float, shares: Mapping[str, float]) -> tuple[int, int]:
        """Entries just below the ceiling, and those further below down to half of it."""
        near, middle = 0, 0
        for name in self.entries:
            size, spread = self.freed(name, shares.get(name, 0.0))
            room = 1 - size / ceiling
            near += int(((room > DEVIATIONS * spread / ceiling) & (room < 0.02)).sum())
            middle += int(((room >= 0.02) & (room < 0.5)).sum())
        return near, middle

    def held(self) -> bool:
        """The largest entries of most tensors are near one ceiling, in more than one module, and many near it.

        A feature that is one in all examples gives two tensors of one layer the same entries, so one layer proves
        nothing.
        """
        reach, flat, live_ones, ceiling = 0, set[str](), 0, self.top()
        for name, (change, _, spread) in self.entries.items():
            sizes = change.abs()
            sizes = sizes[sizes > LIVE * ceiling] / ceiling
            if DEVIATIONS * float(spread.median()) > NEAR * ceiling:
                continue  # sizes are so many roundings of the weights
            if len(sizes) < LEAST_ENTRIES:
                continue
            live_ones, top = live_ones + 1, float(sizes.max())
            if top > 1 + NEAR:
                return False
            if top > 1 - NEAR:
                reach += 1
                large = float((sizes > top / 2).double().mean())
                wide = len(sizes) >= MANY_ENTRIES and large >= LARGE_SHARE
                # Of a small tensor nearly all entries are at the ceiling, which is another's too: no gradient's are.
                full = len(sizes) >= 2 * LEAST_ENTRIES and float((sizes > 1 - NEAR).double().mean()) >= FULL_SHARE
                flat |= {name.rpartition(".")[0]} if wide or full else set()
        return reach >= max(min(LEAST_ALIKE, live_ones), live_ones / 2) and len(flat) > 1


def _beyond(sizes: Tensor, spread: Tensor, ceiling: float) -> Tensor:
    """Which entries are larger than a ceiling, beyond their errors."""
    return sizes - ceiling > 2 * DEVIATIONS * spread + FLOAT32_SUM * ceiling


def _level(values: Tensor, spread: Tensor) -> tuple[float, Tensor]:
    """Where most values meet, and which do within their errors."""
    level = _mode(values, spread) if len(values) else 0.0
    return level, (values - level).abs() <= DEVIATIONS * spread


def _mode(sizes: Tensor, spread: Tensor) -> float:
    """Where most sizes meet within their errors: the middle of the fullest window of some errors."""
    order = sizes.sort().values
    width = 2 * DEVIATIONS * float(spread.median())
    ends = torch.searchsorted(order, order + width, right=True)
    first = int((ends - torch.arange(len(order))).argmax())
    level = float(order[first : int(ends[first])].median())
    for _ in range(PASSES):  # the weights that are stored most finely say best where it is
        trust = ((sizes - level).abs() <= DEVIATIONS * spread) / spread.square()
        level = float((trust * sizes).sum() / trust.sum()) if bool(trust.any()) else level
    return level
