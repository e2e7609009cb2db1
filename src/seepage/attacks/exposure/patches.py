"""What the gradients of a transformer's patch and position embeddings reveal together."""

from dataclasses import dataclass

from seepage.attacks.base import ignore
from seepage.attacks.exposure.finding import Finding
from seepage.attacks.patches import PatchEmbedding
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript


@dataclass(frozen=True)
class PatchLeak:
    """What one least-squares solve gives of a single image.

    Attributes:
        tensors: Names of the patch embedding's weight and of the position embedding.
        patches: P.
        shown: Directions of the P patches that the gradients show.
        expected_db: Expected error of the image, as a PSNR in dB, from the singular values and the update's own noise;
            None where what is left of the gradient contradicts it.
        exact: Whether the network's own update at the image is the observed one, and 40 dB or more are expected.
    """

    tensors: tuple[str, str]
    patches: int
    shown: int
    expected_db: float | None
    exact: bool


def patch_leak(transcript: Transcript) -> PatchLeak | None:
    """Solve for the image of a round of one example; None where the network or the round does not allow it.

    Args:
        transcript: Its first round is read.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("vit", {"patch": 4, "width": 32, "depth": 1}), (3, 16, 16), 5)
        >>> leak = patch_leak(record(model, Batch(torch.rand(1, 3, 16, 16), torch.tensor([3]))))
        >>> leak.tensors, leak.patches, leak.exact
        (('1.conv_proj.weight', '1.encoder.pos_embedding'), 16, True)
    """
    attack = PatchEmbedding()
    try:
        seen = attack.prepare(transcript)
    except Inapplicable:
        return None
    solved, found = seen.solved, attack.run(seen, seed=0, progress=ignore)
    assert found.certified is not None
    expected = None if seen.expected_db is None else round(seen.expected_db, 1)
    tensors = (seen.tokens.weight, seen.tokens.position)
    return PatchLeak(tensors, len(seen.errors), solved.rank, expected, bool(found.certified.all()))


def patch_findings(leak: PatchLeak | None) -> list[Finding]:
    """The image of a transformer, where it can be solved for at all, and nothing contradicts the solution."""
    if leak is None or leak.expected_db is None:
        return []
    what = "its one example exactly" if leak.exact else "its one example"
    message = (
        f"{what}, from the gradients of the position and the patch embedding: {leak.shown} of {leak.patches} "
        f"directions of its patches are shown, and {leak.expected_db:.0f} dB expected; withhold or noise one of the two"
    )
    evidence = {"patches": leak.patches, "shown": leak.shown, "expected_db": leak.expected_db}
    limit = "" if leak.exact else "The update was changed, or has more patches than a token has numbers."
    return [Finding(name="patches", message=message, evidence=evidence, limit=limit, tensors=leak.tensors)]
