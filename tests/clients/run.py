"""One client through `seepage attack`: its two files, what is known, and the cheap attacks of an audit."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from tests.clients.made import Client
from torch import Tensor

from seepage.attacks.exposure import Exposure, exposure
from seepage.audit.capture import Capture
from seepage.audit.captured import attack_captured
from seepage.audit.recorded import AttackRequest
from seepage.audit.row import Result
from seepage.base.registry import Spec
from seepage.federation.transcript.recorded import open_transcript
from seepage.federation.types import Architecture, Transcript

CHEAP = ("linear", "cocktail_party", "patch_embedding")


@dataclass(frozen=True)
class Reading:
    """What was said of one client, and the truth.

    Attributes:
        result: Of the run.
        folder: The run folder.
        inputs: The client's own examples.
        labels: And their labels.
    """

    result: Result
    folder: Path
    inputs: Tensor
    labels: Tensor

    @cached_property
    def transcript(self) -> Transcript:
        return open_transcript(self.folder / "observed", trust=True)

    @cached_property
    def exposure(self) -> Exposure:
        return exposure(self.transcript)


def capture_of(client: Client, home: Path) -> Capture:
    """The two files that `read` wrote, and what is known of them."""
    known = {"client": Spec("fedsgd"), **client.known}
    lr = known.pop("lr", None)
    return Capture(
        before=home / "before.pt",
        after=home / "after.pt",
        lr=lr,
        architecture=Architecture(f"upstream_networks:{client.network}"),
        input_shape=client.shape,
        num_classes=client.classes,
        **known,
    )


def read(client: Client, home: Path, attacks: tuple[str, ...] = CHEAP) -> Reading:
    before, after, inputs, labels = client.make()
    torch.save(before, home / "before.pt")
    torch.save(after, home / "after.pt")
    capture = capture_of(client, home)
    request = AttackRequest(attacks=[{"use": name} for name in attacks], out=home / "run", jobs=1)
    run = attack_captured(capture, request)
    return Reading(run.result, run.folder, inputs, labels)
