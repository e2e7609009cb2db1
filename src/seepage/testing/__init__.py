"""What every attack and every defense keeps, as plain functions: run them on your own, in any test runner.

Each check raises `AssertionError` with a sentence. `check_attack` and `check_defense` run all of them; the
dictionaries `ATTACK_CHECKS` and `DEFENSE_CHECKS` hold them by name, for a test of its own each.

    from seepage.testing import check_attack

    def test_my_attack() -> None:
        check_attack(MyAttack(steps=50), planted_db=25.0)
"""

from seepage.testing.attack import ATTACK_CHECKS, AttackCase, check_attack, planted_inputs, recovered_db
from seepage.testing.defense import DEFENSE_CHECKS, DefenseCase, check_defense, random_update

__all__ = [
    "ATTACK_CHECKS",
    "DEFENSE_CHECKS",
    "AttackCase",
    "DefenseCase",
    "check_attack",
    "check_defense",
    "planted_inputs",
    "random_update",
    "recovered_db",
]
