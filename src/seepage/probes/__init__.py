"""Quick looks at what an update gives away, short of an attack."""

from seepage.probes.batch_norm import BatchNormLeak, batch_norm_leaks
from seepage.probes.exclusivity import Exclusivity, exclusivity
from seepage.probes.head_features import HeadFeatures, head_features
from seepage.probes.landscape import Landscape, landscape

__all__ = [
    "BatchNormLeak",
    "Exclusivity",
    "HeadFeatures",
    "Landscape",
    "batch_norm_leaks",
    "exclusivity",
    "head_features",
    "landscape",
]
