"""Images of transformers in closed form: what the gradients of patch and position embedding say together."""

from seepage.attacks.patches.patch_embedding import PatchEmbedding
from seepage.attacks.patches.patch_unmixing import PatchUnmixing
from seepage.attacks.patches.tokens import PatchTokens

__all__ = ["PatchEmbedding", "PatchTokens", "PatchUnmixing"]
