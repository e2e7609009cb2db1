"""Exact batches through convolutions, by Gauss-Newton on features and a weight gradient."""

from seepage.attacks.gauss_newton.gauss_newton import GaussNewton

__all__ = ["GaussNewton"]
