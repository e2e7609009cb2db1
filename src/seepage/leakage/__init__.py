"""What an update gives away before any attack: closed forms, fingerprints, batch norm, the head, the landscape."""

from seepage.leakage.batch_norm import BatchNormLeak, batch_norm_leaks
from seepage.leakage.exclusivity import Exclusivity, exclusivity
from seepage.leakage.exposure import Exposure, LabelLook, NormLook, TensorSays, exposure
from seepage.leakage.fingerprints import TensorMarks, marks_of
from seepage.leakage.head_features import HeadFeatures, head_features
from seepage.leakage.landscape import Landscape, landscape
from seepage.leakage.layers import LayerLook

__all__ = [
    "BatchNormLeak",
    "Exclusivity",
    "Exposure",
    "HeadFeatures",
    "LabelLook",
    "Landscape",
    "LayerLook",
    "NormLook",
    "TensorMarks",
    "TensorSays",
    "batch_norm_leaks",
    "exclusivity",
    "exposure",
    "head_features",
    "landscape",
    "marks_of",
]
