"""Differential privacy: counting epsilon, what a defense guarantees, and what a training has spent."""
