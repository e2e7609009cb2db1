"""The image behind adapters on a vision transformer's first block, from the span of its normalized tokens.

Token p enters the block as `z_p = E u_p + c_p`: u_p are the d values that the patch embedding reads, and c_p is known,
as E and the positions are frozen. The layer norm makes `h_p = g * (z_p - mean) / sigma_p + b` of it, and every adapted
layer behind it has grad A in the span R of all h. With P the projector onto R's complement, h_p in R says

    P (g * center(E u_p + c_p)) + sigma_p P b = 0

which is linear in u_p and sigma_p: a small least-squares problem for each patch, in its own place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.attacks.base import MATCHING, Inapplicable, refuse
from seepage.attacks.network import AttackedRound
from seepage.base.adapters import AdaptedLayer
from seepage.base.algebra.lowrank import INDEPENDENT, low_rank
from seepage.base.algebra.rows import same_rows
from seepage.base.nn import LayerCall, generator


@dataclass(frozen=True, eq=False)
class AdapterTokens:
    """Adapted layers behind one layer norm of the tokens.

    Attributes:
        attacked: The round.
        rows: `[sum of ranks, w]` the gradients of the layers' A.
        tokens: Tokens behind the layer norm.
        embedding: The convolution that embeds the patches.
        norm: The layer norm.
        places: `[P]` which token each patch is.
        read: `[C, H, W]` what the embedding reads of an image of zeros.
        entering: `[tokens, w]` what the layer norm reads of it.
        scale: `[C, H, W]` what an image's values are multiplied with before the embedding.
    """

    attacked: AttackedRound
    rows: Tensor
    tokens: int
    embedding: nn.Conv2d
    norm: nn.LayerNorm
    places: Tensor
    read: Tensor
    entering: Tensor
    scale: Tensor

    @classmethod
    def of(cls, attacked: AttackedRound, layers: Sequence[AdaptedLayer]) -> "AdapterTokens":
        """Find them by running the network on three images.

        Raises:
            Inapplicable: Where no adapted layer reads normalized tokens of image patches, or several images are mixed.
        """
        model, shape = attacked.model, attacked.knowledge.input_shape
        if len(shape) != 3:
            raise _elsewhere()
        norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
        convolutions = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
        noise = torch.rand(shape, generator=generator(0, "probe"))
        probes = torch.stack([torch.zeros(shape), torch.ones(shape), noise])
        with torch.no_grad():
            _, calls = attacked.forward(
                probes.to(attacked.like()), [*convolutions[:1], *norms, *(layer.name for layer in layers)]
            )
        if not convolutions or convolutions[0] not in calls:
            raise _elsewhere()
        embedded = calls[convolutions[0]][0]
        for name in (name for name in calls if name in norms):
            normed = calls[name][0]
            places = _places(embedded, normed)
            called = [one for one in layers if one.name in calls]
            behind = [one for one in called if torch.equal(calls[one.name][0].input, normed.output)]
            if places is not None and behind:
                break
        else:
            raise _elsewhere()
        if attacked.observed.batch_size != 1:
            count = attacked.observed.batch_size or "an unknown number"
            raise refuse("several_examples")(
                f"the tokens of one image are solved for, and {count} are mixed in this update", f"use {MATCHING}"
            )
        rows = torch.cat([attacked.gradient[layer.down].double() for layer in behind])  # [sum r, w]
        tokens = normed.input.shape[1]
        if len(rows) < tokens:
            raise refuse("rank_too_small")(
                f"the adapters behind the first layer norm have {len(rows)} ranks together and read {tokens} tokens, "
                "whose span is larger",
                f"attack an update with ranks of {-(-tokens // len(behind))} or more, or use {MATCHING}",
            )
        convolution, norm = model.get_submodule(convolutions[0]), model.get_submodule(name)
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, nn.LayerNorm)
        zero, one = embedded.input[:2].double()
        return cls(attacked, rows, tokens, convolution, norm, places, zero, normed.input[0].double(), one - zero)

    def solve(self) -> tuple[Tensor, bool, str]:
        """The image `[1, C, H, W]`, float64, not cut to the value range; whether R shows all tokens; and a note.

        Raises:
            Inapplicable: Where a patch has more unknowns than the span leaves equations.
        """
        parts = low_rank(self.rows, sources=self.tokens)
        # grad A = sum_t (s B^T delta_t) h_t^T [r, w]: its rows are combinations of the tokens' h_t.
        span = parts.right[: min(self.tokens, max(parts.rank, 1))]  # R [k, w], orthonormal rows
        width = span.shape[1]
        weight = self.embedding.weight.detach().double().flatten(1)  # E [w, d]
        ones = span.new_ones(width)
        gain = ones if self.norm.weight is None else self.norm.weight.detach().double()
        shift = 0 * ones if self.norm.bias is None else self.norm.bias.detach().double()

        def outside(columns: Tensor) -> Tensor:
            """`[w, k]` columns of tokens: centered, times the gain, and projected onto the complement of R."""
            made = gain[:, None] * (columns - columns.mean(0))
            return made - span.T @ (span @ made)

        # c_p = z_p - E u_p for the image of zeros.
        at_zero = F.unfold(self.read[None], self._kernel, stride=self.embedding.stride)[0]  # [d, P]
        constant = outside(self.entering[self.places].T - weight @ at_zero)  # [w, P]
        equations = outside(weight)  # [w, d]
        if bool(shift.any()):  # the column of sigma_p
            equations = torch.cat([equations, (shift - span.T @ (span @ shift))[:, None]], 1)
        # Unknowns u_p (and sigma_p) are determined if P (g * center(E)) has full column rank in float32's precision.
        values = torch.linalg.svdvals(equations)
        known, unknowns = int((values > INDEPENDENT * values[0]).sum()), equations.shape[1]
        if known < unknowns:
            raise refuse("too_few_equations")(
                f"a patch has {unknowns} unknowns, and the span of {len(span)} of {width} dimensions leaves {known} "
                "equations for them",
                f"use {MATCHING}",
            )
        # One matrix for all patches: P (g * center(E)) u_p + sigma_p P b = -P (g * center(c_p)).
        solution = torch.linalg.lstsq(equations, -constant).solution  # [d (+ 1), P]
        left = float((equations @ solution + constant).norm() / constant.norm())
        patches = solution[: weight.shape[1]]
        # Folding adds up, so it is exact for patches that do not overlap. Read = scale * image + its value at zero.
        folded = F.fold(patches[None], self.read.shape[1:], self._kernel, stride=self.embedding.stride)
        image = (folded - self.read) / self.scale
        note = (
            f"the gradients of A span {len(span)} directions for {self.tokens} tokens; {width - len(span)} equations "
            f"for {unknowns} unknowns of a patch, which leave {left:.1e} of its size"
        )
        return image, len(span) == self.tokens, note

    @property
    def _kernel(self) -> tuple[int, int]:
        height, width = self.embedding.kernel_size
        return height, width


def _elsewhere() -> Inapplicable:
    return refuse("input_not_read")(
        "no adapted layer reads the input itself, or the normalized tokens of image patches in a first block",
        f"use {MATCHING}",
    )


def _places(embedded: LayerCall, normed: LayerCall) -> Tensor | None:
    """`[P]` which token each patch is: the one that moves as the patch's embedding does; None where none does."""
    if normed.input.ndim != 3 or embedded.output.ndim != 4 or embedded.output.shape[1] != normed.input.shape[2]:
        return None
    out = embedded.output.flatten(2).transpose(1, 2)  # [3, P, w]: images of zeros, of ones, of noise
    # Positions and biases are the same for all images: the difference of two is E times that of the patches alone.
    patches, tokens = (out[2] - out[0]).double(), (normed.input[2] - normed.input[0]).double()
    return same_rows(patches, tokens)
