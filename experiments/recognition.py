"""From where on an image, a record, a text counts as recovered: the limits of `seepage.base.limits`, calibrated.

    python experiments/recognition.py images [--data ../shared/data]
    python experiments/recognition.py others
    python experiments/recognition.py rebuilt [--data ../shared/data]

`images`: each data set is shuffled and cut in halves. On up to 1,000 images of the first halves the limit of
`likeness` is chosen from a grid: less than 1 % of other images of the class may pass in any set, and of those limits
the one that agrees best with identification, which is whether the true image is the one of 100 that correlates best,
in size, with a copy that is noised, pruned, quantized, blurred, washed out or turned into its negative. Up to 300 of
the second halves are reported. Sets whose class is a person choose by other persons. `others`: of records and texts,
where another example stands for a guess; the limit of records is chosen and reported in the same way. `rebuilt`: what
attacks made of updates behind defenses, on images that chose nothing. One row per set of results/recognition/.
"""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from common import Row, command, keep
from torch import Tensor

from seepage import Architecture, attack, build, record
from seepage.base.limits import GAIN_DB, LIKENESS, ROUGE_2
from seepage.base.nn import generator
from seepage.federation.data import load
from seepage.federation.defenses import DEFENSES
from seepage.measure.metrics import align_guess, likeness, psnr
from seepage.measure.metrics.baselines import baselines, floor_of
from seepage.measure.metrics.text import rouge, tokens_of

STUDY = "recognition/images"
CHOOSING, REPORTED = 1000, 300
AMONG = 100
ALLOWED = 0.01
"""The share of others that may pass is below this."""
GRID = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
GAINS = (3.0, 6.0, 9.0, 12.0)
FILES = {
    "cifar10": ("cifar10.npz", None), "cifar100": ("cifar100.npz", None), "mnist": ("mnist.npz", None),
    "svhn": ("svhn_unlabelled.npz", None), "tiny_imagenet": ("tiny_imagenet_64.npz", None),
    "imagenet": ("imagenet_sample_224.zip", 32), "ham10000": ("ham10000.zip", 64), "lung": ("lc25000_lung_224.zip", 64),
    "faces_orl": ("faces_orl_32.npz", None), "faces_yale": ("faces_yale_32.npz", None),
    "faces_yaleb": ("faces_yaleb_32.npz", None),
}  # fmt: skip
PERSONS = ("faces_orl", "faces_yale", "faces_yaleb")
Images = tuple[Tensor, Tensor]
Copy = Callable[[Tensor, torch.Generator], Tensor]


def halves(use: str, size: int | None) -> list[Images]:
    """Images `[n, C, H, W]` and classes `[n]` of the half that chooses and of the half that is reported."""
    data = load(use, size=size)
    order = torch.randperm(len(data), generator=generator(0, "recognition"))
    middle = min(CHOOSING, len(order) // 2)
    batches = data.batch(order[:middle]), data.batch(order[middle : middle + REPORTED])
    return [(batch.inputs.float(), batch.labels) for batch in batches]


def noised(images: Tensor, chance: torch.Generator, sigma: float) -> Tensor:
    return images + sigma * torch.randn(images.shape, generator=chance)


def blurred(images: Tensor, _: torch.Generator, share: float) -> Tensor:
    """By a Gaussian of this share of the shorter side."""
    sigma, channels = share * min(images.shape[2:]), images.shape[1]
    reach = max(1, round(3 * sigma))
    weights = (-(torch.arange(-reach, reach + 1) / sigma).square() / 2).exp()
    weights = (weights / weights.sum()).expand(channels, 1, 1, -1)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, weights, groups=channels), weights.transpose(2, 3), groups=channels)


def pruned(images: Tensor, _: torch.Generator, share: float) -> Tensor:
    """The largest values of each image, the others zero, as in a row of a gradient of which the largest were sent."""
    flat = images.flatten(1)
    least = flat.topk(max(1, round(share * flat.shape[1])), dim=1).values[:, -1:]
    return torch.where(flat >= least, flat, 0.0).reshape(images.shape)


def quantized(images: Tensor, _: torch.Generator, bits: int) -> Tensor:
    steps = 2**bits - 1
    return (images * steps).round() / steps


COPIES: dict[str, Copy] = {
    **{f"noise {sigma:g}": partial(noised, sigma=sigma) for sigma in (0.05, 0.1, 0.2, 0.3)},
    **{f"largest {share:.0%} of values": partial(pruned, share=share) for share in (0.5, 0.2)},
    **{f"{bits} bit{'s' * (bits > 1)}": partial(quantized, bits=bits) for bits in (1, 2)},
    **{f"blur, 1/{part} of the side": partial(blurred, share=1 / part) for part in (32, 16)},
    "negative": lambda images, _: 1 - images,
    "negative, noise 0.1": lambda images, chance: noised(1 - images, chance, 0.1),
    "a tenth of the contrast, noise 0.02": lambda images, chance: noised(0.4 + 0.1 * images, chance, 0.02),
}


def measured(guesses: Tensor, images: Tensor) -> Tensor:
    """`[n]` likeness of guesses, clamped as in a score."""
    return likeness(guesses.clamp(0, 1), images)


def correlations(guesses: Tensor, images: Tensor) -> Tensor:
    """`[k, n]` size of the correlation of every guess with every image, beside the mean of each channel."""
    g, x = (F.normalize((t - t.mean((2, 3), keepdim=True)).double().flatten(1), dim=1) for t in (guesses, images))
    found: Tensor = (g @ x.T).abs()
    return found


def identified(guesses: Tensor, images: Tensor, chance: torch.Generator) -> Tensor:
    """`[n]` bool: whether the own image correlates best with the guess of 100 drawn images, or of all where fewer."""
    found = correlations(guesses, images)
    others = torch.rand(found.shape, generator=chance).fill_diagonal_(2).argsort(1)[:, : min(AMONG, len(found)) - 1]
    return (found.diagonal()[:, None] > found.gather(1, others)).all(1)


def strangers(classes: Tensor, chance: torch.Generator, same: bool, each: int) -> tuple[Tensor, Tensor]:
    """So many pairs per example `(example, other)`, of one class or of two."""
    fitting = (classes[:, None] == classes) == same
    order = torch.rand(fitting.shape, generator=chance).masked_fill(~fitting, 2).fill_diagonal_(2)
    places = order.argsort(1)[:, :each]
    rows, columns = (order.gather(1, places) < 2).nonzero(as_tuple=True)
    return rows, places[rows, columns]


def probe(images: Tensor, classes: Tensor, chance: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """What is measured of one half: name of a kind to `([n] likeness, [n] identified)`; of others none is."""
    found = {}
    for name, same, each in (("same class", True, 10), ("other class", False, 5)):
        mine, other = strangers(classes, chance, same, each)
        none = torch.zeros(len(mine), dtype=torch.bool)
        found[name] = measured(images[other], images[mine]), none
    for name, copy in COPIES.items():
        guesses = copy(images, chance).clamp(0, 1)
        found[name] = measured(guesses, images), identified(guesses, images, chance)
    return found


def agreement(found: dict[str, tuple[Tensor, Tensor]], limit: float) -> Tensor:
    return torch.cat([(found[name][0] >= limit) == found[name][1] for name in COPIES])


def images_study(folder: Path) -> None:
    sets: dict[str, tuple[str, int | None]] = {name: (name, None) for name in ("digits", "faces", "photos", "album")}
    sets |= {name: (str(folder / file), size) for name, (file, size) in FILES.items() if (folder / file).exists()}
    drawn = {name: halves(*how) for name, how in sets.items()}
    chance = generator(0, "copies")
    first = {name: probe(*parts[0], chance) for name, parts in drawn.items()}
    others = {name: found["other class" if name in PERSONS else "same class"][0] for name, found in first.items()}
    passing, fitting = {}, {}
    for limit in GRID:
        shares = {name: float((values >= limit).double().mean().nan_to_num()) for name, values in others.items()}
        passing[str(limit)] = {name: round(share, 4) for name, share in shares.items() if share}
        if max(shares.values()) < ALLOWED:
            agreed = [float(agreement(found, limit).double().mean()) for found in first.values()]
            fitting[limit] = sum(agreed) / len(agreed)
    chosen = max(fitting, key=lambda limit: fitting[limit])
    row = {
        "likeness": chosen,
        "allowed": ALLOWED,
        "agreement": {str(limit): round(a, 4) for limit, a in fitting.items()},
        "passing": passing,
        "images": {name: len(parts[0][0]) for name, parts in drawn.items()},
    }
    keep(STUDY, "the limit chosen on the first halves", "likeness", {**row})
    for name, parts in drawn.items():
        keep(STUDY, name, "agreement", {"data": name, **images_row(*parts[1], chosen, chance)})


def images_row(images: Tensor, classes: Tensor, limit: float, chance: torch.Generator) -> Row:
    found = probe(images, classes, chance)
    rates = {name: (values >= limit).double() for name, (values, _) in found.items()}
    others = {name: rates[f"{name} class"] for name in ("same", "other")}
    return {
        "agreement": float(agreement(found, limit).double().mean()),
        "limit": limit,
        **{f"{name}_class": float(rate.mean()) if len(rate) else None for name, rate in others.items()},
        **{f"{name}_pairs": len(rate) for name, rate in others.items()},
        "same_by_limit": {
            str(one): round(float((found["same class"][0] >= one).double().mean().nan_to_num()), 4) for one in GRID
        },
        "images": len(images),
        "shape": list(images.shape[1:]),
        "recognized": {name: round(float(rates[name].mean()), 4) for name in COPIES},
        "identified": {name: round(float(found[name][1].double().mean()), 4) for name in COPIES},
    }


def gains(half: Tensor, classes: Tensor, typical: Tensor, same: bool) -> Tensor:
    """`[pairs]` gain in dB of other records over the guesses that need no update."""
    mine, other = strangers(classes, generator(0, "records"), same, 40)
    flat = baselines(half[mine], seed=0, typical=typical)
    return psnr(half[other], half[mine]) - floor_of({key: {"psnr": psnr(g, half[mine])} for key, g in flat.items()})


def others_study() -> None:
    """Of records and texts: the share of other examples that would pass, of the class and of another."""
    for name in ("breast_cancer", "wine", "iris"):
        data = load(name)
        public, private = (data.batch(places) for places in (data.train, data.private))
        low, high = public.inputs.amin(0), public.inputs.amax(0)
        x, typical = (((t - low) / (high - low)).clamp(0, 1) for t in (private.inputs, public.inputs.mean(0)))
        parts = [x[::2], x[1::2]], [private.labels[::2], private.labels[1::2]]
        first, second = (gains(half, classes, typical, True) for half, classes in zip(*parts, strict=True))
        least = next((db for db in GAINS if float((first >= db).double().mean()) < ALLOWED), None)
        row = {
            "same_class": float((second >= GAIN_DB).double().mean()),
            "other_class": float((gains(parts[0][1], parts[1][1], typical, False) >= GAIN_DB).double().mean()),
            "by_limit": {str(db): round(float((second >= db).double().mean()), 4) for db in GAINS},
            "least_on_first_half": least,
            "limit": GAIN_DB,
            "records": len(x),
            "columns": x.shape[1],
        }
        keep("recognition/others", name, "same_class", {"data": name, **row})
    data = load("python_reference")
    texts = [tokens_of(row) for row in data.batch(data.private).inputs]
    pairs = [(a, b) for a, b in itertools.combinations(range(len(texts)), 2) if texts[a] != texts[b]]
    alike = sum(rouge(texts[a], texts[b], 2) >= ROUGE_2 for a, b in pairs) / len(pairs)
    row = {"same_class": alike, "limit": ROUGE_2, "texts": len(texts), "pairs": len(pairs)}
    keep("recognition/others", "python_reference", "same_class", {"data": "python_reference", **row})


REBUILT: tuple[tuple[str, int, int], ...] = (("digits", 28, 4), ("digits", 14, 4), ("faces", 25, 2), ("cifar10", 32, 2))
BEHIND: dict[str, dict[str, Any]] = {
    "sparsify keep 0.1": {"use": "sparsify", "keep": 0.1},
    "sparsify keep 0.01": {"use": "sparsify", "keep": 0.01},
    "quantize to 1 bit": {"use": "quantize", "bits": 1},
    "gaussian_noise 0.001": {"use": "gaussian_noise", "sigma": 0.001, "clip": 1.0},
    "gaussian_noise 0.01": {"use": "gaussian_noise", "sigma": 0.01, "clip": 1.0},
    "gaussian_noise 1": {"use": "gaussian_noise", "sigma": 1.0, "clip": 1.0},
}  # fmt: skip


def rebuilt_study(folder: Path, batches: int = 12) -> None:
    """Gradient matching behind defenses: how many are recognized, how many identified among 100, where both agree."""
    for (name, size, n), (words, options) in itertools.product(REBUILT, BEHIND.items()):
        data = load(str(folder / FILES[name][0]) if name in FILES else name, size=size)
        order = torch.randperm(len(data), generator=generator(0, "recognition"))
        mine, others = order[-batches * n :], order[: AMONG - 1]
        gallery, shape = data.batch(others).inputs, data.input_shape
        model = build(Architecture("fc2"), shape, len(data.classes), seed=0)
        defense = DEFENSES[options["use"]](**{key: value for key, value in options.items() if key != "use"})
        alike, known = [], []
        for i, part in enumerate(mine.split(n)):
            batch = data.batch(part)
            seen = record(model, batch, defense=defense, known=["labels"], seed=i)
            guesses = align_guess(attack(seen, "gradient_matching", seed=i), batch, (0.0, 1.0)).guesses.clamp(0, 1)
            alike.append(likeness(guesses, batch.inputs))
            own, all_others = correlations(guesses, batch.inputs).diagonal(), correlations(guesses, gallery)
            known.append(own > all_others.max(1).values)
        shown, known = torch.cat(alike) >= LIKENESS, torch.cat(known)
        row: Row = {"agreement": float((shown == known).double().mean()), "recognized": float(shown.double().mean())}
        row |= {
            "identified": float(known.double().mean()),
            "images": len(known),
            "batch": n,
            "size": size,
            "model": "fc2",
        }
        keep("recognition/rebuilt", f"{name} {size} px, {words}", "agreement", {"data": name, "model": "fc2", **row})


def main(what: Literal["images", "others", "rebuilt"], *, data: Path = Path("../shared/data")) -> None:
    if what == "others":
        others_study()
    else:
        (images_study if what == "images" else rebuilt_study)(data)


if __name__ == "__main__":
    command(main)
