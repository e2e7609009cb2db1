"""Flower's mods, NVFlare's filters and Opacus' steps as they are installed, called on canaries."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.measured import Measurement

pytestmark = pytest.mark.filterwarnings("default")
DELTA = 1e-5
ENTRIES = {"w": torch.tensor([3.0, 4.0]), "b": torch.zeros(1)}


class TestFlower:
    """Mods are called with messages."""

    @pytest.fixture(autouse=True)
    def _flower(self) -> None:
        pytest.importorskip("flwr", reason="needs seepage[flower]")

    def test_a_mod_is_called_with_real_messages_and_clips(self) -> None:
        from flwr.clientapp.mod import fixedclipping_mod

        from seepage.recorder.flower_filter import mod_filter

        sent = mod_filter(fixedclipping_mod, config={"clipping_norm": 1.0})(dict(ENTRIES))
        torch.testing.assert_close(sent["w"], torch.tensor([0.6, 0.8]))
        with pytest.raises(SeepageError, match="clipping_norm"):
            mod_filter(fixedclipping_mod)(dict(ENTRIES))

    def test_mods_run_outermost_first(self) -> None:
        from flwr.clientapp.mod import fixedclipping_mod

        from seepage.federation.defenses import Sparsify
        from seepage.recorder.flower_filter import mod_filter
        from seepage.recorder.flower_hooks import defense_mod

        sparse, clips = defense_mod(Sparsify(keep=0.34)), {"clipping_norm": 1.0}
        inside = mod_filter(fixedclipping_mod, sparse, config=clips)(dict(ENTRIES))
        outside = mod_filter(sparse, fixedclipping_mod, config=clips)(dict(ENTRIES))
        assert float(inside["w"][1]) == 1.0  # made sparse, then clipped
        assert float(outside["w"][1]) == pytest.approx(0.8)

    def test_the_hospital_defaults_amount_to_two_hundred_million(self) -> None:
        from flwr.clientapp.mod import LocalDpMod

        from seepage.recorder.flower_filter import mod_filter

        mod = LocalDpMod(1.0, 1e-4, 10.0, DELTA)
        computed = epsilon(sigma=1e-4 * math.sqrt(2 * math.log(1.25 / DELTA)) / 10, delta=DELTA)
        assert computed == pytest.approx(2.13e8, rel=0.01)
        found = Measurement(delta=DELTA, stated=10.0, computed=computed, calls=1000, seconds=None).epsilon(
            mod_filter(mod)
        )
        assert found.stated_verdict == "contradicted by Gaussian fit"
        assert found.computed_verdict == "not contradicted"
        assert found.fit.epsilon[0] < 2.13e8 < found.fit.epsilon[2]
        assert "single number" in found.notes[0]  # which Flower's mod leaves as it is

    def test_the_norm_bit_of_adaptive_clipping_is_measured_too(self) -> None:
        from flwr.clientapp.mod import adaptiveclipping_mod

        from seepage.recorder.flower_filter import mod_filter

        sent = mod_filter(adaptiveclipping_mod, config={"clipping_norm": 1.0})(dict(ENTRIES))
        assert float(sent["metric norm_bit"]) == 1

    def test_a_strategy_is_asked_for_a_round_of_weighted_clients(self) -> None:
        from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

        from seepage.recorder.flower_filter import strategy_aggregate

        updates = [dict(ENTRIES), {name: torch.ones_like(tensor) for name, tensor in ENTRIES.items()}]
        plain = strategy_aggregate(FedAvg())(updates, [3.0, 1.0])
        torch.testing.assert_close(plain["w"], torch.tensor([2.5, 3.25]))
        silent = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1.0, num_sampled_clients=2)
        clipped = strategy_aggregate(silent)(updates, [1000.0, 10.0])
        torch.testing.assert_close(clipped["w"], torch.tensor([0.6, 0.8]), atol=0.01, rtol=0)

    def test_a_strategy_of_equal_noise_is_contradicted_for_clients_of_unequal_weight(self) -> None:
        from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

        from seepage.measure.privacy.measured import OfClients
        from seepage.recorder.flower_filter import strategy_aggregate

        private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, num_sampled_clients=3)
        how = Measurement(delta=DELTA, stated=epsilon(sigma=1.0, delta=DELTA), calls=1000, seconds=None)
        for weights, contradicted in (((1000.0, 10.0, 10.0), True), ((10.0, 10.0, 10.0), False)):
            found = how.epsilon(OfClients(strategy_aggregate(private), weights), shapes={"w": (4,)})
            assert found.contradicted is contradicted

    def test_the_identity_of_the_process_and_the_log_stay_as_they_were(self) -> None:
        import logging

        from flwr.clientapp.mod import LocalDpMod
        from flwr.supercore.task_identity import TaskIdentity

        from seepage.recorder.flower_filter import mod_filter

        before = TaskIdentity._run_id
        mod_filter(LocalDpMod(1.0, 1.0, 1.0, DELTA))(dict(ENTRIES))
        assert TaskIdentity._run_id == before
        assert not logging.getLogger("flwr").disabled


class TestNVFlare:
    """Filters are called with shareables."""

    @pytest.fixture(autouse=True)
    def _nvflare(self) -> None:
        pytest.importorskip("nvflare", reason="needs seepage[nvflare]")

    def test_percentile_privacy_is_none(self) -> None:
        from nvflare.app_common.filters import PercentilePrivacy

        from seepage.recorder.nvflare_filter import dxo_filter

        each = PercentilePrivacy()
        found = Measurement(delta=DELTA, stated=5.0, calls=2000, seconds=None).epsilon(dxo_filter(each), clip=0.01)
        assert found.stated_verdict == "contradicted"
        assert found.deterministic

    def test_svt_states_what_its_accountant_adds_up_and_sends_single_numbers_as_they_are(self) -> None:
        from nvflare.app_common.filters import SVTPrivacy

        from seepage.recorder.nvflare_filter import dxo_filter

        each, shapes = SVTPrivacy(), {"w": (3, 2), "single": ()}
        found = Measurement(delta=DELTA, stated=1.4, calls=2000, seconds=None).epsilon(
            dxo_filter(each), clip=1e-5, shapes=shapes
        )
        assert found.stated_verdict == "contradicted"
        honest = Measurement(delta=DELTA, stated=0.7, calls=2000, seconds=None).epsilon(dxo_filter(each), clip=1e-5)
        assert honest.stated_verdict == "not contradicted"
        assert "single number" in honest.notes[0]

    def test_a_chain_that_answers_with_an_error_says_so(self) -> None:
        from nvflare.apis.dxo import DataKind
        from nvflare.app_common.filters.dxo_blocker import DXOBlocker

        from seepage.recorder.nvflare_filter import dxo_filter

        with pytest.raises(SeepageError, match="blocks"):
            dxo_filter(DXOBlocker([DataKind.WEIGHT_DIFF]))(dict(ENTRIES))


class TestOpacus:
    """Steps of a private optimizer."""

    @pytest.fixture(autouse=True)
    def _opacus(self) -> None:
        pytest.importorskip("opacus", reason="needs seepage[opacus]")

    def test_steps_agree_with_the_accountant_and_leave_the_weights_alone(self) -> None:
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        from seepage.recorder.opacus_steps import step_pairs

        inputs, labels = torch.rand(8, 4), torch.arange(8) % 2
        net, engine = nn.Linear(4, 2), PrivacyEngine(accountant="rdp")
        model, optimizer, _ = engine.make_private(
            module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=4), noise_multiplier=0.5,
            max_grad_norm=1.0,
        )  # fmt: skip
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        pairs = step_pairs(model, optimizer, F.cross_entropy, inputs[:2], labels[:2])
        computed = epsilon(sigma=0.5, delta=DELTA)
        found = Measurement(delta=DELTA, computed=computed, stated=1.0, calls=1200, unit="example", seconds=None).pairs(
            pairs
        )
        assert found.computed_verdict == "not contradicted"
        assert found.stated_verdict in ("contradicted", "contradicted by Gaussian fit")
        assert found.fit.mu[0] < 2 < found.fit.mu[2]
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, before[name])
        assert engine.accountant.history == []
