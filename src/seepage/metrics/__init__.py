"""How much came back: alignment, metrics, baselines and intervals. Opens the truth; attacks never do."""

from dataclasses import dataclass

from seepage.metrics.align import METHODS, Alignment, align
from seepage.metrics.baselines import baselines
from seepage.metrics.image import (
    correlation,
    cosine,
    is_image,
    lpips,
    lpips_help,
    lpips_missing,
    lpips_weights,
    mse,
    psnr,
    ssim,
    ssim_window,
)
from seepage.metrics.interval import bootstrap_interval
from seepage.metrics.labels import label_accuracy, label_hits
from seepage.metrics.risk import Risk, risk
from seepage.metrics.score import align_guess, score
from seepage.metrics.scores import Scores


@dataclass(frozen=True)
class Metric:
    """What a metric says: one line for lists and reports.

    Attributes:
        description: One line.
        unit: `dB`, or empty for a plain number.
        higher_is_better: For the attacker: whether a higher value means more was recovered.
    """

    description: str
    unit: str
    higher_is_better: bool


METRICS: dict[str, Metric] = {
    "mse": Metric("mean squared error on [0, 1]", "", False),
    "psnr": Metric("peak signal-to-noise ratio per example; exact = 150", "dB", True),
    "ssim": Metric("structural similarity of images, Gaussian window of 11", "", True),
    "lpips": Metric("learned perceptual distance of images (VGG-16), if its weights are on disk", "", False),
    "correlation": Metric("correlation with the truth, blind to brightness and contrast", "", True),
    "cosine": Metric("cosine between guess and truth; the only metric of inner features", "", True),
    "label": Metric("1 where the label was guessed right", "", True),
}
"""Every metric a `Score` row can carry, by name."""

__all__ = [
    "METHODS",
    "METRICS",
    "Alignment",
    "Metric",
    "Risk",
    "Scores",
    "align",
    "align_guess",
    "baselines",
    "bootstrap_interval",
    "correlation",
    "cosine",
    "is_image",
    "label_accuracy",
    "label_hits",
    "lpips",
    "lpips_help",
    "lpips_missing",
    "lpips_weights",
    "mse",
    "psnr",
    "risk",
    "score",
    "ssim",
    "ssim_window",
]
