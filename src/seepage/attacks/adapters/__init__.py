"""Inputs behind low-rank adapters (LoRA), in closed form, from the gradients of A and B alone."""

from seepage.attacks.adapters.lora import LoraLeak
from seepage.attacks.adapters.vectors import AdapterInputs

__all__ = ["AdapterInputs", "LoraLeak"]
