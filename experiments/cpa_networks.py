"""Networks with convolutions in front of their first fully connected layer: trained here, pretrained, or random."""

from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from common import fit, parts
from cpa_embeddings import Standardized, headed
from torch import Tensor, nn

from seepage.base.nn import frozen_randomness
from seepage.papers.special import networks

HIDDEN = 256


def small_vgg(blocks: int, data: str) -> nn.Module:
    """Blocks of two 3x3 convolutions and a 2x2 max pooling, 32 channels and doubling, trained for ten epochs."""
    train, _ = parts(data)
    with frozen_randomness(0):
        layers = networks.small_vgg(tuple(train.inputs.shape[1:]), 10, blocks=blocks, hidden=HIDDEN)
    model = nn.Sequential(Standardized(), *layers[1:])
    fit(model, train, epochs=10, size=64, seed=0, key=f"vgg/{Path(data).name}/{blocks}")
    return model


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut that is strided and filled up with zero channels."""

    def __init__(self, width: int, wider: int) -> None:
        super().__init__()
        self.stride, self.extra = wider // width, wider - width
        self.conv1 = nn.Conv2d(width, wider, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wider)

    def forward(self, x: Tensor) -> Tensor:
        short = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra // 2, self.extra // 2))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + short)


class ResNet20(nn.Module):
    """The convolutions of the CIFAR ResNet-20; 64 channels of 8 x 8 values, not pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        for stage, (width, wider) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            blocks = [Residual(width if i == 0 else wider, wider) for i in range(3)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.relu(self.bn1(self.conv1(x)))
        for stage in (1, 2, 3):
            out = self.get_submodule(f"layer{stage}")(out)
        return out


def resnet20(weights: str) -> nn.Module:
    """Pretrained ResNet-20 with a fresh fully connected head on its 4,096 last features."""
    from safetensors.torch import load_file

    network = ResNet20()
    network.load_state_dict({k: v for k, v in load_file(f"{weights}/resnet20_cifar10.safetensors").items()
                             if not k.startswith("linear")}, strict=False)  # fmt: skip
    with frozen_randomness(0):
        head = [nn.Flatten(), nn.Linear(4096, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)]
    return nn.Sequential(Standardized(), network, *head).eval()


def squeezenet(weights: str) -> nn.Module:
    """Pretrained SqueezeNet 1.1 with a fresh head on 25,088 features; all its parameters are trained by the client."""
    model = headed(f"{weights}/squeezenet1_1_caffe_imagenet.safetensors", HIDDEN)
    return model.requires_grad_()


def efficientnet(weights: str) -> nn.Module:
    """Pretrained EfficientNet-Lite0 with a fresh head on its 62,720 features, not pooled."""
    import timm
    from safetensors.torch import load_file

    network = timm.create_model("tf_efficientnet_lite0", num_classes=0, global_pool="")
    state = load_file(f"{weights}/tf_efficientnet_lite0_imagenet.safetensors")
    network.load_state_dict({name: t for name, t in state.items() if not name.startswith("classifier")})
    with frozen_randomness(0):
        head = [nn.Flatten(), nn.Linear(62_720, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1000)]
    return nn.Sequential(Standardized((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), network, *head).eval()


def vgg16(weights: str) -> nn.Module:
    """VGG-16 of torchvision with random weights: an answer to what it costs, no more."""
    from torchvision.models import vgg16

    with frozen_randomness(0):
        return nn.Sequential(Standardized(), vgg16()).eval()


PRETRAINED: dict[str, Callable[[str], nn.Module]] = {
    "resnet20": resnet20,
    "squeezenet1_1": squeezenet,
    "efficientnet_lite0": efficientnet,
    "vgg16-random": vgg16,
}
