"""What the studies share: the command line, images of a file, training, scores, clocks, and how a number is kept."""

import argparse
import hashlib
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from keeping import keep_measured
from torch import Tensor, nn

import seepage.federation.data
from seepage.api import record
from seepage.attacks import Attack
from seepage.attacks.exposure import BatchNormLeak
from seepage.attacks.network.evidence import READ
from seepage.base.nn import captured_calls, forward, generator, in_mode
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Batch, Reconstruction, Tensors, Transcript
from seepage.measure.metrics import align_guess
from seepage.measure.metrics.image import correlation, is_image, psnr, ssim
from seepage.papers.records import RESULTS, read_file

Row = dict[str, Any]

HELD_BACK = 256
"""The first so many test images are for development; scored batches avoid them where the others are enough for one."""

TRAIN_SHARE = 0.68
"""Of a file that brings no test part: the share that networks are trained on."""


def command(main: Callable[..., None]) -> None:
    """Run a study as the command line says: the parameters of its function are the options.

    A parameter in front of `*` is a word in its place, one behind it an option. A tuple takes several values;
    `Annotated[X, NAMES]` takes only these, and a text there is the help.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules[main.__module__].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    hints = get_type_hints(main, include_extras=True)
    for name, parameter in inspect.signature(main).parameters.items():
        given = hints[name]
        kind, *notes = get_args(given) if get_origin(given) is Annotated else (given,)
        some = [one for one in get_args(kind) if one is not NoneType]
        how: dict[str, Any] = {"help": next((note for note in notes if isinstance(note, str)), None)}
        how["choices"] = next((tuple(note) for note in notes if not isinstance(note, str)), None)
        lacking = parameter.default is parameter.empty
        if get_origin(kind) is tuple:
            how |= {"nargs": "+" if lacking or parameter.kind is parameter.KEYWORD_ONLY else "*", "type": some[0]}
        elif kind is bool:
            how = {"action": "store_true", "help": how["help"]}
        elif get_origin(kind) is Literal:
            how |= {"choices": some}
        else:
            how |= {"type": some[0] if some else kind}
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name.replace('_', '-')}", required=lacking, **how)
        else:
            parser.add_argument(name, **how)
    main(**{name: value for name, value in vars(parser.parse_args()).items() if value is not None and value != []})


def parts(path: str, size: int | None = None) -> tuple[Batch, Batch]:
    """Train and test images of a data file; a file without a split is split after a seeded shuffle."""
    data = seepage.federation.data.load(path, size=size)
    split_by_file = torch.equal(data.train, torch.arange(len(data.train)))  # x_train and x_test, one after the other
    train, test = data.train, data.private
    if not split_by_file:
        order = torch.from_numpy(np.random.default_rng(7).permutation(len(data)))
        train, test = order.tensor_split([round(TRAIN_SHARE * len(data))])
    both = [data.batch(places) for places in (train, test)]
    return Batch(both[0].inputs, both[0].labels), Batch(both[1].inputs, both[1].labels)


def at(data: Batch, places: Tensor | slice) -> Batch:
    """The examples at these places."""
    return Batch(data.inputs[places], data.labels[places])


def draw(test: Batch, n: int, seed: int) -> Batch:
    """A batch of n images that development did not see; where the others are fewer than n, of all.

    Batches of other seeds share images with it: of 420 others two batches of 256 have 156 in common on average.
    """
    first = HELD_BACK if len(test) - HELD_BACK >= n else 0
    chosen = first + torch.randperm(len(test) - first, generator=generator(seed, "batch"))[:n]
    return at(test, chosen)


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Focal loss with gamma 2 (Lin et al., ICCV 2017, equation 4): the mean of (1 - p)^2 times the cross-entropy."""
    each = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - torch.exp(-each)) ** 2 * each).mean()


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> None:
    """Train in place: a step of the optimizer on the cross-entropy of each batch."""
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.labels).backward()
        optimizer.step()


def draws(train: Batch, steps: int, size: int, order: torch.Generator) -> Iterator[Batch]:
    """So many batches of examples drawn with replacement."""
    for _ in range(steps):
        yield at(train, torch.randint(len(train), (size,), generator=order))


def trained(model: nn.Module, train: Batch, steps: int, seed: int) -> nn.Module:
    """The model after so many steps of SGD as the default audit trains: rate 0.02, momentum 0.9, batches of 32."""
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    descend(model.train(), optimizer, draws(train, steps, 32, generator(seed, "train")))
    return model.eval()


def descend_once(key: str, model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Batch]) -> None:
    """Train in place, or read the weights where a network of this key was trained before."""
    cache = Path(tempfile.gettempdir()) / f"seepage-{hashlib.sha256(key.encode()).hexdigest()[:12]}.pt"
    if cache.exists():
        model.load_state_dict(torch.load(cache, weights_only=True))
        return
    descend(model, optimizer, batches)
    torch.save(model.state_dict(), cache)


@dataclass
class Clock:
    """Wall and processor seconds of a block."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    clock.wall += time.perf_counter() - wall
    clock.cpu += time.process_time() - cpu


def measure(found: Reconstruction, batch: Batch) -> Row:
    """Scores after Hungarian matching; sign and scale are fitted only where the method leaves them open."""
    matched = align_guess(found, batch, (0.0, 1.0))
    guesses, there = matched.guesses, matched.matched
    similar = F.cosine_similarity(guesses.flatten(1) - 0.5, batch.inputs.flatten(1) - 0.5).where(there, torch.zeros(()))
    quality = psnr(guesses, batch.inputs)
    row: Row = {
        "cosine": float(similar.mean()),
        "cosine_median": float(similar.median()),
        "psnr": float(quality.mean()),
        "correlation": float(correlation(guesses, batch.inputs).mean()),
        "exact": float(((quality > 40) & there).double().mean()),
        "alignment": matched.name,
    }
    if is_image(tuple(batch.inputs.shape[1:])):
        row["ssim"] = float(ssim(guesses, batch.inputs).mean())
    if found.certified is not None and len(found):
        # Against the nearest example, not the matched one: a matching of least total error gives a right guess
        # away where that serves two wrong ones.
        nearest = torch.stack([psnr(guess.expand_as(batch.inputs), batch.inputs).max() for guess in found.inputs])
        row["certified"] = int(found.certified.sum()) / len(batch)
        row["false_certificates"] = int((found.certified & (nearest <= 40)).sum())
        row["certified_psnr_min"] = float(nearest[found.certified].min()) if found.certified.any() else None
    return row


def attacked(attack: Attack, model: nn.Module, batch: Batch, **how: Any) -> Row:
    """Record, attack, measure."""
    return attacked_of(attack, record(model, batch, **how), batch)


def attacked_of(attack: Attack, transcript: Transcript, batch: Batch) -> Row:
    """Attack the first round of what was recorded, measure."""
    seen, clock = OneRound(transcript, 0), Clock()
    with clocked(clock):
        found = attack(seen, seed=0)
    seconds = {"wall_s": clock.wall, "cpu_s": clock.cpu}
    return {**measure(found, batch), **seconds, "attack": repr(attack), "notes": list(found.notes)}


def read_in_training(
    model: nn.Module, names: Sequence[str], inputs: Tensor, params: Tensors, buffers: Tensors
) -> dict[str, Tensor]:
    """What these layers read in a pass in train mode, which leaves the model as it was."""
    with torch.no_grad(), in_mode(model, training=True), captured_calls(model, names) as calls:
        forward(model, params, inputs, buffers=dict(buffers) or None)
    return {name: call.input.detach() for name, (call, *_) in calls.items()}


def variance_errors(leak: BatchNormLeak, read: Tensor) -> Tensor:
    """Relative errors of the variances that are said to be read off, against those of what the batch norm read."""
    said = leak.variance.isfinite() & (leak.variance > 0) & (leak.error < READ)
    own = read.double().transpose(0, 1).flatten(1).var(1, correction=0)
    return ((leak.variance - own).abs() / own)[said]


def flat_square(images: Tensor) -> Tensor:
    """Each image's mean color, everywhere: what is known without any attack."""
    return images.mean((2, 3), keepdim=True).expand_as(images).contiguous()


def kept(study: str) -> set[tuple[str, str]]:
    """Row and seed of a study's records: what is there is not made again."""
    path = RESULTS / f"{study}.jsonl"
    return {(one.row, seed) for one in read_file(path) for seed in one.seeds or [""]} if path.exists() else set()


def keep(study: str, name: str, metric: str, row: Mapping[str, Any]) -> None:
    """Keep a row of a study: its metric is the record's number; seed, data and interval have places of their own."""
    rest = dict(row)
    value, seed, data = rest.pop(metric, None), rest.pop("seed", None), rest.pop("data", "")
    keep_measured(study, name, metric, value, seed=seed, data=data, interval=rest.pop("interval", None), **rest)
