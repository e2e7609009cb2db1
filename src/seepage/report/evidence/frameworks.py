"""What others call the risk that an audit measures: identifiers of public catalogs, and the threat model's letter.

None of them certifies anything: they let a reader file the evidence where their own catalog expects it.
"""

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


class Reference(JsonRecord):
    """An entry of a public catalog of risks or requirements.

    Attributes:
        catalog: The catalog.
        id: The entry's identifier in it.
        title: The entry's title.
        url: Where it is described.
        fits: Which part of the entry this evidence speaks of, and which it does not.
    """

    catalog: str
    id: str
    title: str
    url: str
    fits: str


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


COSAI = Reference(
    catalog="CoSAI Risk Map",
    id="riskFederatedDistributedTrainingPrivacy",
    title="Federated/Distributed Training Privacy",
    url="https://github.com/cosai-oasis/secure-ai-tooling/tree/main/risk-map",
    fits='names gradient inversion and membership inference on updates; "What was not tested" says which was not tried',
)
ATLAS_MEMBERSHIP = Reference(
    catalog="MITRE ATLAS",
    id="AML.T0024.000",
    title="Infer Training Data Membership",
    url="https://atlas.mitre.org/techniques/AML.T0024.000",
    fits="is defined through an inference API; ATLAS has no technique for updates: the nearest, and not the same",
)
ATLAS_INVERSION = Reference(
    catalog="MITRE ATLAS",
    id="AML.T0024.001",
    title="Invert AI Model",
    url="https://atlas.mitre.org/techniques/AML.T0024.001",
    fits="is defined through an inference API; ATLAS has no technique for updates: the nearest, and not the same",
)
AISVS_PRIVATE_TRAINING = Reference(
    catalog="OWASP AISVS 1.0",
    id="11.2.4",
    title="Training on sensitive datasets employs differentially private optimization",
    url="https://github.com/OWASP/AISVS/blob/main/1.0/en/0x10-C11-Adversarial-Robustness.md",
    fits="the epsilon here speaks of it; whether all of the training used the defense does not stand here",
)
AISVS_MEMBERSHIP = Reference(
    catalog="OWASP AISVS 1.0",
    id="11.2.5",
    title="Membership-inference simulations do not exceed random guessing",
    url="https://github.com/OWASP/AISVS/blob/main/1.0/en/0x10-C11-Adversarial-Robustness.md",
    fits="the membership tests of this evidence are such a simulation on updates, not on the trained model",
)
NIST = Reference(
    catalog="NIST AI 100-2 E2025",
    id="2.4",
    title="Privacy attacks: data reconstruction, membership inference",
    url="https://doi.org/10.6028/NIST.AI.100-2e2025",
    fits="both classes, but for what was not tested here; property inference and model extraction never are",
)


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


def references(*, membership: bool, epsilon: bool) -> list[Reference]:
    """The entries that a run speaks of.

    Args:
        membership: Whether it has membership tests.
        epsilon: Whether it has a computed or measured epsilon.
    """
    found = [COSAI, NIST, ATLAS_INVERSION]
    found += [ATLAS_MEMBERSHIP, AISVS_MEMBERSHIP] * membership
    return found + [AISVS_PRIVATE_TRAINING] * epsilon
