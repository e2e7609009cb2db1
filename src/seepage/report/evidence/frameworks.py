"""What others call the attacker that an audit simulates, and what public texts ask for."""

from collections.abc import Collection
from typing import Literal

from seepage.base.schema import JsonRecord

SOK = "Carletti et al., SoK: Gradient Inversion Attacks in Federated Learning, USENIX Security 2025"
"""Where the letters of threat models are from."""

Letter = Literal["A", "B", "C", "D", "E", "F", "G", "H"]


class ThreatModel(JsonRecord):
    """The attacker that was simulated.

    Attributes:
        letter: A to H in the naming of `source`.
        name: Its name there.
        source: Who named it.
        knows: What the attacker knows, from all attacks of the run.
        beyond: What some attacks knew that the letter does not cover.
        never: What the attacker never did, so that the run says nothing of it.
    """

    letter: Letter
    name: str
    source: str = SOK
    knows: list[str]
    beyond: list[str]
    never: list[str]


NEVER = [
    "sent weights of its own making, or changed the model so that it leaks more",
    "chose which clients take part, or added clients of its own",
    "broke encryption, or saw more of a secure aggregation than its sum",
]


def threat_model(known: Collection[str], extra: Collection[str], *, learned_prior: bool = False) -> ThreatModel:
    """The letter of a run, by the most that any attack of it knew.

    A server knows the model, the updates and the client's rule: that is C. Images like the private ones make it D.

    Args:
        known: Everything that any attack knew.
        extra: The part of it that is beyond the protocol.
        learned_prior: Whether an attack brought a network that was trained on such images.

    >>> threat_model(["model", "client rule", "update"], []).letter
    'C'
    >>> found = threat_model(["model", "update", "auxiliary", "labels"], ["auxiliary", "labels"])
    >>> found.letter, found.beyond
    ('D', ['labels'])
    """
    alike = learned_prior or any("auxiliary" in word for word in extra)
    letter: Letter = "D" if alike else "C"
    name = "Data-Enhanced Eavesdropper" if alike else "Parameter-Aware Eavesdropper"
    beyond = [word for word in extra if "auxiliary" not in word]
    return ThreatModel(letter=letter, name=name, knows=list(known), beyond=beyond, never=NEVER)


def asked(*, bounded: bool, epsilon: bool) -> list[tuple[str, str, str]]:
    """What public texts ask for: where, what, and who fills it in.

    Args:
        bounded: Whether the run has an upper bound.
        epsilon: Whether it has an epsilon that is claimed or measured.
    """
    edpb, nist = "EDPB Opinion 28/2024, 58(e)", "NIST SP 800-226"
    bound = "this run: the upper bound" if bounded else "this run, by attacks alone; no bound"
    return [
        (edpb, "theoretical resistance to re-identification: of updates", bound),
        (edpb, "the same: of the released model", "not ours"),
        (f"{nist}, top", "epsilon, and of what", "this run" if epsilon else "nobody: no epsilon is claimed"),
        (f"{nist}, middle", "what undermines it, such as lacking security", "the controller; here: not examined"),
        (f"{nist}, base", "how data are collected", "the controller"),
    ]
