"""What an update gives away in closed form, before any attack."""

from seepage.exposure.layers import LayerLook
from seepage.exposure.look import Exposure, LabelLook, NormLook, TensorSays, exposure
from seepage.exposure.marks import TensorMarks, marks_of

__all__ = ["Exposure", "LabelLook", "LayerLook", "NormLook", "TensorMarks", "TensorSays", "exposure", "marks_of"]
