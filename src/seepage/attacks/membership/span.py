r"""The span test: a batch's vectors lie in the row space of the gradient of the layer that read them.

    G = sum_i delta_i x_i'     [m, d], over all vectors x_i that a fully connected layer read

With fewer vectors than the layer has rows and columns the rows of G span exactly the x_i; with more they span mixtures
of them, which hold a part of each. Errors e of G's entries make a direction that they reach no evidence. With S the
second moment of what the layer reads of public examples and F the rows' errors in its units, the share of a vector
that stays unexplained is

    min_c ((x - G'c)' S^-1 (x - G'c) + c' F c) / x' S^-1 x,      F = diag_j(sum_k e_jk^2 (S^-1)_kk)

0 but for rounding for what the client had, whatever its loss, its labels and the later layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.membership.base import Detector, Done, MembershipTest, held_out, in_deviations, nothing
from seepage.attacks.membership.gradients import AT_ONCE, public_statistics
from seepage.attacks.membership.noise import KnownNoise
from seepage.attacks.membership.shrinkage import ledoit_wolf
from seepage.attacks.text.layers import linear_calls
from seepage.base.algebra.lowrank import INDEPENDENT, low_rank
from seepage.base.nn import captured_calls, forward, in_mode
from seepage.base.registry import membership_tests
from seepage.errors import refuse
from seepage.federation.measured import Measured
from seepage.federation.types import Batch, Knowledge, Round, Tensors

LAYERS, VECTORS = 8, 16
"""Layers that are looked at, and vectors of an example in each, evenly chosen: memory for more is dear."""
DENOISED, FAINT = 128, 1e-3
"""Rows up to which each is denoised by itself, and the relative error of their entries up to which none is."""
WIDEST = 4096
"""Entries of a vector up to which it is whitened by a matrix, else each by itself: memory is its square."""
LEAST_SHARE = 1e-12
"""Share of a vector that float32 leaves unexplained at best."""
ROOM = 0.5
"""Directions outside the span that a layer must have left: with none every vector lies in it."""


@dataclass(frozen=True)
class _Layer:
    """Layers that read the same, such as query, key and value: the module of the first, their weights with the axis of
    each that the input is on, and the places `[v]` of an example's vectors that are looked at, of so many.
    """

    module: str
    weights: Sequence[tuple[str, int]]
    places: Tensor
    vectors: int
    width: int


@dataclass(frozen=True)
class _Span(Detector):
    """The span test at one set of weights.

    Attributes:
        knowledge: What the attacker knows.
        observed: The round.
        buffers: The model's buffers, with public statistics where batch norm is in train mode.
        layers: Those that are looked at.
        whitening: For each the `[d, d]` lower triangular W with `W S W' = I`, or `[d]` the diagonal of one.
        standards: `[s, e]` templates of reference examples.
    """

    knowledge: Knowledge
    observed: Round
    buffers: Tensors
    layers: Sequence[_Layer]
    whitening: Sequence[Tensor] = ()
    standards: Tensor | None = None

    def read(self, examples: Batch, done: Done = nothing) -> list[Tensor]:
        """`[k, v, d]` what each layer reads of the examples, at the weights that were sent."""
        model, names = self.knowledge.model, [layer.module for layer in self.layers]
        parts: list[list[Tensor]] = []
        with in_mode(model, training=False), torch.no_grad():
            for x in examples.inputs.split(AT_ONCE):
                x = x.to(next(iter(self.observed.params.values())).device)
                with captured_calls(model, names) as calls:
                    forward(model, self.observed.params, x, buffers=self.buffers or None)
                seen = ((calls[layer.module][0].input.reshape(len(x), -1, layer.width), layer) for layer in self.layers)
                parts.append([read[:, layer.places] for read, layer in seen])
                for _ in x:
                    done()
        return [torch.cat(one) for one in zip(*parts, strict=True)]

    def templates(self, examples: Batch, done: Done = nothing) -> Tensor:
        """`[k, e]` what the layers read, whitened by public examples and of norm 1, layer by layer."""
        return self.whitened(self.read(examples, done))

    def whitened(self, read: Sequence[Tensor]) -> Tensor:
        rows = []
        for vectors, root in zip(read, self.whitening, strict=True):
            own = _times(vectors.double(), root)
            rows.append((own / own.norm(dim=2, keepdim=True).clamp_min(1e-30)).float().flatten(1))
        return torch.cat(rows, 1)

    def statistics(self, observed: Round, templates: Tensor) -> Tensor:
        """`[k]` minus the logarithm of the share that stays unexplained, in deviations of reference examples."""
        assert self.standards is not None
        both = torch.cat([self.standards, templates])
        sizes = [len(layer.places) * layer.width for layer in self.layers]
        columns = []
        measured = observed.measured(
            self.knowledge.client, [name for layer in self.layers for name, _ in layer.weights]
        )
        for layer, root, part in zip(self.layers, self.whitening, both.split(sizes, 1), strict=True):
            span = self._span(observed, measured, layer, root)
            if span is not None:
                vectors = part.reshape(len(both), -1, layer.width)
                columns.append(-0.5 * _unexplained(vectors, *span).double().log10().mean(1))
        if not columns:
            raise refuse("full_span")(
                "no fully connected layer's update leaves room outside its row space: it is zero, or its rank is as "
                "large as what the layer reads, so that the span holds every vector",
                "use matched_filter, or a batch smaller than the layers are wide",
            )
        return in_deviations(torch.stack(columns, 1), len(self.standards)).mean(1)

    def _span(self, observed: Round, measured: Measured, layer: _Layer, root: Tensor) -> tuple[Tensor, Tensor] | None:
        """`[r, d]` orthonormal directions of the update's rows and `[r]` what of each they leave unexplained."""
        value, error = (
            torch.cat([tensors[name] if axis else tensors[name].T for name, axis in layer.weights])
            for tensors in (measured.value, measured.error)
        )
        if not bool(value.any()):
            return None
        # Of an entry of which nothing but a least size is known that size is a beginning.
        square = torch.where(error.isfinite(), error, value.abs()).square()
        noise = KnownNoise.of(self.knowledge, observed)
        if noise is not None:
            square = square + noise.deviation**2
        value, rows = _denoised(value, square, root)
        parts = low_rank(_times(value, root) / rows.clamp_min(1e-30).sqrt()[:, None], rounding=INDEPENDENT)
        # Behind as many directions as there are vectors stands noise alone, known or not.
        count = len(parts.values) if observed.batch_size is None else observed.batch_size * layer.vectors
        floor = max(1.0, float(parts.values[count])) if count < len(parts.values) else 1.0
        left = floor**2 / (floor**2 + parts.values.square())
        return None if float((1 - left).sum()) > layer.width - ROOM else (parts.right, left)


def _denoised(value: Tensor, square: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as they are expected, and each one's F.

    Rows are mixtures of vectors, of covariance a S: G_j = a S (a S + D_j)^-1 (G_j + E_j), D_j the squared errors, and
    F_j = tr S^-1 a S (a S + D_j)^-1 D_j.
    """
    if root.ndim == 1 or len(value) > DENOISED or float(square.mean()) < FAINT**2 * float(value.square().mean()):
        return value, square @ (root.square() if root.ndim == 1 else root.square().sum(0))
    inverse = torch.linalg.inv(root)
    moment = inverse @ inverse.T  # S
    found, rows = [], []
    for row, own in zip(value, square, strict=True):
        known = own < row.square()
        size = row[known].square().sum() / moment.diagonal()[known].sum().clamp_min(1e-30)  # a
        solved = torch.linalg.inv(size * moment + own.diag())
        found.append(size * moment @ (solved @ row))
        rows.append(size * (solved.diagonal() @ own))
    return torch.stack(found), torch.stack(rows)


def _times(vectors: Tensor, root: Tensor) -> Tensor:
    """Whitened vectors `[..., d]`, by a matrix or by a number for each entry."""
    return vectors * root if root.ndim == 1 else vectors @ root.T


def _unexplained(vectors: Tensor, basis: Tensor, left: Tensor) -> Tensor:
    """`[k, v]` the share of each whitened vector `[k, v, d]` of norm 1 that a span leaves unexplained."""
    # float32, as the vectors are: what it leaves of one that lies inside is under `LEAST_SHARE`.
    basis, left = basis.to(vectors.dtype), left.to(vectors.dtype)
    along = vectors @ basis.T  # [k, v, r]
    return ((vectors - along @ basis).square().sum(2) + along.square() @ left).clamp_min(LEAST_SHARE)


@membership_tests.register(
    "layer_span",
    paper="none; the row space of a fully connected layer's gradient (for language models after ProjRes, 2026)",
    cost="a forward pass for each example",
)
@dataclass(frozen=True, kw_only=True)
class LayerSpan(MembershipTest):
    """Does what the layers read of the candidate lie in the row spaces of their updates?

    Any fully connected layer whose weight was sent: the first of a perceptron, those of a transformer's blocks, the A
    of adapters, a head alone. A member's vectors are read at the weights that were sent; local steps move them a
    little, dropout much. With more vectors than rows the span holds mixtures of members only, and the test gets weak.
    """

    def fit(
        self, knowledge: Knowledge, observed: Round, reference: Batch, *, seed: int, done: Done = nothing
    ) -> Detector:
        """A detector for this model, with the second moments of what its layers read. See `MembershipTest.fit`.

        Raises:
            Inapplicable: Where no fully connected layer's weight was sent.
        """
        buffers = public_statistics(knowledge, observed, reference)
        layers = _layers(knowledge, observed, reference, buffers)
        if not layers:
            known = f" and that reads nothing of the client's own {len(observed.personal)} parameters"
            raise refuse("own_weights" if observed.personal else "no_linear_layer")(
                f"the span test needs a fully connected layer whose weight was sent{known * bool(observed.personal)}, "
                "and there is none",
                "observe a round whose weights are all known" if observed.personal else "use matched_filter",
            )
        bare = _Span(knowledge, observed, buffers, layers)
        read, apart = bare.read(reference, done), held_out(reference)
        fitted = replace(bare, whitening=[_whitening(part[apart:].flatten(0, 1)) for part in read])
        return replace(fitted, standards=fitted.whitened([part[:apart] for part in read]))


def _layers(knowledge: Knowledge, observed: Round, reference: Batch, buffers: Tensors) -> list[_Layer]:
    """Fully connected layers whose weights were sent, those with room outside the span first, evenly chosen."""
    model, sent = knowledge.model, observed.update.tensors
    names = {id(p): name for name, p in model.named_parameters()}
    # The gradient of a table that is a layer as well is made of more than what the layer read.
    tables = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    x = reference.inputs[:2].to(next(iter(observed.params.values())).device)
    with in_mode(model, training=False), linear_calls(model) as calls, torch.no_grad():
        forward(model, observed.params, x, buffers=buffers or None)
    # What a layer reads is known where it is the same whatever the client's own weights are.
    own = {name: -1 - p.detach() for name, p in model.named_parameters() if name in observed.personal}
    moved = calls
    if own:
        with in_mode(model, training=False), linear_calls(model) as moved, torch.no_grad():
            forward(model, {**observed.params, **own}, x, buffers=buffers or None)
    found: list[tuple[Tensor, str, list[tuple[str, int]]]] = []
    for (module, weight, read, axis), other in zip(calls, moved, strict=True):
        name = names.get(id(weight), "")
        if not torch.equal(read, other[2]):
            continue
        if name not in sent or id(weight) in tables or len(read) != len(x):
            continue
        same = next((weights for other, _, weights in found if other is read), None)
        if same is None:
            found.append((read, module, [(name, axis)]))
        else:
            same.append((name, axis))
    layers, roomy = list[_Layer](), list[_Layer]()
    for read, module, weights in found:
        width, vectors = read.shape[-1], read[0].numel() // read.shape[-1]
        places = torch.linspace(0, vectors - 1, min(vectors, VECTORS)).round().long()
        layers.append(_Layer(module, weights, places, vectors, width))
        # The rank is at most that of the rows and of the vectors; without room beside it a layer says nothing.
        rows = sum(sent[name].shape[1 - axis] for name, axis in weights)
        roomy += layers[-1:] if min(rows, (observed.batch_size or 1) * vectors) < width else []
    layers = roomy or layers
    chosen = torch.linspace(0, len(layers) - 1, min(len(layers), LAYERS)).round().long()
    return [layers[int(place)] for place in chosen]


def _whitening(vectors: Tensor) -> Tensor:
    """`[d, d]` W with `W S W' = I`, S the second moment of vectors `[m, d]`, shrunk where they are few; or `[d]`."""
    exact = vectors.double()
    size = exact.square().mean(0).sqrt()
    scale: Tensor = 1 / (size + 1e-3 * size.mean()).clamp_min(1e-30)
    if len(scale) > WIDEST:
        return scale
    exact = exact * scale
    m, d = exact.shape
    moment = exact.T @ exact / m
    mu = float(moment.diagonal().mean())
    rho = ledoit_wolf(m, d, mu, float(moment.square().sum()), float(exact.square().sum(1).square().mean()))
    eye = torch.eye(d, dtype=exact.dtype, device=exact.device)
    root = torch.linalg.cholesky((1 - rho) * moment + max(rho * mu, 1e-6) * eye)
    found: Tensor = torch.linalg.solve_triangular(root, eye, upper=False) * scale
    return found
