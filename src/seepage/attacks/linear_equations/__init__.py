"""Batches read by linear equations, from units that one example alone switches on."""

from seepage.attacks.linear_equations.linear_equations import LinearEquations

__all__ = ["LinearEquations"]
