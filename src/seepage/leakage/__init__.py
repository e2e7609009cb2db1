"""What an update gives away before any attack: closed forms, fingerprints, batch norm, the head, the landscape."""

from seepage.attacks.head import HeadFeatures, LoneSlopes, head_features, lone_slopes
from seepage.leakage.adapters import AdapterLeak, adapter_leaks
from seepage.leakage.analysis import Exposure, TensorLeak, UpdateAnalysis, exposure
from seepage.leakage.batch_norm import BatchNormLeak, BatchNormSummary, batch_norm_leaks
from seepage.leakage.convolutions import EquationCount, equation_count
from seepage.leakage.decay import WeightDecay, infer_weight_decay
from seepage.leakage.exclusivity import Exclusivity, exclusivity
from seepage.leakage.finding import Finding
from seepage.leakage.fingerprints import Fingerprint, fingerprint
from seepage.leakage.indexed import IndexedLayer, IndexedRounds, indexed_rounds
from seepage.leakage.labels import LabelLeak
from seepage.leakage.landscape import Landscape, landscape
from seepage.leakage.layers import LayerLeak
from seepage.leakage.running_statistics import BatchStatistics, batch_statistics
from seepage.leakage.sent import SentParts, sent_parts, sent_words

__all__ = [
    "AdapterLeak",
    "BatchNormLeak",
    "BatchNormSummary",
    "BatchStatistics",
    "EquationCount",
    "Exclusivity",
    "Exposure",
    "Finding",
    "Fingerprint",
    "HeadFeatures",
    "IndexedLayer",
    "IndexedRounds",
    "LabelLeak",
    "Landscape",
    "LayerLeak",
    "LoneSlopes",
    "SentParts",
    "TensorLeak",
    "UpdateAnalysis",
    "WeightDecay",
    "adapter_leaks",
    "batch_norm_leaks",
    "batch_statistics",
    "equation_count",
    "exclusivity",
    "exposure",
    "fingerprint",
    "head_features",
    "indexed_rounds",
    "infer_weight_decay",
    "landscape",
    "lone_slopes",
    "sent_parts",
    "sent_words",
]
