"""The client's network as an attacker runs it: one round's case, a cut at a layer, and whether an update vouches."""

from seepage.attacks.network.case import Case
from seepage.attacks.network.cut import NetworkCut, best_labels, relative_mismatch
from seepage.attacks.network.evidence import in_range, vouch

__all__ = ["Case", "NetworkCut", "best_labels", "in_range", "relative_mismatch", "vouch"]
