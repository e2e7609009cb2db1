"""Updates that were rounded on their way: to which format, and what `linear` still reads out of them."""

from seepage.attacks.reading.rounded.examples import with_rounding
from seepage.attacks.reading.rounded.rounding import Rounding, glance, rounding_of, weights_format
from seepage.attacks.reading.rounded.rows import agreeing_groups

__all__ = ["Rounding", "agreeing_groups", "glance", "rounding_of", "weights_format", "with_rounding"]
