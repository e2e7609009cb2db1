"""Gradients of single examples at the weights that were sent, on a subset of the parameters' entries."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.membership.noise import example_clip
from seepage.base.nn import captured_calls, forward, generator, in_mode, norm
from seepage.errors import refuse, short
from seepage.federation.types import Batch, Knowledge, Round, Tensors

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
AT_ONCE = 32
"""Examples whose gradients are held at a time, and of a public batch, at the least, whose statistics stand in for the
client's: memory for more is dear."""
FEWEST_BATCHES = 4
"""Public batches of the client's size from which on it is measured what batch norm adds to an update."""


@dataclass(frozen=True)
class ExampleGradients:
    """The gradient of one example's loss, for many examples, at the weights of one round.

    The update's mean runs over examples that batch norm in train mode couples. Each is taken here by itself, with the
    statistics of public batches in place of the client's own: an approximation, whose error adds to the noise that a
    test has to stand anyway (`coupling`).

    Attributes:
        knowledge: What the attacker knows.
        observed: The round.
        buffers: The model's buffers, with public statistics where batch norm is in train mode.
        chosen: Name of each tensor that was sent to the places `[e]` of the entries that are used.
        clip: Each example's whole gradient is scaled down to this norm, as the client is known to do.
    """

    knowledge: Knowledge
    observed: Round
    buffers: Tensors
    chosen: dict[str, Tensor]
    clip: float = math.inf

    @classmethod
    def at(
        cls, knowledge: Knowledge, observed: Round, reference: Batch, *, entries: int, seed: int
    ) -> "ExampleGradients":
        """Gradients at the round's weights.

        Args:
            knowledge: What the attacker knows.
            observed: The round.
            reference: Public examples, for the statistics of batch norm.
            entries: Largest number of entries of a tensor that are used, drawn at random.
            seed: Draws them.

        Raises:
            Inapplicable: Where some weights are the client's own: the network cannot be run.
        """
        if observed.personal:
            raise refuse("own_weights")(
                f"the weights of {len(observed.personal)} parameters, such as {short(min(observed.personal))}, are the "
                "client's own and were never seen, so no candidate's gradient can be computed",
                "use layer_span for layers in front of these, or a round whose weights are all known",
            )
        draw = generator(seed, "entries of gradients")
        chosen = {}
        for name, tensor in observed.update.tensors.items():
            size = tensor.numel()
            places = torch.randperm(size, generator=draw)[:entries] if size > entries else torch.arange(size)
            chosen[name] = places.sort().values.to(tensor.device)
        statistics = public_statistics(knowledge, observed, reference)
        return cls(knowledge, observed, statistics, chosen, example_clip(knowledge, observed))

    @property
    def weights(self) -> Tensor:
        """`[d]` how many entries of its tensor each chosen entry stands for."""
        sent = self.observed.update.tensors
        shares = [torch.full((len(places),), sent[n].numel() / len(places)) for n, places in self.chosen.items()]
        return torch.cat(shares).to(next(iter(sent.values())).device)

    def entries_of(self, observed: Round) -> Tensor:
        """`[d]` the chosen entries of an update at these weights, read as a gradient of the mean loss."""
        return self._entries(observed.gradient(self.knowledge.client))

    def lost_of(self, observed: Round) -> Tensor | None:
        """`[d]` bool the chosen entries of which an optimizer's step left a sign and a least size; None: of none."""
        if observed.update.step is None or not observed.update.step.bent:
            return None
        lost = ~self._entries(observed.measured(self.knowledge.client, list(self.chosen)).error).isfinite()
        return lost if bool(lost.any()) else None

    def of(self, examples: Batch, done: Callable[[], None] = lambda: None) -> Tensor:
        """`[k, d]` the chosen entries of each example's own gradient.

        One backward pass for each example: a batched pass over single examples takes as long on a CPU, and fails on
        layers that cannot be batched.

        Args:
            examples: `k` examples with labels.
            done: Called after each example.
        """
        model, client = self.knowledge.model, self.knowledge.client
        params = {name: tensor.detach().requires_grad_() for name, tensor in self.observed.params.items()}
        wanted = [params[name] for name in self.chosen]
        rows = []
        with in_mode(model, training=False), torch.enable_grad():
            for x, y in zip(examples.inputs.split(1), examples.labels.split(1), strict=True):
                logits = forward(model, params, x.to(wanted[0].device), buffers=self.buffers)
                loss = client.loss_of(logits, y.to(logits.device))
                found = torch.autograd.grad(loss, wanted, allow_unused=True)
                named = zip(self.chosen, wanted, found, strict=True)
                gradient = {n: torch.zeros_like(p) if g is None else g for n, p, g in named}
                rows.append(self._entries(gradient) * self._shrink(gradient))
                done()
        return torch.stack(rows)

    def coupling(self, reference: Batch, rows: Tensor) -> tuple[Tensor, Tensor] | None:
        """What batch norm in train mode adds to an update, by updates of public batches of the client's size.

        In layers that see a handful of values per channel it is many times the variance of an example's own gradient.

        Args:
            reference: `k` public examples.
            rows: `[k, d]` their own gradients.

        Returns:
            `[d]` the mean update of public batches, and `[d]` the variance of its difference from the mean of its
            examples' own gradients, in units of one example's gradient: n times that of an update of n examples, one
            number for each tensor. None where no batch norm couples examples, where the client sends more than one
            gradient or clips each example's, and for fewer than four batches.
        """
        model, client, size = self.knowledge.model, self.knowledge.client, self.observed.batch_size or len(reference)
        alone = not (client.single_gradient and client.batch_coupled(model)) or self.clip < math.inf
        if alone or len(reference) < FEWEST_BATCHES * size:
            return None
        params, device = self.observed.params, rows.device
        updates, missed = [], []
        for part in torch.arange(len(reference) // size * size).split(size):
            batch = Batch(reference.inputs[part], reference.labels[part]).to(device)
            update = client(model, params, batch, buffers=self.observed.buffers or None)
            updates.append(self._entries(client.as_gradient(update, size)))
            missed.append(updates[-1] - rows[part].mean(0))  # [d]
        parts = torch.stack(missed).split([len(places) for places in self.chosen.values()], 1)
        variances = [part.var(0).mean().expand(part.shape[1]) for part in parts]
        return torch.stack(updates).mean(0), size * torch.cat(variances)

    def _shrink(self, gradient: Tensors) -> float:
        return 1.0 if self.clip == math.inf else min(1.0, self.clip / max(float(norm(gradient)), 1e-30))

    def _entries(self, tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].detach().reshape(-1)[places] for name, places in self.chosen.items()]).float()


def public_statistics(knowledge: Knowledge, observed: Round, reference: Batch) -> Tensors:
    """The round's buffers; in train mode with the mean statistics of public batches, of 32 examples or more.

    A network whose norms hold the statistics of one large batch treats that batch as it does in train mode. Those of a
    few examples have too small a variance, so that single examples grow from layer to layer: after fifty layers of
    1 x 1 maps their gradients have nothing to do with the update any more.
    """
    model, buffers = knowledge.model, dict(observed.buffers)
    norms = {name: layer for name, layer in model.named_modules() if isinstance(layer, NORMS)}
    tracked = [name for name, layer in norms.items() if layer.track_running_stats]
    if knowledge.client.mode != "train" or not tracked:
        return buffers
    size = max(2, min(max(observed.batch_size or 0, AT_ONCE), len(reference)))
    batches = [part for part in reference.inputs.split(size) if len(part) == size]
    device = next(iter(observed.params.values())).device
    sums: Tensors = {}
    with torch.no_grad(), in_mode(model, training=True):
        for inputs in batches:
            with captured_calls(model, tracked) as calls:
                forward(model, observed.params, inputs.to(device), buffers=observed.buffers or None)
            for name, (call, *_) in calls.items():
                over = [axis for axis in range(call.input.ndim) if axis != 1]
                # What the layer normalizes by in train mode: mean and biased variance of this batch.
                for key, value in (("mean", call.input.mean(over)), ("var", call.input.var(over, correction=0))):
                    place = f"{name}.running_{key}"
                    sums[place] = sums.get(place, 0.0) + value / len(batches)
    return {**dict(model.named_buffers()), **buffers, **sums}
