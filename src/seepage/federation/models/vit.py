"""A small vision transformer: torchvision's, for any image and patch size, and a fresh head that is not zero."""

from torch import nn

from seepage.base.registry import models
from seepage.errors import SeepageError
from seepage.federation.models.normalize import Normalize

HEAD_STD = 0.02
"""Standard deviation of the head's fresh weights. torchvision's are 0, with which a first update holds nothing."""


@models.register("vit")
def vit(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    patch: int = 4,
    width: int = 96,
    depth: int = 4,
    heads: int = 4,
    hidden: int = 192,
) -> nn.Sequential:
    """A vision transformer (ICLR 2021) with a class token, learned positions, GELU and layer norms in front.

    Args:
        input_shape: `[C, H, W]`; the image is square.
        num_classes: Outputs.
        patch: Side of a patch in pixels; it divides the image's.
        width: Numbers of a token.
        depth: Layers of attention.
        heads: Heads of each; they divide the width.
        hidden: Width of the layers between two attentions.
    """
    if len(input_shape) != 3 or input_shape[1] != input_shape[2] or input_shape[1] % patch or width % heads:
        raise SeepageError(
            f"vit takes square images of whole patches, and heads that divide the width; got images {input_shape}, "
            f"patch {patch}, width {width} and heads {heads}; correct the recipe"
        )
    from torchvision.models import VisionTransformer

    network = VisionTransformer(
        image_size=input_shape[1],
        patch_size=patch,
        num_layers=depth,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=hidden,
        num_classes=num_classes,
    )
    if input_shape[0] != 3:
        network.conv_proj = nn.Conv2d(input_shape[0], width, patch, stride=patch)
        nn.init.trunc_normal_(network.conv_proj.weight, std=(input_shape[0] * patch**2) ** -0.5)
        nn.init.zeros_(network.conv_proj.bias)
    nn.init.trunc_normal_(network.heads.head.weight, std=HEAD_STD)
    return nn.Sequential(Normalize(), network)
