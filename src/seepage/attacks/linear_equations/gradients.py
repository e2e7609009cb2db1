"""A fully connected ReLU network's update, layer by layer, and the examples that groups of its units give."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from seepage.attacks.base import Inapplicable
from seepage.attacks.linear_equations.known_inputs import KnownInputs
from seepage.attacks.network import CERTIFYING_MISMATCH, AttackedRound, best_labels, in_range, relative_mismatch
from seepage.attacks.network.evidence import FAINT
from seepage.attacks.rgap.chain import Chain, LinearMap, solved
from seepage.base.algebra.rows import parallel_rows
from seepage.federation.types import Reconstruction, Transcript

INSTEAD = "use cocktail_party or a matching attack such as inverting_gradients"
ONE_EXAMPLE = 1e-4
"""Largest relative mismatch of a group of units at which it is one example. Float32 leaves about 1e-6."""
REFINEMENTS = 8
"""Times that patterns and slopes are computed anew from the examples that the equations gave."""
SCALES, ZOOMS = 200, 6
"""Lengths tried along a direction without a bias, and how often the best one's neighborhood is tried again."""


@dataclass(frozen=True, eq=False)
class LayerGradients:
    """An update, layer by layer.

    Attributes:
        attacked: The one round.
        chain: The model, fully connected layers with a ReLU between each two, in float64.
        rows: `[out, in]` gradient of each layer's weight; where it has a bias `[out, in + 1]`, that gradient last.
        batch_size: Examples behind the update.
    """

    attacked: AttackedRound
    chain: Chain
    rows: tuple[Tensor, ...]
    batch_size: int

    @classmethod
    def of(cls, transcript: Transcript) -> "LayerGradients":
        """Read a transcript's first round; `Inapplicable` where the model is no ReLU network."""
        attacked = AttackedRound.of(transcript)
        chain = Chain.of(attacked.model, attacked.observed.params, attacked.knowledge.input_shape)
        for layer in chain.maps:
            if not isinstance(layer.module, nn.Linear):
                raise Inapplicable(
                    f"layer {layer.name!r} is a convolution, in which one row of the gradient sums over all places",
                    INSTEAD,
                )
        for layer in chain.maps[:-1]:
            if layer.after.forward is not torch.relu:
                raise Inapplicable(
                    f"no ReLU follows layer {layer.name!r}, so no unit is on for one example alone", INSTEAD
                )
        if len(chain) < 2:
            raise Inapplicable("the model has one layer, and every example reaches all of its outputs", INSTEAD)
        rows = []
        for layer in chain.maps:
            row = attacked.gradient[f"{layer.name}.weight"].double()
            if layer.bias is not None:
                row = torch.cat([row, attacked.gradient[f"{layer.name}.bias"].double()[:, None]], 1)
            rows.append(row)
        assert attacked.observed.batch_size is not None
        return cls(attacked, chain, tuple(rows), attacked.observed.batch_size)

    def nothing(self) -> KnownInputs:
        """No example, at the first layer."""
        like = self.chain.maps[0].weight
        none = torch.zeros(0, dtype=torch.int64, device=like.device)
        return KnownInputs(0, like.new_zeros((0, like.shape[1])), none, like.new_zeros(0), like.new_zeros(0))

    def raised(self, known: KnownInputs) -> KnownInputs:
        """The same examples at the next layer."""
        reading = self.chain.run(known.layer, known.readings).reading(known.layer + 1)
        return replace(known, layer=known.layer + 1, readings=reading)

    def lowered(self, known: KnownInputs) -> KnownInputs:
        """Those of the examples that the weights of all layers before determine, at the first layer."""
        found = self.nothing()
        for place, reading in enumerate(known.readings):
            at: Tensor | None = reading
            for layer in range(known.layer - 1, -1, -1):
                at = None if at is None else _read(self.chain.maps[layer], at)
            if at is not None and self._plausible(0, at[None]).all():
                one = known.at(slice(place, place + 1))
                found = found.joined(replace(one, layer=0, readings=at[None]))
        return found

    def rest(self, known: KnownInputs) -> tuple[Tensor, ...]:
        """The gradients of the layers from `known.layer` on without the known examples' share."""
        passed = self.chain.run(known.layer, known.readings)
        slopes = self.chain.slopes(passed, known.labels)
        rest = []
        for layer in range(known.layer, len(self.chain)):
            reading = passed.reading(layer)
            if self.chain.maps[layer].bias is not None:
                reading = torch.cat([reading, torch.ones_like(reading[:, :1])], 1)
            # dL/dW = 1/n sum_i slope_i f_i^T, the loss being a mean over the batch. [out, in (+ 1)]
            rest.append(self.rows[layer] - slopes[layer].T @ reading / self.batch_size)
        return tuple(rest)

    def noise(self, known: KnownInputs) -> Float[Tensor, " m"]:
        """Size of the error to expect in each row of what is left of a layer's gradient.

        Rounding of the row as it was sent, and the errors of the readings that were taken away from it.
        """
        weight = f"{self.chain.maps[known.layer].name}.weight"
        rounding = 2 * torch.finfo(self.attacked.observed.update.tensors[weight].dtype).eps
        slopes = self.chain.slopes(self.chain.run(known.layer, known.readings), known.labels)[known.layer]
        # Row j loses sum_i slope_ij (f_i, 1)^T / n; a relative error e_i of f_i leaves slope_ij e_i |(f_i, 1)| / n. [k,
        # m]
        taken = slopes * (known.error * (known.readings.square().sum(1) + 1).sqrt())[:, None] / self.batch_size
        noise: Tensor = rounding * self.rows[known.layer].norm(dim=1) + taken.norm(dim=0)
        return noise

    def grown(self, known: KnownInputs) -> KnownInputs:
        """Known examples of a layer and those that groups of its units give, taken away until no group gives any."""
        while len(known.labels) < self.batch_size:
            rest = self.rest(known)
            least = 2 if self.chain.maps[known.layer].bias is None else 1
            noise = self.noise(known)
            groups = parallel_rows(rest[0], noise, least=least)
            before = len(known.labels)
            for one in self._checked(known.layer, groups, rest, noise):
                if len(known.labels) < self.batch_size and not known.has(one.readings[0]):
                    known = known.joined(one)
            if len(known.labels) == before:
                break
        return known

    def _checked(
        self,
        layer: int,
        groups: list[tuple[Tensor, Tensor, Tensor]],
        rest: tuple[Tensor, ...],
        noise: Float[Tensor, " m"],
    ) -> Iterator[KnownInputs]:
        """Groups that are one example each, the surest first."""
        if not groups:
            return
        directions, units, sent = (torch.stack(parts) for parts in zip(*groups, strict=True))
        # The common direction averages the group's rows by size: its relative error is that of the whole group. [k]
        error = (units * noise).norm(dim=1) / sent.norm(dim=1)
        if self.chain.maps[layer].bias is not None:
            # The row is slope (f, 1): its last entry is the slope, and what is left over it is the reading.
            ends = directions[:, -1:]
            readings, sent = directions[:, :-1] / ends, sent * ends
        else:
            readings, sent = self._scaled(layer, directions, sent)
        there = readings.isfinite().all(1) & self._plausible(layer, readings)
        readings, sent, units, error = readings[there], sent[there], units[there], error[there]
        if layer > 0:
            readings = readings.clamp(min=0)
        passed = self.chain.run(layer, readings)

        def mismatches() -> Iterator[Tensor]:
            """`[k]` for each label: of the group's slopes, or of its columns of the next layer's gradient if larger."""
            for label in range(self.attacked.knowledge.num_classes):
                slopes = self.chain.slopes(passed, self.attacked.label(label, len(readings)))
                # The slopes that the network itself gives this example at this label, over n, must be the group's
                # sizes.
                own = relative_mismatch(slopes[layer] * units / self.batch_size, sent)
                columns = self._columns_apart(passed.reading(layer + 1) * units, slopes[layer + 1], rest[1], units)
                yield torch.maximum(own, columns)

        labels, best = best_labels(mismatches())
        for place in best.argsort(stable=True).tolist():
            if best[place] <= ONE_EXAMPLE:
                at = slice(place, place + 1)
                yield KnownInputs(layer, readings[at], labels[at], best[at], error[at])

    def _columns_apart(
        self, on: Float[Tensor, "k m"], slopes: Float[Tensor, "k c"], rest: Tensor, units: Tensor
    ) -> Float[Tensor, " k"]:
        """Relative distance of the group's columns of the next layer's gradient and the example's own, `h_j slope`."""
        sent = rest[:, : units.shape[1]]  # [c, m]: without the bias
        # |own - sent|^2 over the group's units = |h|^2 |s|^2 - 2 sum_j h_j (s . sent_j) + sum_j |sent_j|^2
        size = units.double() @ sent.square().sum(0)
        own = slopes / self.batch_size
        apart = on.square().sum(1) * own.square().sum(1) - 2 * (on * (own @ sent)).sum(1) + size
        relative: Tensor = (apart.clamp(min=0) / size).sqrt()
        return relative

    def _scaled(self, layer: int, directions: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Readings and slopes of groups whose layer has no bias: the lengths s at which both sides agree.

        A row is `slope_j(s) s d`, d the direction, so the network's own slopes at `s d` must be `size_j / s` for one
        label. Behind a ReLU d is not negative; in front of the first layer both signs are tried.
        """
        if layer > 0:
            signs = directions.sum(1, keepdim=True).sign()
            directions, sizes = directions * signs, sizes * signs
            lengths, _ = self._lengths(layer, directions, sizes)
            return lengths[:, None] * directions, sizes / lengths[:, None]
        (plus, one), (minus, other) = (self._lengths(layer, sign * directions, sign * sizes) for sign in (1, -1))
        lengths = torch.where(one <= other, plus, -minus)[:, None]
        return lengths * directions, sizes / lengths

    def _lengths(self, layer: int, directions: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        """`[k]` the length of each direction at which the misfit of its slopes is least, and that misfit."""
        # Lengths in units of sqrt(d), a reading of entries of size 1: from 1e-4 to 1e2 of it, then zoomed in.
        width = directions.shape[1] ** 0.5
        low = torch.full((len(directions),), -4.0).to(directions)  # of the logarithm to base 10
        span = 6.0
        for _ in range(ZOOMS):
            grid = low[:, None] + span * torch.linspace(0, 1, SCALES).to(low)  # [k, S]
            misfit = self._slopes_apart(layer, directions, sizes, width * 10**grid)
            best = misfit.argmin(1)
            center = grid.gather(1, best[:, None])[:, 0]
            # Two steps of the grid to either side.
            span = span * 4 / SCALES
            low = center - span / 2
        return width * 10**center, misfit.amin(1)

    def _slopes_apart(self, layer: int, directions: Tensor, sizes: Tensor, lengths: Tensor) -> Tensor:
        """`[k, S]` relative misfit of the slopes of the best label at each length."""
        count = lengths.shape[1]
        readings = (lengths[:, :, None] * directions[:, None]).flatten(0, 1)  # [k S, d]
        wanted = (sizes[:, None] / lengths[:, :, None]).flatten(0, 1)
        passed, tries = self.chain.run(layer, readings), range(self.attacked.knowledge.num_classes)
        every = (self.chain.slopes(passed, self.attacked.label(label, len(readings)))[layer] for label in tries)
        _, best = best_labels(relative_mismatch(own * (wanted != 0) / self.batch_size, wanted) for own in every)
        return best.reshape(-1, count)

    def _plausible(self, layer: int, readings: Float[Tensor, "k d"]) -> Tensor:
        """`[k]` bool: readings that an example can cause, give or take rounding."""
        if layer > 0:  # behind a ReLU
            return (readings >= -1e-3 * readings.amax(1, keepdim=True)).all(1) & (readings.amax(1) > 0)
        return in_range(self.chain.to_inputs(readings), self.attacked.knowledge.value_range)

    def solved_down(self, known: KnownInputs) -> tuple[Float[Tensor, "n d"], Tensor]:
        """What the first layer reads of all examples, and the relative distance of their gradient from the sent one."""
        passed = self.chain.run(known.layer, known.readings)
        slope, reading = self.chain.slopes(passed, known.labels)[known.layer], known.readings
        for layer in range(known.layer - 1, -1, -1):
            # slope_l = relu'(z_l) * W_(l+1)^T slope_(l+1): what layer l + 1 reads is positive where its unit is on. [n,
            # m]
            on = reading > 1e-5 * reading.amax(1, keepdim=True)
            slope = on * self.chain.maps[layer + 1].pulled_back(slope)
            reading = self._solved(layer, slope)
        best = reading, self._misfit(reading, known.labels)
        for _ in range(REFINEMENTS):
            # Patterns and slopes of the examples that the equations gave; those of exact ones give them back.
            slope = self.chain.slopes(self.chain.run(0, reading), known.labels)[0]
            reading = self._solved(0, slope)
            misfit = self._misfit(reading, known.labels)
            if misfit >= best[1]:
                break
            best = reading, misfit
        return best

    def _solved(self, layer: int, slope: Float[Tensor, "n out"]) -> Float[Tensor, "n d"]:
        """`sum_i slope_i f_i^T / n = dL/dW`: as many equations as units, for n unknowns in each column."""
        # slope^T [out, n] F [n, d] = n dL/dW [out, d]; gelsd takes the smallest F where slopes are dependent.
        wanted = self.rows[layer][:, : self.chain.maps[layer].unknowns]
        found = torch.linalg.lstsq(slope.T.cpu() / self.batch_size, wanted.cpu(), driver="gelsd").solution
        reading: Tensor = found.to(slope)
        return reading if layer == 0 else reading.clamp(min=0)

    def _misfit(self, readings: Tensor, labels: Tensor) -> Tensor:
        nothing = torch.zeros_like(readings[:, 0])
        first = KnownInputs(0, readings, labels, nothing, nothing)
        apart = torch.stack([part.norm() for part in self.rest(first)]).norm()
        relative: Tensor = apart / torch.stack([part.norm() for part in self.rows]).norm()
        return relative

    def reconstruction(
        self, readings: Tensor, labels: Tensor, mismatch: Tensor, certified: Tensor, notes: tuple[str, ...]
    ) -> Reconstruction:
        """Readings of the first layer as inputs in the model's own precision."""
        knowledge = self.attacked.knowledge
        inputs = self.chain.to_inputs(readings).clamp(*knowledge.value_range).reshape(-1, *knowledge.input_shape)
        return Reconstruction(
            inputs=inputs.to(self.attacked.like()).contiguous(),
            labels=labels,
            objective=mismatch.float().contiguous(),
            certified=certified.contiguous(),
            status="ok" if len(labels) == self.batch_size else "exhausted",
            cost={"evaluations": 1},
            notes=notes,
        )


def _read(layer: LinearMap, reading: Float[Tensor, " out"]) -> Float[Tensor, " d"] | None:
    """What a layer read where `reading` came out of its ReLU; None where the weights do not determine it.

    At units that are on, `W x + b` is known: as many equations as such units. Units that are on faintly may be off, and
    their value rounding; they are left out, and the solution is tried on all units.
    """
    # W_on x + b_on = reading_on: [units on, d].
    on = reading > FAINT * reading.max()
    if int(on.sum()) < layer.unknowns:
        return None
    found, rank, _ = solved([(layer.weight[on], (reading - layer.spread_bias(len(reading)))[on])], rcond=1e-4)
    again = torch.relu(layer.outputs(found[None])[0])
    return found if rank == layer.unknowns and (again - reading).norm() < CERTIFYING_MISMATCH * reading.norm() else None
