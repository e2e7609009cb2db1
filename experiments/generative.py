r"""GGL, GIAS and ROGS at a small size, beside Inverting Gradients, which has no images of its own.

python experiments/generative.py batches --data ../shared/data/cifar10.npz
python experiments/generative.py rogs --data ../shared/data/cifar10.npz --seeds 0 1 2
python experiments/generative.py weights models local defenses --data ../shared/data/lc25000_lung_224.zip
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from common import flat_square, keep, measure

import seepage.federation.data
from seepage.api import attack, record
from seepage.attacks import Attack, ggl, gias, inverting_gradients, rogs
from seepage.audit.recipe.auxiliary import Auxiliary, auxiliary_images
from seepage.audit.recipe.plans import Training
from seepage.audit.simulate.training import train
from seepage.base.nn import generator, state_of
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.data.dataset import Dataset
from seepage.federation.defenses import GaussianNoise, Sparsify
from seepage.federation.models import build
from seepage.federation.types import Architecture, Batch, ClientUpdate, Defense, Reconstruction
from seepage.measure.metrics.image import psnr

CONVNET = Architecture("convnet", {"width": 16})
KEPT = "runs/generators"
TRAINED: dict[str, Any] = {"latent": 32, "width": 8, "training": 400, "keep": KEPT}
ENHANCER: dict[str, Any] = {"width": 8, "training": 200, "keep": KEPT}
METHODS: dict[str, Attack] = {
    "rogs": rogs(steps=300, **ENHANCER),
    "rogs plain": rogs(steps=300, enhance=False),
    "rogs, denoiser off": rogs(steps=300, denoiser="off", **ENHANCER),
    "rogs, bicubic": rogs(steps=300, upsampler="bicubic", **ENHANCER),
    "ggl": ggl(steps=60, population=20, **TRAINED),
    "ggl reach 3": ggl(steps=60, population=20, reach=3.0, **TRAINED),
    "ggl adam": ggl(search="adam", steps=300, reach=3.0, **TRAINED),
    "gias": gias(steps=400, latent_steps=150, **TRAINED),
    "inverting_gradients": inverting_gradients(steps=400),
}
LOCAL = {steps: FedAvg(lr=0.01, steps=steps, batch_size=2) for steps in (1, 2, 4)}
MODELS = [CONVNET, Architecture("lenet"), Architecture("resnet", {"depth": 10, "width": 16}), Architecture("vertical")]
DEFENSES: dict[str, Defense] = {
    "sparsify 0.05": Sparsify(keep=0.05),
    "noise 0.01": GaussianNoise(sigma=0.01),
}
Setting = tuple[int, Architecture, int, ClientUpdate, Defense | None, list[str], dict[str, Any]]


def settings(table: str) -> Iterator[Setting]:
    """Batch size, network, steps of training, client, defense, methods, and what to call it."""
    some = ["rogs", "ggl adam", "gias", "inverting_gradients"]
    if table == "batches":
        for n in (1, 4):
            yield n, CONVNET, 0, FedSGD(), None, [name for name in METHODS if not name.startswith("rogs,")], {}
    elif table == "rogs":
        for n in (1, 4):
            yield n, CONVNET, 0, FedSGD(), None, [name for name in METHODS if name.startswith("rogs")], {}
    elif table == "weights":
        yield 4, CONVNET, 300, FedSGD(), None, some, {}
    elif table == "models":
        for model in MODELS[1:]:
            yield 4, model, 0, FedSGD(), None, some, {}
    elif table == "local":
        for steps, client in LOCAL.items():
            yield 4, CONVNET, 0, client, None, ["rogs", "gias", "inverting_gradients"], {"local_steps": steps}
    else:
        for name, known in itertools.product(DEFENSES, (False, True)):
            facts = {"defense": name, "known": known}
            yield 1, CONVNET, 0, FedSGD(), DEFENSES[name], ["ggl reach 3", "ggl adam", "inverting_gradients"], facts


def nearest(found: Reconstruction, batch: Batch) -> float:
    """Mean over images of the best guess's PSNR, where one guess may count for several: FedLeak's protocol."""
    guesses = found.inputs.clamp(0, 1)
    return float(torch.stack([psnr(guesses, one.expand_as(guesses)).max() for one in batch.inputs]).mean())


def rows(table: str, dataset: Dataset, seed: int) -> None:
    for n, model, steps, client, defense, methods, facts in settings(table):
        chosen = dataset.private[torch.randperm(len(dataset.private), generator=generator(seed, "victims"))[:n]]
        batch = dataset.batch(chosen)
        network = build(model, dataset.input_shape, len(dataset.classes), seed=seed)
        plan = Training(steps=steps)
        state = train(network, state_of(network), dataset.batch, dataset.train, plan, seed=seed)
        network.load_state_dict(state[0] | state[1])
        known = bool(facts.get("known"))
        seen = record(network, batch, client=client, defense=defense, seed=seed, known=["defense"] if known else ())
        images = auxiliary_images(Auxiliary(), dataset, [batch.inputs], seed)
        own = replace(seen.knowledge, auxiliary=images, known=seen.knowledge.known | {"auxiliary"})
        flat = flat_square(batch.inputs)
        typical = images.mean(0).expand_as(batch.inputs).contiguous()
        for method in methods:
            clock = time.process_time()
            found = attack(replace(seen, knowledge=own), METHODS[method], seed=seed)
            row = {
                "table": table,
                "data": dataset.name,
                "auxiliary": len(images),
                "n": n,
                "model": str(model.use),
                "training": steps,
                **facts,
                "seed": seed,
                "method": method,
                **measure(found, batch),
                "psnr_nearest": nearest(found, batch),
                "mean_color": float(psnr(flat, batch.inputs).mean()),
                "mean_auxiliary": float(psnr(typical, batch.inputs).mean()),
                "status": found.status,
                "cpu_s": time.process_time() - clock,
            }
            row |= {"attack": repr(METHODS[method]), "notes": list(found.notes)}
            keep("generative/small", f"{method}, {table}", "psnr", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=["batches", "rogs", "weights", "models", "local", "defenses"])
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    for path in arguments.data:
        dataset = seepage.federation.data.load(path, size=arguments.size)
        for table in arguments.tables:
            for seed in arguments.seeds:
                rows(table, dataset, seed)


if __name__ == "__main__":
    main()
