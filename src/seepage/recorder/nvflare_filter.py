"""NVFlare: a chain of task-result filters as one whose epsilon can be measured. Needs `seepage[nvflare]`.

    filter = dxo_filter(SVTPrivacy(epsilon=0.1))
    print(Measurement(delta=1e-5, stated=0.1).epsilon(filter, clip=1e-5).line)

The filters are called with real shareables and an empty context, as a runner does with a client's result.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from seepage.errors import SeepageError, not_installed, short
from seepage.federation.types import Tensors

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.filter import ContentBlockedException, Filter
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
except ImportError as error:
    raise not_installed("NVFlare", "nvflare") from error


def dxo_filter(*filters: Filter) -> Callable[[Tensors], Tensors]:
    """The filter that a chain makes of an update.

    Args:
        filters: In the order in which they run: the last one sees what leaves.

    Returns:
        A filter. It raises `SeepageError` where the chain answers with an error or sends no weights.
    """
    facts = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}  # one local step

    def call(update: Tensors) -> Tensors:
        arrays = {name: tensor.numpy() for name, tensor in update.items()}
        shareable, context = DXO(DataKind.WEIGHT_DIFF, data=arrays, meta=dict(facts)).to_shareable(), FLContext()
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
