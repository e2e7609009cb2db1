"""Images from features without any data: a linear decoder, fitted on made-up images of a natural spectrum."""

from seepage.attacks.reading.decoding.decoder import AT_ONCE, Decoder
from seepage.attacks.reading.decoding.spectrum import NaturalSpectrum

__all__ = ["AT_ONCE", "Decoder", "NaturalSpectrum"]
