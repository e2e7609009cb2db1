"""Networks of the Cocktail Party Attack's experiments with convolutions: VGG-16, and a small one of its kind."""

from torch import Tensor, nn

from seepage.federation.models import Normalize


class ImageNetUnits(nn.Module):
    """Images in [0, 1] to the units that torchvision's weights were trained in."""

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def forward(self, images: Tensor) -> Tensor:
        mean, std = (images.new_tensor(value)[:, None, None] for value in (self.mean, self.std))
        return (images - mean) / std


def vgg16(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """VGG-16 with torchvision's ImageNet weights and no dropout; downloads them where they are not on the machine.

    For another number of classes than 1,000 the last layer is a fresh one.

    Args:
        input_shape: `[3, H, W]`.
        num_classes: Outputs.
    """
    from torchvision.models import vgg16 as torchvision_vgg16

    network = torchvision_vgg16(weights="DEFAULT", dropout=0.0)
    if num_classes != 1000:
        network.classifier[6] = nn.Linear(4096, num_classes)
    return nn.Sequential(ImageNetUnits(), network)


def small_vgg(
    input_shape: tuple[int, ...], num_classes: int, *, blocks: int = 1, hidden: int = 256, width: int = 32
) -> nn.Sequential:
    """Blocks of two 3x3 convolutions and a 2x2 max pooling, then two fully connected layers, as VGG-16 has it.

    Args:
        input_shape: `[C, H, W]`.
        num_classes: Outputs.
        blocks: Each halves the sides; the first has `width` channels, each further one twice as many.
        hidden: Units of the first fully connected layer, whose gradient is unmixed.
        width: Channels of the first block.

    >>> [tuple(p.shape) for p in small_vgg((3, 8, 8), 5, hidden=6, width=2).parameters()][4]
    (6, 32)
    """
    layers: list[nn.Module] = [Normalize()]
    channels, high, wide = input_shape
    for block in range(blocks):
        wider = width * 2**block
        layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU(), nn.Conv2d(wider, wider, 3, padding=1)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels, high, wide = wider, high // 2, wide // 2
    head = [nn.Flatten(), nn.Linear(channels * high * wide, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
    return nn.Sequential(*layers, *head)
