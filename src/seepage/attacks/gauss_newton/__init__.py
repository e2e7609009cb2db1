"""Exact batches through convolutions, by Gauss-Newton on features and a weight gradient; also out of local steps."""

from seepage.attacks.gauss_newton.gauss_newton import GaussNewton
from seepage.attacks.gauss_newton.local_steps import LocalSteps

__all__ = ["GaussNewton", "LocalSteps"]
