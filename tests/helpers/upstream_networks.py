"""Networks of upstream examples, written anew and small: layers, order, constants and names of parts as upstream.

Widths and sizes are cut where seconds would be minutes. Where upstream normalizes the pictures before the network, the
factory's network does it first and keeps upstream's names of parameters.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, ...]
HALF = (0.5, 0.5)
"""Mean and deviation that most upstream examples normalize pictures by."""


class Pictures(nn.Module):
    """A network that normalizes what it reads; `mean` and `deviation` are no part of its state."""

    normal: tuple[float, float] = HALF

    def read(self, x: Tensor) -> Tensor:
        return (x - self.normal[0]) / self.normal[1]


class LeNet(Pictures):
    """Flower 1.23 quickstart-pytorch and NVFlare 2.6 hello-pt: two convolutions with pooling, three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(self.read(x))))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def lenet(shape: Shape = (), classes: int = 0) -> nn.Module:
    return LeNet()


class FedBN(Pictures):
    """Flower baselines, fedbn (Li et al. 2021): batch norm behind every layer but the last; widths cut by 16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 5, 1, 2), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 5, 1, 2), nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, 16, 5, 1, 2), nn.BatchNorm2d(16)
        self.fc1, self.bn4 = nn.Linear(1024, 128), nn.BatchNorm1d(128)
        self.fc2, self.bn5 = nn.Linear(128, 64), nn.BatchNorm1d(64)
        self.fc3 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(self.read(x)))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x))).flatten(1)
        x = F.relu(self.bn4(self.fc1(x)))
        return self.fc3(F.relu(self.bn5(self.fc2(x))))


def fedbn(shape: Shape = (), classes: int = 0) -> nn.Module:
    return FedBN()


class OpacusNet(Pictures):
    """Opacus 1.5 examples/cifar10.py: four convolutions, average pooling, one layer; no normalization layer."""

    def __init__(self) -> None:
        super().__init__()
        widths, layers = (3, 32, 64, 64, 128), list[nn.Module]()
        for before, after in pairwise(widths):
            pool = nn.AvgPool2d(2, 2) if after < 128 else nn.AdaptiveAvgPool2d((1, 1))
            layers += [nn.Conv2d(before, after, 3, 1, 1), nn.ReLU(), pool]
        self.net = nn.Sequential(*layers, nn.Flatten(1), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.read(x))


def opacus_net(shape: Shape = (), classes: int = 0) -> nn.Module:
    return OpacusNet()


class Mnist(Pictures):
    """pytorch/examples mnist/main.py (2024): two convolutions, dropout twice, log-softmax; widths cut by 4."""

    normal = (0.1307, 0.3081)

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 16, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(2304, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(self.read(x)))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), 1)


def mnist(shape: Shape = (), classes: int = 0) -> nn.Module:
    return Mnist()


class Vae(nn.Module):
    """pytorch/examples vae/main.py (2024): 784 to 20 and back; 400 hidden units cut to 100."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 100), nn.Linear(100, 20), nn.Linear(100, 20)
        self.fc3, self.fc4 = nn.Linear(20, 100), nn.Linear(100, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x.reshape(-1, 784)))
        mean, logvar = self.fc21(h), self.fc22(h)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mean, logvar


def vae(shape: Shape = (), classes: int = 0) -> nn.Module:
    return Vae()


class Residual(nn.Module):
    """The basic block of a ResNet, with a projection where the size changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet(Pictures):
    """kuangliu/pytorch-cifar (2021) ResNet-18 and torchvision 0.20 resnet18, one block a stage and widths cut by 4."""

    def __init__(self, classes: int, *, stem: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False) if stem else nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1, self.pool = nn.BatchNorm2d(16), nn.MaxPool2d(3, 2, 1) if stem else nn.Identity()
        widths = (16, 16, 32, 64, 128)
        self.layers = nn.Sequential(*(Residual(widths[i], widths[i + 1], 1 if i == 0 else 2) for i in range(4)))
        self.fc = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.pool(F.relu(self.bn1(self.conv1(self.read(x))))))
        return self.fc(x.mean((2, 3)))


def resnet(shape: Shape = (), classes: int = 0) -> nn.Module:
    return ResNet(10, stem=False)


def imagenet(shape: Shape = (), classes: int = 0) -> nn.Module:
    return ResNet(100, stem=True)


class Double(nn.Sequential):
    """Twice a convolution, batch norm and ReLU."""

    def __init__(self, before: int, after: int) -> None:
        layers = list[nn.Module]()
        for first in (before, after):
            layers += [nn.Conv2d(first, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class UNet(nn.Module):
    """milesial/Pytorch-UNet (2023): down and up with skips, two classes of pixels; three sizes, widths cut by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.inc, self.down1, self.down2 = Double(3, 8), Double(8, 16), Double(16, 32)
        self.up1, self.conv1 = nn.ConvTranspose2d(32, 16, 2, 2), Double(32, 16)
        self.up2, self.conv2 = nn.ConvTranspose2d(16, 8, 2, 2), Double(16, 8)
        self.outc = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.inc(x)
        two = self.down1(F.max_pool2d(one, 2))
        low = self.down2(F.max_pool2d(two, 2))
        up = self.conv1(torch.cat([two, self.up1(low)], 1))
        return self.outc(self.conv2(torch.cat([one, self.up2(up)], 1)))


def unet(shape: Shape = (), classes: int = 0) -> nn.Module:
    return UNet()


class Income(nn.Module):
    """Flower 1.23 fl-tabular: three layers, the chance itself as output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2, self.output = nn.Linear(30, 128), nn.Linear(128, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.layer2(F.relu(self.layer1(x))))
        return torch.sigmoid(self.output(x))


def income(shape: Shape = (), classes: int = 0) -> nn.Module:
    return Income()


def chance_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of chances of the second class."""
    return F.binary_cross_entropy(outputs.flatten(), targets.to(outputs).flatten())


def masks_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """milesial/Pytorch-UNet (2023): cross-entropy and Dice of the second class."""
    chances, masks = outputs.softmax(1)[:, 1], (targets == 1).float()
    return F.cross_entropy(outputs, targets) + 1 - 2 * (chances * masks).sum() / (chances + masks).sum()


class Coder(nn.Module):
    """Lightning 2.5 getting started, LitAutoEncoder: 784 to 3 and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 784))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x.flatten(1)))


def coder(shape: Shape = (), classes: int = 0) -> nn.Module:
    return Coder()


class Siamese(nn.Module):
    """pytorch/examples siamese_network (2024): one network for two pictures, and the chance that both are alike.

    Upstream's tower is a ResNet-18; here it is two convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.fc = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(torch.cat([self.tower(one), self.tower(two)], 1)))


class Pairs(Siamese):
    """The same for an example that is a pair of pictures, `[2, 1, 28, 28]`."""

    def forward(self, pair: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(pair[:, 0], pair[:, 1])


def pairs(shape: Shape = (), classes: int = 0) -> nn.Module:
    return Pairs()


def bert(shape: Shape = (), classes: int = 0) -> nn.Module:
    """Flower 1.23 quickstart-huggingface: BERT-tiny for two classes, 30,522 tokens cut to 3,000."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=3000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        num_labels=2, max_position_embeddings=64,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def timm_vit(shape: Shape = (), classes: int = 0) -> nn.Module:
    """timm 1.0 vit_tiny_patch16_224, cut: 64 patches of 64 pixels, 96 wide, three blocks."""
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=64, patch_size=8, embed_dim=96, depth=3, num_heads=3, num_classes=10, drop_path_rate=0.1
    )


def timm_vit_tiny(shape: Shape = (), classes: int = 0) -> nn.Module:
    """The same as upstream has it, of 224 pixels."""
    import timm

    return timm.create_model("vit_tiny_patch16_224", num_classes=10, drop_path_rate=0.1)


def head_vit(shape: Shape = (), classes: int = 0) -> nn.Module:
    """Flower 1.23 flowertune-vit: torchvision's vision transformer with a new head, trained alone; cut to 64 wide."""
    from torchvision.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng():
        torch.manual_seed(7)  # what upstream loads from a file of its own
        net = VisionTransformer(32, 8, 2, 2, 64, 128, num_classes=10)
        nn.init.normal_(net.heads.head.weight, std=0.02)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("heads."))
    return net


def lora_vit(shape: Shape = (), classes: int = 0) -> nn.Module:
    """PEFT 0.18 image_classification: a ViT with adapters on queries and values and a new head; cut to 48 wide."""
    from peft import LoraConfig, get_peft_model
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng():
        torch.manual_seed(7)
        config = ViTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96, image_size=32,
            patch_size=8, num_labels=10,
        )  # fmt: skip
        names = [f"vit.layers.{i}.attention.{part}_proj" for i in range(2) for part in ("q", "v")]
        net = ViTForImageClassification(config)
        adapters = LoraConfig(
            r=4, lora_alpha=4, target_modules=names, lora_dropout=0.1, bias="none",
            modules_to_save=["classifier"],
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of one of the two libraries about the other
            return get_peft_model(net, adapters)


def decayed_groups(net: nn.Module, decay: float) -> Iterator[dict[str, Any]]:
    """timm's groups: no decay of vectors, biases and what the network says itself."""
    says: Callable[[], set[str]] = getattr(net, "no_weight_decay", set)
    spared = says()
    free = [p for name, p in net.named_parameters() if p.ndim < 2 or name in spared]
    rest = [p for name, p in net.named_parameters() if p.ndim > 1 and name not in spared]
    yield {"params": free, "weight_decay": 0.0}
    yield {"params": rest, "weight_decay": decay}
