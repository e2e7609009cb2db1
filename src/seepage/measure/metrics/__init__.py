"""How much was recovered: alignment, metrics, baselines and intervals. Opens the truth; attacks never do."""

from seepage.base.limits import Limits
from seepage.base.registry import metrics
from seepage.measure.metrics.align import Alignment, align
from seepage.measure.metrics.baselines import baselines
from seepage.measure.metrics.image import (
    correlation,
    cosine,
    is_image,
    lpips,
    lpips_help,
    lpips_missing,
    lpips_weights,
    mse,
    psnr,
    psnr_quadrants,
    ssim,
    ssim_window,
)
from seepage.measure.metrics.interval import bootstrap_interval
from seepage.measure.metrics.labels import label_accuracy, label_hits
from seepage.measure.metrics.metric import default_metrics, find_metric
from seepage.measure.metrics.recognize import likeness
from seepage.measure.metrics.score import Yardstick, align_guess, score
from seepage.measure.metrics.scores import Score, Scores

METRICS = metrics
"""Every metric that a `Score` can be of, by name."""

__all__ = [
    "METRICS",
    "Alignment",
    "Limits",
    "Score",
    "Scores",
    "Yardstick",
    "align",
    "align_guess",
    "baselines",
    "bootstrap_interval",
    "correlation",
    "cosine",
    "default_metrics",
    "find_metric",
    "is_image",
    "label_accuracy",
    "label_hits",
    "likeness",
    "lpips",
    "lpips_help",
    "lpips_missing",
    "lpips_weights",
    "mse",
    "psnr",
    "psnr_quadrants",
    "score",
    "ssim",
    "ssim_window",
]
