"""NVFlare: a filter that keeps what leaves a client, or what the server gets. Needs `seepage[nvflare]`.

    job.to(RecordingFilter("mymodule:recorder"), "site-1", filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.to(RecordingFilter("mymodule:recorder"), "server", filter_type=FilterType.TASK_RESULT, tasks=["train"])

On a client put it last in the chain: filters run in the order of the list, those of the site's own policy before those
of the job, so the last one sees what really leaves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seepage.errors import SeepageError
from seepage.integrations.arrays import OneByOne, tensor_of
from seepage.integrations.recorder import Recorded, Recorder
from seepage.named import import_dotted

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.event_type import EventType
    from nvflare.apis.filter import FilterChainType, FilterContextKey
    from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise SeepageError("NVFlare is not installed; run: pip install 'seepage[nvflare]'") from error

KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


class _HeldBack(Exception):
    """What the recorder does not let through."""


@dataclass(frozen=True)
class Task:
    """What a client was given to start from."""

    arrays: Mapping[str, Any]
    t: int


class RecordingFilter(DXOFilter):
    """Keeps updates of weights (`WEIGHTS`) and differences of weights (`WEIGHT_DIFF`) as they pass, unchanged.

    The same class serves clients and the server, in the chain of task results. It learns the weights that were sent out
    from the event after the task's own filters. The number of local steps is taken from the update's
    `NUM_STEPS_CURRENT_ROUND`, the round from the task's headers.

    Args:
        recorder: `module:name` of a `Recorder`, as a job's configuration holds words and numbers alone; or a recorder.
        every: Keep every so many rounds; what blocks looks at all.
        examples: Key of the update's meta data that holds the number of examples, where the client tells it.

    A blocked update is replaced by a reply with the return code `TASK_RESULT_FILTER_ERROR`; the workflow must be told
    to go on without it, by `ignore_result_error`.

    Raises:
        SeepageError: For `every` below 1.
    """

    def __init__(self, recorder: "str | Recorder", every: int = 1, examples: str = "") -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)
        if every < 1:
            raise SeepageError(f"every must be 1 or more, got {every}; 1 records each round")
        self.recorder, self.every, self.examples = recorder, every, examples
        self._tasks: dict[str, Task] = {}

    @cached_property
    def _found(self) -> Recorder:
        found = import_dotted(self.recorder) if isinstance(self.recorder, str) else self.recorder
        if not isinstance(found, Recorder):
            raise SeepageError(f"{self.recorder} is no Recorder; name one, as in mymodule:recorder")
        return found

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the weights that go out, or came in, with a task: the last ones of each client."""
        if event_type != EventType.AFTER_TASK_DATA_FILTER:
            return
        data = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        arrays = _weights(data)
        if arrays is None:
            return
        at_client = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN
        # A client's training may write into what it was given. The server's stays as it is until replies are in.
        kept = {name: tensor_of(array).clone() for name, array in arrays.items()} if at_client else dict(arrays)
        self._tasks[_client(fl_ctx, at_client)] = Task(kept, int(data.get_header(AppConstants.CURRENT_ROUND, 0) or 0))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task result as it is, or an error in its place."""
        try:
            return super().process(shareable, fl_ctx)
        except _HeldBack:
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Record one update. None tells NVFlare that nothing was changed."""
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            return
        client = _client(fl_ctx, fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT)
        task, recorder = self._tasks.pop(client, None), self._found
        keep = task is not None and task.t % self.every == 0
        if not (keep or recorder.block is not None):
            return
        t = 0 if task is None else task.t
        found = self._recorded(dxo, task, client, fl_ctx, keep=keep)
        if found is not None and found.exposure is not None:
            self.log_info(fl_ctx, f"seepage: round {t}, client {client}: {found.exposure.line}")
        if found.blocked if found is not None else recorder.blocks(None):
            self.log_warning(fl_ctx, f"seepage: round {t}, client {client}: the update was blocked and does not go on")
            raise _HeldBack

    def _recorded(self, dxo: DXO, task: Task | None, client: str, fl_ctx: FLContext, *, keep: bool) -> Recorded | None:
        """What became of an update; None: it could not be recorded. Training must not stop for that."""
        try:
            if task is None:
                raise SeepageError("no weights were seen going out to it; let the task's data carry them as a DXO")
            done = dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM)
            if done:
                raise SeepageError(f"its values went through {done!r}, so they are no weights; record before that")
            return self._found.record(
                _tensors(task.arrays),
                _tensors(dxo.data),
                t=task.t,
                client=client,
                examples=_count(dxo, self.examples),
                steps=_count(dxo, MetaKey.NUM_STEPS_CURRENT_ROUND),
                difference=dxo.data_kind == DataKind.WEIGHT_DIFF,
                keep=keep,
            )
        except SeepageError as error:
            self.log_warning(fl_ctx, f"seepage: client {client}: not recorded: {error}")
            return None


def _weights(data: Any) -> Mapping[str, Any] | None:
    """The weights that a task carries; None where it carries something else."""
    try:
        dxo = from_shareable(data)
    except (ValueError, TypeError, AttributeError):
        return None
    return dxo.data if dxo.data_kind == DataKind.WEIGHTS and isinstance(dxo.data, Mapping) else None


def _client(fl_ctx: FLContext, at_client: bool) -> str:
    """The client's name: one's own on a client, that of the other side on the server."""
    if at_client:
        return str(fl_ctx.get_identity_name())
    peer = fl_ctx.get_peer_context()
    return "unknown" if peer is None else str(peer.get_identity_name())


def _tensors(arrays: Mapping[str, Any]) -> OneByOne:
    return OneByOne({name: name for name in arrays}, lambda name: tensor_of(arrays[name]))


def _count(dxo: DXO, key: str) -> int | None:
    value = dxo.get_meta_prop(key) if key else None
    return int(value) if isinstance(value, int | float) and 1 <= value < math.inf else None
