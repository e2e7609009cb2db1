"""Fail a build when a model's updates give away more than a limit. Exit codes: 0 passed, 1 too much, 2 a mistake."""

import sys

import torch

from seepage import Architecture, GaussianNoise, SeepageError, attack, build, data, exposure, record, score

MOST = int(sys.argv[1]) if len(sys.argv) > 1 else 0  # private examples that may be given away
SIGMA = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05  # of the defense
BATCHES, SIZE = 3, 4

try:
    digits = data.load("digits", size=8)
    model = build(Architecture("fc2", {"hidden": 64}), digits.input_shape, len(digits.classes))
    worst = 0
    for number in range(BATCHES):
        batch = digits.batch(torch.arange(number * SIZE, (number + 1) * SIZE))
        transcript = record(model, batch, defense=GaussianNoise(sigma=SIGMA), seed=number)
        closed = exposure(transcript).examples
        recovered = round(score(attack(transcript, "cocktail_party", seed=number), batch).recovered * SIZE)
        print(f"batch {number}: {closed} in closed form, {recovered} by the cocktail party attack")
        worst = max(worst, closed, recovered)
except SeepageError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
print(f"at most {worst} of {SIZE} given away; the limit is {MOST}. No proof of safety.")
sys.exit(1 if worst > MOST else 0)
