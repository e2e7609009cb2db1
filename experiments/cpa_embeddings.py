r"""Embeddings behind a pretrained network, recovered from the gradient of its fully connected head.

python experiments/cpa_embeddings.py --data ../shared/data/imagenet_sample_224.zip --n 32 64 128 256 \
    --weights ../shared/data/weights/squeezenet1_1_caffe_imagenet.safetensors
"""

import argparse
import io
import time
import zipfile

import numpy as np
import torch
import torch.nn.functional as F
from common import keep
from torch import Tensor, nn

from seepage.attacks.base import SingleRound
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.clients import FedSGD
from seepage.federation.types import Knowledge, Round, Update


class Standardized(nn.Module):
    """Photographs to the units that a network was trained in; ImageNet's, unless named."""

    def __init__(
        self,
        mean: tuple[float, float, float] = (0.485, 0.456, 0.406),
        std: tuple[float, float, float] = (0.229, 0.224, 0.225),
    ) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, images: Tensor) -> Tensor:
        mean, std = (images.new_tensor(value)[:, None, None] for value in (self.mean, self.std))
        return (images - mean) / std


def headed(weights: str, hidden: int = 512, seed: int = 0) -> nn.Sequential:
    """SqueezeNet 1.1 features of 7 x 7 x 512 = 25,088 entries, frozen, and a fresh two-layer head."""
    from safetensors.torch import load_file
    from torchvision.models import squeezenet1_1

    network = squeezenet1_1()
    network.load_state_dict(load_file(weights))
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    with frozen_randomness(seed):
        head = [nn.Linear(25_088, hidden), nn.ReLU(), nn.Linear(hidden, 1000)]
        return nn.Sequential(Standardized(), network.features, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head).eval()


def pictures(path: str, n: int, seed: int) -> Tensor:
    """`[n, 3, 224, 224]` images of a zip file."""
    from PIL import Image

    with zipfile.ZipFile(path) as file:
        names = sorted(name for name in file.namelist() if name.endswith(".jpg"))
        chosen = torch.randperm(len(names), generator=generator(seed, "pictures"))[:n].tolist()
        arrays = [np.asarray(Image.open(io.BytesIO(file.read(names[i]))).convert("RGB")) for i in chosen]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", required=True, help="SqueezeNet 1.1 weights")
    parser.add_argument("--n", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--first", type=int, default=3000, help="first batch seed")
    arguments = parser.parse_args()
    model = headed(arguments.weights)
    body, head = model[:4], model[4:]
    for n in arguments.n:
        for seed in range(arguments.first, arguments.first + arguments.batches):
            with torch.no_grad():
                truth = torch.cat([body(part) for part in pictures(arguments.data, n, seed).split(8)])
            labels = torch.randint(1000, (n,), generator=generator(seed, "labels"))
            slopes = torch.autograd.grad(F.cross_entropy(head(truth), labels), list(head.parameters()))
            params = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
            observed = Round(0, params, Update(dict(zip(params, slopes, strict=True))), {}, n)
            seen = SingleRound(Knowledge(model, FedSGD(mode="eval"), (3, 224, 224), 1000), observed)
            for method, polished in (("sparsest rows", False), ("with polish", True)):
                cpu = time.process_time()
                found = CocktailParty(polish=polished)(seen, seed=0)
                cpu = time.process_time() - cpu
                # Each true embedding's best row: a row that is found twice serves once.
                cosines = F.normalize(found.inputs, dim=1) @ F.normalize(truth, dim=1).T
                best = cosines.max(0).values
                row = {"n": n, "seed": seed, "method": method, "cosine": float(best.mean()), "width": truth.shape[1]}
                row["over_0.999"] = float((best > 0.999).double().mean())
                if found.certified is not None:
                    row["certified"] = float(found.certified.double().mean())
                    row["false_certificates"] = int((found.certified & (cosines.max(1).values < 0.999)).sum())
                row |= {"cpu_s": cpu, "notes": list(found.notes)}
                keep("cpa/embeddings", f"{method}, n {n}", "cosine", row)


if __name__ == "__main__":
    main()
