"""A federation of clients with images of 8 x 8 pixels, that the tests of each framework share."""

import pytest
import torch

from seepage import Architecture, Batch

SHAPE, CLASSES, LR = (1, 8, 8), 4, 0.1
NET = Architecture("fc2", {"hidden": 16})


def batch_of(client: int, n: int = 1) -> Batch:
    """Random examples of a client."""
    draw = torch.Generator().manual_seed(client)
    return Batch(torch.rand(n, *SHAPE, generator=draw), torch.randint(CLASSES, (n,), generator=draw))


def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's engine tells messages who sends them; here nobody does."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
