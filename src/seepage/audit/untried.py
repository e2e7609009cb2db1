"""Attacks that nobody asked for: which of them refuse an update, so that "not tried" is told from "cannot apply"."""

from collections.abc import Collection

from seepage.attacks import ATTACKS, Attack
from seepage.attacks.base import SingleRound
from seepage.errors import Inapplicable
from seepage.registry import Spec
from seepage.types import Transcript


def refusals(transcript: Transcript, asked: Collection[str]) -> dict[str, str]:
    """Why attacks of this package that were not asked for can say nothing of a transcript, by name.

    One that is not named here was asked for, or is not ruled out: whoever asks for it may learn more.

    Args:
        transcript: What the attacks would be given.
        asked: Registered names of the attacks that were tried.
    """
    first = SingleRound(transcript.knowledge, transcript[0])  # read once, for all of them
    found = {}
    for name in ATTACKS:
        if name in asked:
            continue
        try:
            attack: Attack = ATTACKS.build(Spec(name))
            # Some solve for minutes before they know whether they apply: of those only what they declare is looked at.
            if ATTACKS[name].facts.get("slow_check"):
                attack.needs.check(first.knowledge, first.observed)
            else:
                attack.check(first if attack.rounds == "one" else transcript)
        except Inapplicable as refused:
            found[name] = str(refused)
        except Exception:  # an attack may be somebody's own code; a fault of it rules nothing out
            continue
    return found
