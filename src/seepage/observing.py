"""Somebody's own files, checkpoints or a gradient, as an `observed/` folder that every attack reads."""

from dataclasses import dataclass
from pathlib import Path

import torch

from seepage.api import observe
from seepage.clients import make_client
from seepage.errors import SeepageError
from seepage.models import build
from seepage.parts import Part, problems_of
from seepage.recorded import save_transcript
from seepage.storage import make_private
from seepage.types import Architecture, ClientUpdate, Tensors, Update
from seepage.weights import load_weights, read_state


@dataclass(frozen=True, kw_only=True)
class Files:
    """What was captured.

    Attributes:
        before: Weights that the server sent out.
        after: Weights that came back; or else
        gradient: The gradient that came back.
        lr: Learning rate of the one SGD step from `before` to `after`; makes a gradient of their difference.
    """

    before: Path
    after: Path | None = None
    gradient: Path | None = None
    lr: float | None = None

    def __post_init__(self) -> None:
        if (self.after is None) == (self.gradient is None):
            raise SeepageError("give either the weights that came back (AFTER) or --gradient FILE, and not both")
        if self.lr is not None and not self.lr > 0:
            raise SeepageError(f"--lr must be above 0, got {self.lr}; give the client's learning rate")

    def update(self, before: Tensors) -> Update:
        """What the client sent: `[...]` per parameter of `before`."""
        path = self.after or self.gradient
        assert path is not None
        state = read_state(path)
        missing = [name for name in before if name not in state]
        if missing:
            raise SeepageError(
                f"{path} lacks {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''} of {self.before}; "
                "give files of the same model"
            )
        own = {name: state[name].to(like) for name, like in before.items()}
        return Update(own) if self.gradient is not None else Update.from_states(before, own)


def observe_files(
    files: Files,
    folder: Path,
    *,
    architecture: Architecture,
    input_shape: tuple[int, ...],
    num_classes: int,
    client: Part,
    batch_size: int | None = None,
) -> list[str]:
    """Write an `observed/` folder from files; returns what a reader should know about them.

    Args:
        files: The files.
        folder: Where to write; must not hold a recording already.
        architecture: How to build the model.
        input_shape: Shape of one example.
        num_classes: Classes of the model.
        client: The client's rule: `fedsgd`, or `fedavg` with its `lr`, `epochs` or `steps`.
        batch_size: Examples behind the update, if known.

    Raises:
        SeepageError: For files that cannot be read or do not fit the model, and a rule that does not fit the files.
    """
    if (folder / "knowledge.json").exists():
        raise SeepageError(f"{folder} already holds a recorded update; choose another folder with --out")
    for problem in problems_of(client, "client"):
        raise SeepageError(f"{problem}; correct --set client.OPTION=VALUE")
    if not input_shape or min(input_shape) < 1 or num_classes < 1:
        raise SeepageError(f"--shape and --classes must be from 1 up, got {input_shape} and {num_classes}")
    rule = make_client(client.use, client.options)
    _check_rule(rule, client, files)
    model = build(architecture, input_shape, num_classes)
    note = load_weights(model, read_state(files.before), num_classes, str(files.before))
    if note is not None:
        raise SeepageError(f"{files.before} was not made for {num_classes} classes; give their number with --classes")
    before = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    update = files.update(before)
    if not any(bool(tensor.any()) for tensor in update.tensors.values()):
        raise SeepageError("the update is zero everywhere, so there is nothing to attack; give two different files")
    transcript = observe(
        model, update, input_shape, batch_size=batch_size, lr=files.lr, client=rule, architecture=architecture
    )
    make_private(folder)
    save_transcript(transcript, folder)
    return _remarks(update, files, batch_size)


def _check_rule(rule: ClientUpdate, client: Part, files: Files) -> None:
    if files.after is not None and files.lr is None and client.use == "fedsgd":
        raise SeepageError(
            "a difference of weights is a gradient only when the learning rate is known; give --lr for one SGD step, "
            "or --client fedavg with --set client.lr=… and client.epochs or client.steps for more"
        )
    if files.lr is not None and client.use != "fedsgd":
        raise SeepageError("--lr is for one SGD step; give a local training's rate with --set client.lr=…")
    if files.gradient is not None and (files.lr is not None or client.use != "fedsgd"):
        raise SeepageError("a gradient needs neither --lr nor another rule than fedsgd; leave them out")


def _remarks(update: Update, files: Files, batch_size: int | None) -> list[str]:
    size = float(torch.stack([tensor.double().norm() for tensor in update.tensors.values()]).norm())
    words = [f"{len(update.tensors)} tensors, norm {size:.3g}"]
    if batch_size is None:
        words.append("batch size unknown: give it to seepage attack with --batch-size, where you know it")
    if files.after is not None and files.lr is not None:
        words.append(f"read as one SGD step at learning rate {files.lr:g}")
    return words


def parse_shape(text: str) -> tuple[int, ...]:
    """`3,32,32` as a shape.

    >>> parse_shape("3,32,32"), parse_shape("3x32x32")
    ((3, 32, 32), (3, 32, 32))
    """
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError as error:
        raise SeepageError(f"--shape takes whole numbers such as 3,32,32, got {text!r}") from error
