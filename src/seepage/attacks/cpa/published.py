"""The Cocktail Party Attack as published: one long search, which can be stopped and taken up again."""

from dataclasses import dataclass

import torch

from seepage.attacks.base import Checkpoint, Progress
from seepage.attacks.cpa.ica import EMBEDDINGS, IMAGES, Objective, Unmixing
from seepage.attacks.mixing_layer import MixingLayer, stretch
from seepage.core.checkpoint import history_in, pack, run_steps, unpack
from seepage.types import Ambiguity, Knowledge, Reconstruction, Round, Status, Tensors


@dataclass(frozen=True, kw_only=True)
class PublishedParty:
    """The published search on one layer's gradient (Kariyappa et al., ICML 2023, eq. 7 to 10).

    Args:
        objective: Weights; None: the authors' for images or for embeddings.
        steps: Adam steps.
        lr: Learning rate.
    """

    objective: Objective | None = None
    steps: int = 25_000
    lr: float = 1e-3

    def __call__(
        self, layer: MixingLayer, gradient: Tensors, observed: Round, knowledge: Knowledge, progress: Progress
    ) -> Reconstruction:
        """Search, from the checkpoint that `progress` holds if there is one; Ctrl-C ends it with what there is.

        Args:
            layer: The attacked layer.
            gradient: The update as a gradient; only the layer's weight is read.
            observed: The round; only its batch size is read, which must be known.
            knowledge: Shape and range of the inputs.
            progress: Is shown the objective a hundred times, and keeps a checkpoint each time.
        """
        assert observed.batch_size is not None
        images = layer.reads_input is not None
        search = Unmixing(
            gradient[layer.weight],
            observed.batch_size,
            self.objective or (IMAGES if images else EMBEDDINGS),
            shape=knowledge.input_shape if images and len(knowledge.input_shape) == 3 else None,
            lr=self.lr,
        )
        status, history = self._run(search, progress)
        features = search.sources()
        features = features.abs() if layer.sparse else features
        inputs = stretch(features, knowledge) if images else features
        done = history[-1][0] if history else 0
        return Reconstruction(
            inputs=inputs.to(gradient[layer.weight]),
            space="input" if images else "feature",
            ambiguity=frozenset[Ambiguity]({"order", "sign", "scale"}),
            status=status,
            history=tuple(history),
            cost={"steps": done, "evaluations": done},
            notes=("scale and sign are open in the published method: each image is stretched to the value range",),
        )

    def _run(self, search: Unmixing, progress: Progress) -> tuple[Status, list[tuple[int, float]]]:
        first, history = _resumed(search, progress.load())

        def record(step: int, value: float) -> None:
            history.append((step, value))
            progress.report(step, self.steps, value)
            progress.save(_checkpoint(search, step, history))

        _, interrupted = run_steps(first, self.steps, lambda step: search.step(), record)
        return "interrupted" if interrupted else "exhausted", history


def _checkpoint(search: Unmixing, step: int, history: list[tuple[int, float]]) -> Checkpoint:
    tensors: Tensors = {"rows": search.rows.detach().clone()}
    packed = pack(search.optimizer.state_dict(), "optimizer", tensors)
    return Checkpoint(tensors, {"step": step, "optimizer": packed, "history": list(history)})


def _resumed(search: Unmixing, kept: Checkpoint | None) -> tuple[int, list[tuple[int, float]]]:
    if kept is None:
        return 0, []
    with torch.no_grad():
        search.rows.copy_(kept.tensors["rows"])
    search.optimizer.load_state_dict(unpack(kept.facts["optimizer"], kept.tensors))
    return int(kept.facts["step"]), history_in(kept.facts)
