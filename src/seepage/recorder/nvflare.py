"""NVFlare: a filter that keeps what leaves a client, or what the server gets. Needs `seepage[nvflare]`.

    job.to(RecordingFilter("mymodule:recorder"), "site-1", filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.to(RecordingFilter("mymodule:recorder"), "server", filter_type=FilterType.TASK_RESULT, tasks=["train"])

On a client put it last in the chain: filters run in the order of the list, those of the site's own policy before those
of the job, so the last one sees what really leaves.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from seepage.base.registry import import_dotted
from seepage.errors import SeepageError, not_installed
from seepage.recorder.arrays import tensor_of
from seepage.recorder.circuit_breaker import Say, reason_of
from seepage.recorder.hook import NOT_LOOKED_AT, Hook, check_every, count_of, named_tensors
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorded, Recorder

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
    raise not_installed("NVFlare", "nvflare") from error

M = TypeVar("M", Recorder, Ledger)
KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


class HeldBack(Exception):
    """What the recorder does not let through."""


class RecordingFilter(DXOFilter):
    """Keeps updates of weights (`WEIGHTS`) and differences of weights (`WEIGHT_DIFF`) as they pass, unchanged.

    The same class serves clients and the server, in the chain of task results. It learns the weights that were sent out
    from the event after the task's own filters. The number of local steps is taken from the update's
    `NUM_STEPS_CURRENT_ROUND`, the round from the task's headers.

    Whatever fails in recording is one line in the log for each kind of fault, and the training continues. An update of
    which parts are missing is recorded in part.

    Args:
        recorder: `module:name` of a `Recorder`, as a job's configuration holds words and numbers alone; or a recorder.
        every: Keep every so many rounds; a recorder that blocks analyzes all.
        examples: Key of the update's meta data that holds the number of examples, where the client tells it.
        ledger: `module:name` of the client's `Ledger`, or a ledger: the epsilon in its line of this round and site is
            then said beside what the update reveals, and stated in the recording.
        required: End the job at its start where no recorder can be made of that name, as one that blocks should. Else
            that is one line in the log, and nothing is recorded or blocked.

    A blocked update is replaced by a reply with the return code `TASK_RESULT_FILTER_ERROR`; the workflow must be set
    to continue without it, by `ignore_result_error`. `Recorder(on_error=…)` says what becomes of an update that `block`
    could not analyze.

    Raises:
        SeepageError: For `every` below 1.
    """

    def __init__(
        self,
        recorder: "str | Recorder",
        every: int = 1,
        examples: str = "",
        ledger: "str | Ledger" = "",
        required: bool = False,
    ) -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)
        check_every(every)
        self.recorder, self.every, self.examples = recorder, every, examples
        self.ledger, self.required = ledger, required
        self._tasks: dict[str, tuple[Mapping[str, Any], int]] = {}
        self._hook: Hook | None = None
        self._sought = False

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Make the recorder as the run starts, and remember the weights that go out, or came in, with a task."""
        if event_type == EventType.START_RUN:
            self._open(fl_ctx)
        elif event_type == EventType.AFTER_TASK_DATA_FILTER:
            hook = self._open(fl_ctx)
            if hook is not None:
                hook.guarded(lambda: self._remember(fl_ctx), "the update", self._say(fl_ctx))

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task result as it is, or an error in its place."""
        try:
            return super().process(shareable, fl_ctx)
        except HeldBack:
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Record one update. None tells NVFlare that nothing was changed."""
        hook = self._open(fl_ctx)
        if hook is None or self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            return
        found = hook.guarded(lambda: self._record(hook, dxo, fl_ctx), "the update", self._say(fl_ctx))
        if not hook.passes(found):
            self.log_warning(fl_ctx, "seepage: the update was blocked and does not go on")
            raise HeldBack

    def _open(self, fl_ctx: FLContext) -> Hook | None:
        """The recorder and the ledger, made once; None where that fails, which is logged once."""
        if not self._sought:
            self._sought = True
            try:
                ledger = made(self.ledger, Ledger) if self.ledger else None
                self._hook = Hook(made(self.recorder, Recorder), self.every, ledger)
            except Exception as error:
                why = f"seepage: nothing is recorded or blocked in this run: {reason_of(error)}"
                self.log_error(fl_ctx, why)
                if self.required:
                    self.system_panic(why, fl_ctx)
        return self._hook

    def _say(self, fl_ctx: FLContext) -> Say:
        return lambda words: self.log_warning(fl_ctx, f"seepage: {words}")

    def _remember(self, fl_ctx: FLContext) -> None:
        """Keep the weights that go out, or came in, with a task: the last ones of each client."""
        data = fl_ctx.get_prop(FLContextKey.TASK_DATA)
        arrays = _weights(data)
        if arrays is None:
            return
        at_client = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN
        # A client's training may write into what it was given. The server's stays as it is until replies are in.
        kept = {name: tensor_of(array).clone() for name, array in arrays.items()} if at_client else dict(arrays)
        t = int(data.get_header(AppConstants.CURRENT_ROUND, 0) or 0)
        self._tasks[_client(fl_ctx, at_client)] = kept, t

    def _record(self, hook: Hook, dxo: DXO, fl_ctx: FLContext) -> Recorded:
        """The recorder's result for an update."""
        client = _client(fl_ctx, fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT)
        arrays, t = self._tasks.pop(client, (None, 0))
        keep = arrays is not None and hook.keeps(t)
        if not hook.looks(keep=keep):
            return NOT_LOOKED_AT
        if arrays is None:
            raise SeepageError("no weights were seen going out to it; let the task's data carry them as a DXO")
        done = dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM)
        if done:
            raise SeepageError(f"its values went through {done!r}, so they are no weights; record before that")
        found = hook.recorder.watch(
            named_tensors(arrays),
            named_tensors(dxo.data),
            t=t,
            client=client,
            examples=count_of(dxo.get_meta_prop(self.examples)) if self.examples else None,
            steps=count_of(dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)),
            difference=dxo.data_kind == DataKind.WEIGHT_DIFF,
            keep=keep,
            say=self._say(fl_ctx),
        )
        words = hook.summary(found, t, client, self._say(fl_ctx))
        if words:
            self.log_info(fl_ctx, f"seepage: round {t}, client {client}: {words}")
        return found


def made(name: Any, kind: type[M]) -> M:
    """The recorder, or the ledger, of this name."""
    found = import_dotted(name) if isinstance(name, str) else name
    if not isinstance(found, kind):
        raise SeepageError(f"{name} is no {kind.__name__}; name one, as in mymodule:{kind.__name__.lower()}")
    return found


def _weights(data: Any) -> Mapping[str, Any] | None:
    """The weights that a task carries; None where it carries something else."""
    try:
        dxo = from_shareable(data)
    except (ValueError, TypeError, AttributeError):
        return None
    return dxo.data if dxo.data_kind == DataKind.WEIGHTS and isinstance(dxo.data, Mapping) else None


def _client(fl_ctx: FLContext, at_client: bool) -> str:
    """The client's name: on a client its own, on the server that of the sender."""
    if at_client:
        return str(fl_ctx.get_identity_name())
    peer = fl_ctx.get_peer_context()
    return "unknown" if peer is None else str(peer.get_identity_name())
