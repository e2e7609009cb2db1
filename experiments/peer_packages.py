"""Attacks of the package `breaching` as attacks of seepage, through its own interface and with its own constants.

    seepage audit compare/standard --attack peer_packages:BreachingModern
    seepage audit compare/standard --attack peer_packages:BreachingInvertingGradients

in this folder, where `breaching` (0.1.2) is installed. Only the number of steps is set: 300, as of the matching attacks
in that recipe. Labels are known, and the mode in which the client takes its gradient.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

from torch import Tensor, nn

from seepage import Attack, Reconstruction, Transcript
from seepage.attacks.base import Needs, Progress
from seepage.base.nn import frozen_randomness
from seepage.federation.models import Normalize


def breaching_guess(
    body: nn.Module,
    gradients: Sequence[Tensor],
    labels: Tensor,
    shape: Sequence[int],
    *,
    preset: str,
    evaluations: int,
    train: bool,
    mean: float,
    std: float,
    seed: int = 0,
) -> Tensor:
    """Guesses `[n, channels, height, width]`, as the images were before `(x - mean) / std`.

    Args:
        body: The network behind its normalization, with its weights.
        gradients: Of its parameters, in their order.
        labels: `[n]`.
        shape: Of one image.
        preset: `invertinggradients` or `modern`.
        evaluations: Steps.
        train: Whether the gradients were taken with batch norm in train mode.
        mean: Of the normalization.
        std: Of the normalization.
        seed: Of the first guess.
    """
    import breaching as package

    steps = [f"optim.max_iterations={evaluations}", f"optim.callback={evaluations}"]
    settings = package.get_attack_config(preset, overrides=steps)
    attacker = package.attacks.prepare_attack(body, nn.CrossEntropyLoss(), settings)
    known = SimpleNamespace(shape=tuple(shape), mean=[mean] * shape[0], std=[std] * shape[0], modality="vision")
    # Without buffers it takes the batch's own statistics: train mode.
    buffers = None if train else list(body.buffers())
    payload = {"parameters": list(body.parameters()), "buffers": buffers, "metadata": known}
    facts = {"num_data_points": len(labels), "labels": labels.clone(), "local_hyperparams": None}
    update = {"gradients": list(gradients), "buffers": None, "metadata": facts}
    with frozen_randomness(seed):
        found, _ = attacker.reconstruct([payload], [update], {})
    guesses: Tensor = found["data"]
    return guesses * std + mean


@dataclass(frozen=True, kw_only=True)
class _Breaching(Attack):
    """A preset of `breaching` on one gradient.

    Args:
        steps: Evaluations of the gradient.
    """

    needs: ClassVar[Needs] = Needs(text="one gradient of a classifier of images, and its labels")
    preset: ClassVar[str]

    steps: int = 300

    def run(self, transcript: Transcript, *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, observed = transcript.knowledge, transcript[0]
        model = deepcopy(knowledge.model)
        model.load_state_dict({**observed.params, **observed.buffers})
        body, mean, std = _without_normalization(model)
        gradient = observed.gradient(knowledge.client)
        assert observed.labels is not None
        guesses = breaching_guess(
            body,
            [gradient[name] for name, _ in model.named_parameters()],
            observed.labels,
            knowledge.input_shape,
            preset=self.preset,
            evaluations=self.steps,
            train=knowledge.client.mode == "train",
            mean=mean,
            std=std,
            seed=seed,
        )
        return Reconstruction(inputs=guesses.detach().clamp(*knowledge.value_range), labels=observed.labels)


@dataclass(frozen=True, kw_only=True)
class BreachingInvertingGradients(_Breaching):
    """`invertinggradients` of breaching."""

    preset: ClassVar[str] = "invertinggradients"


@dataclass(frozen=True, kw_only=True)
class BreachingModern(_Breaching):
    """`modern` of breaching."""

    preset: ClassVar[str] = "modern"


def _without_normalization(model: nn.Module) -> tuple[nn.Module, float, float]:
    """The network behind a first layer that normalizes, and that layer's mean and deviation."""
    first = next((layer for layer in model.modules() if isinstance(layer, Normalize)), None)
    if first is None:
        return model, 0.0, 1.0
    mean, std = first.mean, first.std
    for parent in model.modules():
        for name, layer in parent.named_children():
            if layer is first:
                setattr(parent, name, nn.Identity())
    return model, mean, std
