"""A halting rule: what is over the budget does not leave, and the run ends; a line of a ledger says who states it."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.federated import without_engine

pytest.importorskip("opacus", reason="needs seepage[opacus]")

import torch

from seepage.cli import main
from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.ledger import LedgerEntry
from seepage.recorder.accountants import flower_entry, svt_entry
from seepage.recorder.budget import Budget
from seepage.recorder.opacus import Ledger

pytestmark = pytest.mark.filterwarnings("default")
DELTA = 1e-5


def entry(spent: float | None, **other: Any) -> LedgerEntry:
    facts = {"delta": DELTA, "accountant": "rdp", "noise": 1.0, "clip": 1.0, "sample_rate": None, "steps": 1}
    return LedgerEntry(epsilon=spent, **{**facts, **other})


def spending(folder: Path, *epsilons: float | None) -> Ledger:
    """A ledger of client 0 with a line for rounds 1, 2, ..."""
    ledger = Ledger(folder, delta=DELTA)
    for t, spent in enumerate(epsilons, 1):
        ledger.add(entry(spent), t=t, client=0)
    return ledger


def test_an_update_leaves_within_the_budget_alone(tmp_path: Path) -> None:
    budget = Budget(spending(tmp_path, 1.0, 2.0, 2.1, None), 2.0)
    assert [budget.refusal(0, t) is None for t in (1, 2, 3, 4, 5)] == [True, True, False, False, False]
    assert "above the budget of 2" in str(budget.refusal(0, 3))
    assert "no line of round 5" in str(budget.refusal(0, 5))
    assert budget.spent(0) is not None
    assert budget.spent(1) is None  # nothing was counted of it yet
    assert "delta" in str(Budget(budget.ledger, 2.0, 1e-6).refusal(0, 1))
    for wrong in (0.0, float("inf"), float("nan")):
        with pytest.raises(SeepageError):
            Budget(budget.ledger, wrong)


def test_the_command_says_who_is_spent_and_by_whose_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = spending(tmp_path, 1.0, 3.0)
    ledger.add(entry(0.5, stated_by="Flower", unit="update"), t=7, client="site-1")

    def ran(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["seepage", "prove", "--of", f"ledger:{tmp_path}", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    assert ran("--fail-if", "spent>4") == 0
    shown = capsys.readouterr().out
    assert "Opacus" in shown
    assert "Flower" in shown
    assert ran("--fail-if", "spent>2") == 1
    assert capsys.readouterr().err == "failed: spent > 2 in 1 of 2 clients: 0\n"
    assert ran("--fail-if", "spent>-1") == 2
    (tmp_path / "ledger" / "client-9.jsonl").write_text('[1]\n{"t": 1, "epsilon": true}\n')
    assert ran("--fail-if", "spent>2") == 2
    assert "delete it" in capsys.readouterr().err
    (tmp_path / "ledger" / "client-9.jsonl").unlink()
    assert ran("--fail-if", "spent>2", "--json") == 1
    assert '"over": ["0"]' in capsys.readouterr().out


class TestFlower:
    """Mods, a strategy, and Flower's own accountant."""

    @pytest.fixture(autouse=True)
    def _flower(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("flwr", reason="needs seepage[flower]")
        without_engine(monkeypatch)

    def round(self, budget: Budget, t: int, spent: float | None) -> Any:
        """The answer of a client whose own code adds a line to the ledger, where it trains at all."""
        from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

        from seepage.recorder.flower_budget import budget_mod

        def client(message: Message, context: Context) -> Message:
            self.trained += 1
            if spent is not None:
                budget.ledger.add(entry(spent), t=t, client=0)
            arrays = ArrayRecord({"w": Array(torch.ones(2).numpy())})
            return Message(RecordDict({"arrays": arrays}), reply_to=message)

        content = RecordDict({"config": ConfigRecord({"server-round": t})})
        context = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
        return budget_mod(budget)(Message(content, dst_node_id=1, message_type="train"), context, client)

    def test_a_spent_client_answers_with_an_error_and_trains_no_more(self, tmp_path: Path) -> None:
        budget, self.trained = Budget(Ledger(tmp_path, delta=DELTA), 2.0), 0
        replies = [self.round(budget, t, spent) for t, spent in enumerate((1.0, 2.0, 2.5, 3.0), 1)]
        assert [reply.has_error() for reply in replies] == [False, False, True, True]
        assert replies[2].error.code == 452
        assert self.trained == 3  # the third is held back, and the fourth not trained

    def test_an_update_that_nobody_counted_is_held_back(self, tmp_path: Path) -> None:
        budget, self.trained = Budget(Ledger(tmp_path, delta=DELTA), 2.0), 0
        assert "no line of round 1" in self.round(budget, 1, None).error.reason
        (tmp_path / "ledger").mkdir(exist_ok=True)
        (tmp_path / "ledger" / "client-0.jsonl").write_text("damage\n{}\n")
        assert "cannot be read" in self.round(budget, 2, 1.0).error.reason

    def test_the_run_ends_where_every_client_is_spent(self, tmp_path: Path) -> None:
        from flwr.app import ArrayRecord, ConfigRecord
        from flwr.serverapp.exception import PrivacyBudgetExhausted
        from flwr.serverapp.strategy import FedAvg

        from seepage.recorder.flower_budget import HaltingStrategy

        budget, self.trained = Budget(Ledger(tmp_path, delta=DELTA), 2.0), 0
        strategy = HaltingStrategy(FedAvg())
        strategy.aggregate_train(1, [self.round(budget, 1, 2.5)])
        with pytest.raises(PrivacyBudgetExhausted, match="every client"):
            strategy.configure_train(2, ArrayRecord(), ConfigRecord(), None)
        with pytest.raises(SeepageError, match="no accountant"):
            HaltingStrategy(FedAvg(), epsilon=3.0)

    def test_flowers_own_loop_ends_once_both_clients_are_spent(self, tmp_path: Path) -> None:
        """Two clients at 1 and 1.5 a round and a budget of 3.2: three rounds, and two, and no fifth."""
        from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.serverapp.exception import PrivacyBudgetExhausted
        from flwr.serverapp.strategy import FedAvg

        from seepage.recorder.flower_budget import HaltingStrategy, budget_mod
        from seepage.recorder.flower_hooks import round_of

        budget, left = Budget(Ledger(tmp_path, delta=DELTA), 3.2), []

        def client(message: Message, context: Context) -> Message:
            node, t = int(context.node_config["partition-id"]), round_of(message)
            budget.ledger.add(entry((1.0 + 0.5 * node) * t), t=t, client=node)
            arrays = ArrayRecord({"w": Array((torch.ones(2) * t).numpy())})
            return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

        class Nodes:
            def get_node_ids(self) -> list[int]:
                return [1000, 1001]

            def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
                replies = []
                for message in messages:
                    node = message.metadata.dst_node_id
                    context = Context(1, node, {"partition-id": node - 1000}, RecordDict(), {})
                    reply = budget_mod(budget)(message, context, client)
                    left.extend([] if reply.has_error() else [(round_of(message), node - 1000)])
                    replies.append(reply)
                return replies

        strategy = HaltingStrategy(FedAvg(fraction_evaluate=0.0, min_train_nodes=2))
        with pytest.raises(PrivacyBudgetExhausted, match="round 4"):
            strategy.start(Nodes(), ArrayRecord({"w": Array(torch.zeros(2).numpy())}), num_rounds=9)
        assert sorted(left) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]

    def test_flowers_accountant_is_read_and_agrees_with_ours(self, tmp_path: Path) -> None:
        from flwr.supercore.privacy_accounting import (
            GaussianPrivacyEvent,
            NeighboringRelation,
            PrivacyConfig,
            SamplingMethod,
        )
        from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

        accountant = RdpAccountant(
            PrivacyConfig(
                target_delta=DELTA, population_size=10, neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
                sampling_method=SamplingMethod.NO_AMPLIFICATION,
            )
        )  # fmt: skip
        accountant.compose(GaussianPrivacyEvent(noise_multiplier=2.0, sample_size=5, population_size=10), 3)
        found = flower_entry(accountant, clip=1.0)
        assert found.epsilon is not None
        assert 1.0 <= found.epsilon / epsilon(sigma=2.0, rounds=3, delta=DELTA) < 1.2  # Renyi's is the looser
        assert (found.stated_by, found.unit, found.steps, found.noise) == ("Flower", "update", 3, 2.0)
        assert any("not towards the server" in doubt for doubt in found.caveats)
        assert "stated by Flower" in found.line
        with pytest.raises(SeepageError, match="Flower"):
            flower_entry(object())


class TestNVFlare:
    """The filter, and the accountant of SVT."""

    @pytest.fixture(autouse=True)
    def _nvflare(self) -> None:
        pytest.importorskip("nvflare", reason="needs seepage[nvflare]")

    def test_svt_is_counted_and_the_job_ends_where_it_is_spent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import numpy as np
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.apis.event_type import EventType
        from nvflare.apis.fl_constant import FLContextKey, ReturnCode
        from nvflare.apis.fl_context import FLContext
        from nvflare.apis.shareable import Shareable
        from nvflare.app_common.app_constant import AppConstants
        from nvflare.app_common.filters import SVTPrivacy

        from seepage.recorder.nvflare_budget import BudgetFilter

        ledger, noise, panics = Ledger(tmp_path, delta=DELTA), SVTPrivacy(), []
        each = BudgetFilter(ledger, epsilon=0.5)
        monkeypatch.setattr(each, "system_panic", lambda why, context: panics.append(why))
        codes = []
        for t in (1, 2, 3):
            context, task = FLContext(), Shareable()
            context.set_prop("__identity_name__", "site-1", private=False, sticky=False)
            task.set_header(AppConstants.CURRENT_ROUND, t)
            context.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
            each.handle_event(EventType.AFTER_TASK_DATA_FILTER, context)
            update = DXO(DataKind.WEIGHT_DIFF, data={"w": np.ones(8, dtype=np.float32)}).to_shareable()
            codes.append(each.process(noise.process(update, context), context).get_return_code())
        # One of 8 entries is sent at 0.1 + 0.1 a round: two rounds fit into 0.5, and the third does not.
        assert codes == [ReturnCode.OK, ReturnCode.OK, ReturnCode.TASK_RESULT_FILTER_ERROR]
        assert len(panics) == 1
        assert "epsilon 0.6 is above the budget" in panics[0]
        last = ledger.clients()["site-1"]
        assert (last.stated_by, last.delta, last.steps, last.noise) == ("NVFlare SVTPrivacy", 0.0, 3, None)
        assert last.epsilon == pytest.approx(noise.get_privacy_spent())

    def test_without_a_line_of_the_round_nothing_leaves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import numpy as np
        from nvflare.apis.dxo import DXO, DataKind
        from nvflare.apis.fl_constant import ReturnCode
        from nvflare.apis.fl_context import FLContext

        from seepage.recorder.nvflare_budget import BudgetFilter

        for ledger in (Ledger(tmp_path, delta=DELTA), "nowhere:ledger"):
            each = BudgetFilter(ledger, epsilon=0.5)
            monkeypatch.setattr(each, "system_panic", lambda why, context: None)
            update = DXO(DataKind.WEIGHT_DIFF, data={"w": np.ones(8, dtype=np.float32)}).to_shareable()
            assert each.process(update, FLContext()).get_return_code() == ReturnCode.TASK_RESULT_FILTER_ERROR


def test_other_meta_data_under_its_name_is_refused() -> None:
    assert svt_entry({}) is None
    with pytest.raises(SeepageError, match=r"NVFlare 2\.9"):
        svt_entry({"svt_privacy_accountant": {"epsilon": 3}})
    found = svt_entry({"svt_privacy_accountant": {
        "epsilon_total": 1.0, "delta": 0.0, "calls": 2, "accountant": "pure_dp_sum", "note": "x"}})  # fmt: skip
    assert "single numbers" in found.caveats[0]
