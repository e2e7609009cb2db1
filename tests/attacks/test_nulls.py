"""Of mixtures, and of batches that are not what is stated, nothing is certified that no example is, behind any step."""

import pytest
from tests.attacks.nulls import STEPS, VALUES_EACH, attacked


@pytest.mark.parametrize(
    ("shard", "each"),
    [pytest.param(1, 5, marks=pytest.mark.slow), *(pytest.param(one, 20, marks=pytest.mark.full) for one in (1, 2))],
)
def test_nothing_false_is_certified(shard: int, each: int) -> None:
    """Of each step some; more by `python -m tests.attacks.nulls START COUNT` (results/captured/nulls.jsonl)."""
    first = 100_000 + 10_000 * shard
    seeds = [first + VALUES_EACH * step + k for step in range(len(STEPS)) for k in range(each)]
    kinds = set()
    for seed, kind, _, false in (one for s in seeds for one in attacked(range(s, s + 1))):
        assert not false, (seed, kind)
        kinds.add(kind)
    assert len(kinds) == 2 * len(STEPS)
