"""What an update reveals before any attack: closed forms, fingerprints, batch norm, the head."""

from seepage.attacks.exposure.analysis import Exposure, TensorLeak, UpdateAnalysis, exposure
from seepage.attacks.exposure.batch_norm import BatchNormLeak, batch_norm_leaks
from seepage.attacks.exposure.decay import WeightDecay, infer_weight_decay
from seepage.attacks.exposure.finding import ClosedForm, Finding
from seepage.attacks.exposure.fingerprints import Fingerprint, fingerprint
from seepage.attacks.exposure.indexed import IndexedLayer, IndexedRounds, indexed_rounds
from seepage.attacks.exposure.labels import LabelLeak
from seepage.attacks.exposure.layers import LayerLeak
from seepage.attacks.exposure.running_statistics import BatchStatistics, batch_statistics
from seepage.attacks.exposure.sent import SentParts, sent_parts, sent_words
from seepage.attacks.reading.head import HeadFeatures, head_features

__all__ = [
    "BatchNormLeak", "BatchStatistics", "ClosedForm", "Exposure",
    "Finding", "Fingerprint", "HeadFeatures", "IndexedLayer", "IndexedRounds", "LabelLeak", "LayerLeak",
    "SentParts", "TensorLeak", "UpdateAnalysis", "WeightDecay", "batch_norm_leaks",
    "batch_statistics", "exposure", "fingerprint", "head_features", "indexed_rounds",
    "infer_weight_decay", "sent_parts", "sent_words",
]  # fmt: skip
