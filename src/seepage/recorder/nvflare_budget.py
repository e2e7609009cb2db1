"""NVFlare: a filter that lets no update out once a client's privacy is spent. Needs `seepage[nvflare]`.

job.to(BudgetFilter("mymodule:ledger", epsilon=8.0), "site-1", filter_type=FilterType.TASK_RESULT, tasks=["train"])

Put it last in the chain of the client's task results, behind what adds the noise.
"""

from seepage.errors import not_installed
from seepage.recorder.accountants import svt_entry
from seepage.recorder.budget import Budget
from seepage.recorder.circuit_breaker import reason_of
from seepage.recorder.nvflare import KINDS, HeldBack, made
from seepage.recorder.opacus import Ledger

try:
    from nvflare.apis.dxo import DXO
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.app_common.app_constant import AppConstants
except ImportError as error:
    raise not_installed("NVFlare", "nvflare") from error


class BudgetFilter(DXOFilter):
    """Holds back each update that the budget does not allow, and ends the client's job then.

    What NVFlare's own `SVTPrivacy` adds up, where it ran before in the chain, goes into the ledger first. Otherwise the
    client's code adds a line for each round, under its site's name: `Ledger.record` or `Ledger.add`. A ledger that
    cannot be read holds everything back.

    Args:
        ledger: `module:name` of the client's `Ledger`, as a job's configuration holds words and numbers alone; or a
            ledger.
        epsilon: Most that the client may spend, over all rounds.
        delta: Largest delta that it may be stated for; below 0: any.

    An update that is held back is replaced by a reply with the return code `TASK_RESULT_FILTER_ERROR`, and the job is
    told to end by NVFlare's `system_panic`.

    Raises:
        SeepageError: For a budget out of range.
    """

    def __init__(self, ledger: "str | Ledger", epsilon: float, delta: float = -1.0) -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)
        self.ledger, self.epsilon, self.delta = ledger, float(epsilon), float(delta)
        if not isinstance(ledger, str):
            self._budget()
        self._t = 0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Remember the round of the task that came in."""
        if event_type == EventType.AFTER_TASK_DATA_FILTER:
            data = fl_ctx.get_prop(FLContextKey.TASK_DATA)
            if isinstance(data, Shareable):
                self._t = int(data.get_header(AppConstants.CURRENT_ROUND, 0) or 0)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """The task result as it is, or an error in its place."""
        try:
            return super().process(shareable, fl_ctx)
        except HeldBack:
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Count and judge one update. None tells NVFlare that nothing was changed."""
        client = str(fl_ctx.get_identity_name())
        try:
            budget = self._budget()
            entry = svt_entry(dxo.meta)
            if entry is not None:
                budget.ledger.add(entry, t=self._t, client=client)
            why = budget.refusal(client, self._t)
        except Exception as error:  # whatever fails, nothing leaves
            why = f"the ledger cannot be read: {reason_of(error)}"
        if why is not None:
            words = f"seepage: round {self._t}, {client}: the privacy budget holds the update back: {why}"
            self.log_error(fl_ctx, words)
            self.system_panic(words, fl_ctx)
            raise HeldBack

    def _budget(self) -> Budget:
        return Budget(made(self.ledger, Ledger), self.epsilon, None if self.delta < 0 else self.delta)
