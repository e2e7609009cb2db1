"""Audit a model of your own, with data of your own, from Python."""

import torch
from torch import nn

from seepage import Batch, Sparsify, attack, data, exposure, record, score

torch.manual_seed(0)  # prints the same twice
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))  # yours
digits = data.load("digits", size=8)  # yours: any Batch(inputs, labels) will do
batch: Batch = digits.batch(torch.arange(4))

for name, defense in (("no defense", None), ("the largest tenth", Sparsify(keep=0.1))):
    transcript = record(model, batch, defense=defense)  # what the server sees
    print(f"{name}: {exposure(transcript).line}")  # without an attack
    for use, options in (("linear", {}), ("inverting_gradients", {"steps": 20})):
        found = attack(transcript, use, options=options)
        scores = score(found, batch)
        print(f"  {use}: {scores.recovered:.0%} recovered, {scores.psnr:.0f} dB")
