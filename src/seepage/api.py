"""The three verbs from code: `record` an update, `attack` it, `score` the result."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seepage.attacks import Attack
from seepage.attacks.base import Progress, ignore
from seepage.clients import FedSGD
from seepage.errors import SeepageError
from seepage.functional import forward, in_mode, state_of
from seepage.recipe import make_attack
from seepage.transcript import OneRound, SimulatedTranscript, Victim, open_transcript
from seepage.types import Architecture, Batch, ClientUpdate, Defense, Knowledge, Reconstruction, Told, Transcript


def record(
    model: nn.Module,
    batch: Batch | Sequence[Batch],
    *,
    client: ClientUpdate | None = None,
    defense: Defense | None = None,
    told: Sequence[Told] = (),
    value_range: tuple[float, float] = (0.0, 1.0),
    architecture: Architecture | None = None,
    seed: int = 0,
) -> SimulatedTranscript:
    """What an honest-but-curious server sees when a client trains `model` on `batch`.

    Args:
        model: The model at its current weights. It is not changed.
        batch: One private batch, or one for each round.
        client: The client's rule; None: FedSGD in train mode.
        defense: What the client does to its update before sending it.
        told: What the attacker is told beside the protocol, e.g. `["labels"]`.
        value_range: Smallest and largest value an input can take.
        architecture: How to build the model by name; needed only to save the transcript to a folder.
        seed: Seeds the defence's noise.

    Returns:
        A transcript. It holds no way back to the batch.

    >>> from seepage import Batch, attack, record, score
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> batch = Batch(torch.rand(1, 1, 8, 8), torch.tensor([2]))
    >>> scores = score(attack(record(model, batch), "linear"), batch)
    >>> scores.exact
    1.0
    """
    batches = [batch] if isinstance(batch, Batch) else list(batch)
    if not batches or not len(batches[0]):
        raise SeepageError("record needs at least one private example; pass a Batch with inputs and labels")
    params, buffers = state_of(model)
    shape = tuple(batches[0].inputs.shape[1:])
    with torch.no_grad(), in_mode(model, training=False):
        classes = forward(model, params, batches[0].inputs[:1], buffers=buffers).shape[-1]
    knowledge = Knowledge(
        model=model,
        client=client or FedSGD(),
        input_shape=shape,
        num_classes=classes,
        value_range=value_range,
        told=frozenset(told),
        architecture=architecture,
    )
    return Victim(knowledge, params, batches.__getitem__, len(batches), buffers, defense, seed).transcript()


def attack(
    transcript: Transcript | Path | str,
    use: str | Attack,
    *,
    seed: int = 0,
    t: int = 0,
    options: Mapping[str, Any] | None = None,
    progress: Progress = ignore,
) -> Reconstruction:
    """Attack a transcript, or a recorded `observed/` folder.

    Args:
        transcript: A transcript or the path of a folder.
        use: An attack's name (see `seepage list`), or an attack such as `dlg(steps=20)`.
        seed: Seeds the attack's own randomness.
        t: The round to attack, for attacks that read one round.
        options: Options of a named attack, e.g. `{"steps": 500}`.
        progress: Is told how far the attack is.

    Raises:
        Inapplicable: Where the attack can say nothing about this transcript.
        SeepageError: For an unknown name or wrong options, or a damaged folder.
    """
    seen: Transcript = open_transcript(Path(transcript)) if isinstance(transcript, str | Path) else transcript
    chosen = make_attack(use, options or {}) if isinstance(use, str) else use
    if chosen.rounds == "one":
        seen = OneRound(seen, t)
    return chosen(seen, seed=seed, progress=progress)
