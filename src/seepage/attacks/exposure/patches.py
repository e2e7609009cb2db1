"""What the gradients of a transformer's patch and position embeddings reveal together."""

from seepage.attacks.base import ignore
from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.patches import PatchEmbedding
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript


def patch_findings(transcript: Transcript) -> list[ClosedForm]:
    """The image of a round of one example, by one least-squares solve; none where network or round do not allow it.

    Args:
        transcript: Its first round is read.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("vit", {"patch": 4, "width": 32, "depth": 1}), (3, 16, 16), 5)
        >>> (found,) = patch_findings(record(model, Batch(torch.rand(1, 3, 16, 16), torch.tensor([3]))))
        >>> found.tensors, found.evidence["patches"], found.examples
        (('1.conv_proj.weight', '1.encoder.pos_embedding'), 16, 1)
    """
    attack = PatchEmbedding()
    try:
        seen = attack.prepare(transcript)
    except Inapplicable:
        return []
    found = attack.run(seen, seed=0, progress=ignore)
    assert found.certified is not None
    # The expected error of the image, from the singular values and the update's own noise, as a PSNR in dB.
    expected = None if seen.expected_db is None else round(seen.expected_db, 1)
    patches, shown, exact = len(seen.errors), seen.solved.rank, bool(found.certified.all())
    message = "an image was solved for, and what is left of the gradient contradicts it"
    if expected is not None:
        message = (
            f"its one example{' exactly' * exact}, from the gradients of the position and the patch embedding: {shown} "
            f"of {patches} directions of its patches are shown, and {expected:.0f} dB expected; withhold or noise one "
            "of the two"
        )
    evidence = {"patches": patches, "shown": shown, "expected_db": expected, "exact": exact}
    limit = "" if exact else "The update was changed, or has more patches than a token has numbers."
    tensors = () if expected is None else (seen.tokens.weight, seen.tokens.position)
    return [
        ClosedForm(
            name="patches", message=message, evidence=evidence, limit=limit, tensors=tensors, examples=int(exact)
        )
    ]
