"""Of mixtures, and of batches that are not what is stated, nothing is certified that no example is, behind any step."""

import pytest
from tests.attacks.nulls import STEPS, VALUES_EACH, attacked


@pytest.mark.slow
@pytest.mark.parametrize("shard", [1, 2])
def test_nothing_false_is_certified(shard: int) -> None:
    """Of each step some; more by `python -m tests.attacks.nulls START COUNT` (results/captured/nulls.jsonl)."""
    first = 100_000 + 10_000 * shard
    seeds = [first + VALUES_EACH * step + k for step in range(len(STEPS)) for k in range(20)]
    kinds = set()
    for seed, kind, _, false in (one for s in seeds for one in attacked(range(s, s + 1))):
        assert not false, (seed, kind)
        kinds.add(kind)
    assert len(kinds) == 2 * len(STEPS)
