r"""Images from the embeddings that an update reveals: CPA + FIA, CPA + FIA + GMA, on networks of several depths.

python experiments/cpa_inversion.py vgg-1 vgg-2 vgg-3 --data ../shared/data/cifar10.npz --n 16 --steps 1000
python experiments/cpa_inversion.py resnet20 --data ../shared/data/cifar10.npz --weights ../shared/data/weights
python experiments/cpa_inversion.py squeezenet1_1 --data ../shared/data/imagenet_sample_224.zip --largest 4 \
    --weights ../shared/data/weights
"""

import argparse
import resource
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from common import Clock, Row, clocked, development, draw, flat_square, keep, parts
from cpa_embeddings import pictures
from cpa_networks import PRETRAINED, small_vgg
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from seepage.api import record
from seepage.attacks.cpa.feature_inversion import Embedding, FeatureInversion, cpa_fia
from seepage.attacks.network.mixing_layer import find_layer
from seepage.base.nn import generator
from seepage.federation.clients import FedSGD
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Batch, Transcript
from seepage.measure.metrics.image import psnr, ssim


def batch_of(arguments: argparse.Namespace, seed: int) -> Batch:
    """A scored batch, or one for trying settings out: unseen test images, or photographs with random labels."""
    if arguments.data.endswith(".zip"):
        # Labels do not matter to the unmixing, and a fresh head has learnt none.
        labels = torch.randint(1000, (arguments.n,), generator=generator(seed, "labels"))
        return Batch(pictures(arguments.data, arguments.n, seed), labels)
    return (development if arguments.trying else draw)(parts(arguments.data)[1], arguments.n, seed)


def network(name: str, arguments: argparse.Namespace) -> nn.Module:
    if name.startswith("vgg-"):
        return small_vgg(int(name.removeprefix("vgg-")), arguments.data)
    return PRETRAINED[name](arguments.weights)


def embeddings(seen: Transcript, images: Tensor) -> Tensor:
    """What the attacked layer reads at given images."""
    layer = find_layer(seen.knowledge, seen[0], None)
    read = Embedding(seen.knowledge.model, layer.name, seen[0].params, seen[0].buffers)
    with torch.no_grad():
        return torch.cat([read(part) for part in images.split(4)])


def similarity(one: Tensor, other: Tensor) -> Tensor:
    """`[k]` cosine of images about mid-grey."""
    return F.cosine_similarity(one.flatten(1) - 0.5, other.flatten(1) - 0.5)


def measure(attack: FeatureInversion, seen: Transcript, batch: Batch) -> Row:
    """Scores of the images that were inverted, beside each one's own mean color; how alike the embeddings are."""
    clock = Clock()
    with clocked(clock):
        found = attack(seen, seed=0)
    seconds = {"wall_s": clock.wall, "cpu_s": clock.cpu}
    back, true = embeddings(seen, found.inputs), embeddings(seen, batch.inputs)
    # Which image was meant is known by the embedding; poor images would be matched with whatever they look like.
    _, whose = linear_sum_assignment(F.normalize(back, dim=1) @ F.normalize(true, dim=1).T, maximize=True)
    guesses, truth, true = found.inputs, batch.inputs[whose], true[whose]
    plain = flat_square(truth)
    return {
        "images": len(truth),
        "cosine": float(similarity(guesses, truth).mean()),
        "psnr": float(psnr(guesses, truth).mean()),
        "ssim": float(ssim(guesses, truth).mean()),
        "plain_cosine": float(similarity(plain, truth).mean()),
        "plain_psnr": float(psnr(plain, truth).mean()),
        "plain_ssim": float(ssim(plain, truth).mean()),
        "embedding_reached": float(F.cosine_similarity(back, true).mean()),
        "notes": list(found.notes),
        "width": true.shape[1],
        "alignment": "hungarian on embeddings",
        **seconds,
    }


def unmixed(attack: FeatureInversion, seen: Transcript, batch: Batch) -> dict[str, float]:
    """How well the embeddings themselves come back: mean cosine of each true one's best row; how alike they are."""
    start = time.process_time()
    rows = F.normalize(attack.source(seen, seed=0).inputs, dim=1)
    seconds = time.process_time() - start
    true = F.normalize(embeddings(seen, batch.inputs), dim=1)
    pairs = (true @ true.T)[~torch.eye(len(true), dtype=torch.bool)]
    return {
        "embedding_unmixed": float((true @ rows.T).amax(1).mean()),
        "embeddings_alike": float(pairs.mean()),
        "unmixing_s": seconds,
    }


def run(name: str, arguments: argparse.Namespace) -> None:
    model = network(name, arguments)
    for seed in range(arguments.first, arguments.first + arguments.batches):
        batch = batch_of(arguments, seed)
        seen = OneRound(record(model, batch, client=FedSGD(mode="eval")), 0)
        facts = {"data": Path(arguments.data).stem, "network": name, "n": len(batch), "seed": seed}
        before = {} if arguments.skip_unmixing else unmixed(cpa_fia(), seen, batch)
        for matching in arguments.matching:
            attack = cpa_fia(
                steps=arguments.steps, lr=arguments.lr, tv=arguments.tv, matching=matching, largest=arguments.largest,
                search=arguments.search,
            )  # fmt: skip
            second = ", second order" if arguments.search == "second_order" else ""
            row = {
                **facts,
                "method": ("CPA+FIA+GMA" if matching else "CPA+FIA") + second,
                "steps": attack.steps,
                **before,
            }
            row |= {"tv": attack.tv, "matching": matching, **measure(attack, seen, batch), "attack": repr(attack)}
            if arguments.trying:
                print({k: v for k, v in row.items() if k not in ("attack", "notes")}, flush=True)
                continue
            keep("cpa/inversion", f"{row['method']}, {name}", "cosine", row)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help=f"vgg-BLOCKS, {', '.join(PRETRAINED)}")
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", help="folder of pretrained weights")
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--first", type=int, default=3000, help="first batch seed")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--tv", type=float, default=0.1)
    parser.add_argument("--matching", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--search", choices=("adam", "second_order"), default="adam")
    parser.add_argument("--largest", type=int, help="invert so many of the batch; unless named, all")
    parser.add_argument("--skip-unmixing", action="store_true", help="do not also score the embeddings by themselves")
    parser.add_argument("--trying", action="store_true", help="print only; batches of images kept for development")
    arguments = parser.parse_args()
    for name in arguments.networks:
        run(name, arguments)


if __name__ == "__main__":
    main()
