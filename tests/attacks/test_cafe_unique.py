"""CAFE's supplement B: other data with the same gradient of all samples, and none with those of all pairs."""

import numpy as np
import pytest
from scripts import script

UNIQUE = script("cafe_unique")


def gradient(weight, bias, x, y):
    """Of the mean cross-entropy of logistic regression, in numpy."""
    scores = np.exp(x @ weight.T + bias)
    push = (scores / scores.sum(1, keepdims=True) - y) / len(x)
    return np.concatenate([(push.T @ x).ravel(), push.sum(0)])


@pytest.mark.parametrize("seed", range(3))
def test_other_data_fit_one_gradient_and_not_those_of_the_pairs(seed):
    victim, other = UNIQUE.example(seed)
    weight, bias = (victim.params[f"parties.0.first.{name}"].double().numpy() for name in ("weight", "bias"))
    x, labels = victim.data.inputs.double().numpy(), np.eye(2)[victim.data.labels.numpy()]
    fake, soft = other.inputs.double().numpy(), other.labels.double().numpy()
    assert np.abs(fake[:2] - x[:2]).max() > 0.05
    assert fake.min() >= 0
    assert fake.max() <= 1
    assert soft.min() >= 0
    assert np.allclose(soft.sum(1), 1, atol=1e-6)

    def apart(rows):
        true = gradient(weight, bias, x[rows], labels[rows])
        return np.square(gradient(weight, bias, fake[rows], soft[rows]) - true).sum() / np.square(true).sum()

    assert apart([0, 1, 2]) < 1e-10  # equation 13
    assert apart([0, 1]) < 1e-10
    assert min(apart([0, 2]), apart([1, 2])) > 1e-4  # equation 14
    for rows in ((0, 1, 2), (0, 1), (0, 2), (1, 2)):
        assert UNIQUE.misfit(victim, other, rows) == pytest.approx(apart(list(rows)), rel=1e-2, abs=1e-9)
