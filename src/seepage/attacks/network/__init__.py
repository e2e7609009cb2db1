"""The client's network as an attacker runs it: a round, a cut at a layer, and whether an update vouches for a guess."""

from seepage.attacks.network.attacked_round import LARGEST_MATRIX, AttackedRound
from seepage.attacks.network.cut import NetworkCut, best_labels, relative_mismatch
from seepage.attacks.network.evidence import CERTIFYING_MISMATCH, EXACT, in_range, vouch, vouch_unlabeled

__all__ = [
    "CERTIFYING_MISMATCH",
    "EXACT",
    "LARGEST_MATRIX",
    "AttackedRound",
    "NetworkCut",
    "best_labels",
    "in_range",
    "relative_mismatch",
    "vouch",
    "vouch_unlabeled",
]
