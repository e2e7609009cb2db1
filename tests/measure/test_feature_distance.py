"""The distance in a public network's features, against torchmetrics' LPIPS with all weights 1."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seepage.audit import run as audit
from seepage.audit.diagnostics import metric_diagnostics
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Reconstruction
from seepage.measure.metrics import Yardstick, feature_distance, feature_network, score
from seepage.measure.metrics.features import TAPS, features_missing


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of SqueezeNet in a file: nothing is downloaded in tests."""
    from torchvision.models import squeezenet1_1

    path = tmp_path_factory.mktemp("weights") / "squeezenet.pt"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(squeezenet1_1().state_dict(), path)
    return path


def images(n: int, seed: int, side: int = 64, channels: int = 3) -> Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(seed))


def test_it_is_lpips_with_all_weights_one(weights: Path) -> None:
    from torchmetrics.functional.image.lpips import _LPIPS  # seconds, for the one worker that runs this

    oracle = _LPIPS(pretrained=False, net="squeeze", pnet_rand=True).eval()
    own = torch.load(weights, weights_only=True)
    features = [value for name, value in own.items() if name.startswith("features.")]
    oracle.net.load_state_dict(dict(zip(oracle.net.state_dict(), features, strict=True)))  # layer by layer, in order
    for name, weight in oracle.named_parameters():
        if not name.startswith("net."):
            nn.init.ones_(weight)
    a, b = images(3, 0), images(3, 1)
    with torch.no_grad():
        theirs = oracle(a, b, normalize=True).flatten().double() / len(TAPS)
    ours = feature_distance(a, b, feature_network(str(weights)))
    assert ours is not None
    assert torch.allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize(("side", "channels"), [(16, 1), (32, 3), (96, 3)])
def test_it_is_zero_for_the_truth_and_grows_with_noise(weights: Path, side: int, channels: int) -> None:
    network, truth = feature_network(str(weights)), images(20, 0, side, channels)
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))
    found = [feature_distance((truth + size * noise).clamp(0, 1), truth, network) for size in (0.0, 0.05, 0.5)]
    none, little, much = (value for value in found if value is not None)
    assert none.tolist() == [0.0] * 20
    assert bool((little < much).all())
    assert bool((little > 0).all())
    assert float(much.max()) <= 2


def test_an_example_alone_scores_as_among_others(weights: Path) -> None:
    network, truth, guesses = feature_network(str(weights)), images(18, 0, 16), images(18, 1, 16)
    whole, alone = (feature_distance(guesses[part], truth[part], network) for part in (slice(None), slice(17, 18)))
    assert float(whole[17]) == pytest.approx(float(alone[0]), rel=1e-5)


def test_without_weights_there_is_no_number_and_a_note() -> None:
    truth = Batch(images(2, 0, 16), torch.arange(2))
    found = score(Reconstruction(truth.inputs), truth, Yardstick(metrics=["feature_distance"]))
    assert found.feature_distance is None
    assert any("squeezenet1_1" in note or "Features are of images" in note for note in found.notes)


def test_an_audit_prints_it_beside_the_mean_color(weights: Path, tmp_path: Path) -> None:
    run = audit.run(
        {
            "data": {"use": "digits"},
            "model": {"use": "fc2"},
            "batch": {"size": 2, "count": 1},
            "training": {"steps": 0},
            "attack": [{"use": "linear"}],
            "score": {"metrics": ["feature_distance"], "features": str(weights)},
        },
        out=tmp_path / "run",
    )
    row = run.result.rows[0]
    assert row.scores["feature_distance"].mean < 1e-4
    assert row.baselines["mean_color"]["feature_distance"] > 1e-3


def test_an_audit_says_why_it_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "nothing"))
    found = metric_diagnostics(False, (3, 16, 16), ["feature_distance"])
    assert [one.name for one in found] == ["features-missing"]
    assert "feature_distance not measured" in found[0].message
    assert metric_diagnostics(False, (3, 16, 16)) == []


def test_weights_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    assert "there is no such file" in (features_missing(str(tmp_path / "none.safetensors")) or "")
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"no weights")
    with pytest.raises(SeepageError, match="squeezenet1_1"):
        feature_network(str(wrong))
