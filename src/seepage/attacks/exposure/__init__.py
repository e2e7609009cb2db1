"""What an update reveals before any attack: closed forms, fingerprints, batch norm, the head."""

from seepage.attacks.exposure.analysis import Exposure, UpdateAnalysis, exposure
from seepage.attacks.exposure.attributes import Completed, completed_rows
from seepage.attacks.exposure.batch_norm import BatchNormLeak, batch_norm_leaks
from seepage.attacks.exposure.decay import WeightDecay, infer_weight_decay
from seepage.attacks.exposure.fingerprints import fingerprint
from seepage.attacks.exposure.indexed import indexed_rounds
from seepage.attacks.exposure.labels import LabelLeak
from seepage.attacks.exposure.running_statistics import batch_statistics
from seepage.attacks.exposure.sent import sent_words
from seepage.attacks.reading.head import head_features

__all__ = [
    "BatchNormLeak", "Completed", "Exposure", "LabelLeak", "UpdateAnalysis", "WeightDecay", "batch_norm_leaks",
    "batch_statistics", "completed_rows", "exposure", "fingerprint", "head_features", "indexed_rounds",
    "infer_weight_decay", "sent_words",
]  # fmt: skip
