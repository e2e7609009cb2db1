"""NVFlare: a chain of task-result filters as one whose epsilon can be measured. Needs `seepage[nvflare]`.

    filter = dxo_filter(SVTPrivacy(epsilon=0.1))
    print(Measurement(delta=1e-5, stated=0.1).epsilon(filter, clip=1e-5).line)

The filters are called with real shareables and an empty context, as a runner does with a client's result.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seepage.errors import SeepageError, not_installed, short
from seepage.federation.types import Tensors
from seepage.measure.privacy.measured import Claim
from seepage.measure.privacy.measured.canaries import SHAPES

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.filter import ContentBlockedException, Filter
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.filters import PercentilePrivacy, SVTPrivacy
except ImportError as error:
    raise not_installed("NVFlare", "nvflare") from error


def dxo_filter(
    *filters: Filter, kind: str = DataKind.WEIGHT_DIFF, meta: Mapping[str, Any] | None = None
) -> Callable[[Tensors], Tensors]:
    """The filter that a chain makes of an update.

    Args:
        filters: In the order in which they run: the last one sees what leaves.
        kind: What the update is sent as: `WEIGHT_DIFF`, or `WEIGHTS` over weights of zero.
        meta: Meta data of the update; default: one local step.

    Returns:
        A filter. It raises `SeepageError` where the chain answers with an error or sends no weights.
    """
    facts = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1, **(meta or {})}

    def call(update: Tensors) -> Tensors:
        arrays = {name: tensor.numpy() for name, tensor in update.items()}
        shareable, context = DXO(kind, data=arrays, meta=dict(facts)).to_shareable(), FLContext()
        for each in filters:
            try:
                shareable = each.process(shareable, context)
            except ContentBlockedException as error:
                raise SeepageError(f"the filter blocks the update: {short(str(error))}; leave it out") from error
            code = shareable.get_return_code()
            if code != ReturnCode.OK:
                raise SeepageError(f"the filter answers with {short(str(code))}; leave it out, or give what it needs")
        data = from_shareable(shareable).data
        if not isinstance(data, Mapping):
            raise SeepageError("the filters let no weights through, so nothing can be measured; measure one at a time")
        return {str(name): torch.from_numpy(np.array(value)) for name, value in data.items()}

    return call


def claim_of(each: object, *, rounds: int = 1, shapes: Mapping[str, Sequence[int]] = SHAPES) -> Claim:
    """The epsilon that a filter states; empty except for NVFlare's `SVTPrivacy`.

    What that filter states is what its own accountant adds up for an update of these shapes: the epsilons of
    threshold, queries and release, at delta 0, which grow with the number of entries. Its option `epsilon` is a part.
    `PercentilePrivacy` states no epsilon; both cut entries at `gamma`, which is their clip.
    """
    if isinstance(each, SVTPrivacy):
        before = each.get_privacy_spent()
        dxo_filter(each)({name: torch.zeros(tuple(shape)) for name, shape in shapes.items()})
        return Claim(rounds * (each.get_privacy_spent() - before), clip=float(each.gamma), by="NVFlare's SVTPrivacy")
    return Claim(clip=float(each.gamma)) if isinstance(each, PercentilePrivacy) else Claim()
