"""Which tokens a client's texts hold, by the rows of the embedding that moved: whatever the optimizer, and in how many
local steps.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.text.moved_rows import MovedRows, moved_rows
from seepage.attacks.text.positions import Places, places_of
from seepage.base.nn import (
    Table,
    captured_calls,
    codes_of,
    forward,
    frozen_randomness,
    generator,
    in_mode,
    token_table,
    vocabulary_of,
)
from seepage.base.registry import attacks
from seepage.base.rounding import DEVIATIONS
from seepage.federation.measured import Formats, decay_of, entries_of_step, weights_moved
from seepage.federation.sent_tensors import not_sent
from seepage.federation.types import Knowledge, Reconstruction, Round, Transcript


@attacks.register(
    "token_set",
    paper="rows of an embedding, after Melis et al. 2019, with weight decay, rounding and a proof",
    cost="under a second (closed form, and one pass of the network)",
)
@dataclass(frozen=True, kw_only=True)
class TokenSet(Attack):
    """Names the distinct tokens of a client's texts by the rows of the embedding that moved.

    A token that no text holds has no gradient in its row, in no local step of no client, so that SGD, momentum, Adam,
    AdamW, RMSprop and Adadelta all move that row as they move every such row: not at all, or by weight decay, which
    takes the same share a of each,

        E'_v = (1 - a) E_v + rounding

    What moved otherwise was looked up (Melis et al. 2019 read words off the rows of a gradient that are not zero). The
    share is where most rows agree, and the rounding is known where a = 0 (a row is then returned bit for bit, or as its
    number format rounds it) and read off the rows that stood still where a > 0: the chance to name any token by
    rounding is one in a million. That only rows which are looked up have a gradient is tried: one pass of the network
    on tokens of its own. Where the embedding is the last layer as well, every row has one, and nothing is said.

    What is certified is that a row had a gradient of its own. It is a token of the texts if the client trained on
    nothing else, began with a fresh optimizer, and added nothing to single rows: noise on all of them leaves none that
    stood still, and is refused. A row of which so few numbers moved that noise behind a compression could have left
    them is reported and not certified. How often a token stood where stays open, and one whose gradient is zero, or too
    small for the number format, is missed. A row of padding (`padding_idx`) is never trained, so it is never reported.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("text_encoder", {"vocabulary": 90, "width": 32}), (6,), 2)
        >>> ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])
        >>> found = TokenSet()(record(model, Batch(ids, torch.tensor([0, 1]))), seed=0)
        >>> found.inputs.flatten().tolist(), found.space
        ([1, 2, 3, 4, 5, 7, 8, 9], 'token')
    """

    needs: ClassVar[Needs] = Needs(text="a network that embeds tokens in a table of its own", weights=None)

    def examine(self, transcript: Transcript) -> "LookedUp":
        """Find the table, prove that only its rows which are looked up move, and find which did.

        Raises:
            Inapplicable: Where the network reads no tokens, the table was not sent, is shared or stood still, or where
                no two of its rows moved alike.
        """
        knowledge, observed = transcript.knowledge, transcript[0]
        table = token_table(knowledge.model)
        if table is None and vocabulary_of(knowledge.model) is not None:
            raise refuse("no_table")(
                "the network looks its inputs up in a bare parameter, and no table's layer tells which rows those are",
                "name a network that looks them up by nn.Embedding, with --model",
            )
        if table is None or len(knowledge.input_shape) != 1:
            raise refuse("no_tokens")(
                "the network does not begin with an embedding of tokens",
                "use inverting_gradients for images and tables",
            )
        return replace(looked_up(knowledge, observed, table[0]), places=places_of(knowledge, observed))

    def run(self, seen: "LookedUp", /, *, seed: int, progress: Progress) -> Reconstruction:
        """Return the rows that moved, as tokens; or one text whole, where the rows of places put it in order."""
        rows, text = seen.rows, None if seen.places is None else seen.places.text
        if text is not None:
            return Reconstruction(text, certified=torch.ones(1, dtype=torch.bool), notes=tuple(seen.notes()))
        tokens = rows.moved.nonzero()
        return Reconstruction(tokens, space="token", certified=rows.sure[tokens[:, 0]], notes=tuple(seen.notes()))


def looked_up(knowledge: Knowledge, observed: Round, layer: str, like: MovedRows | None = None) -> "LookedUp":
    """Which rows of a table were looked up, of a network that takes tokens, or numbers with a code among them.

    Args:
        knowledge: What the attacker knows.
        observed: The round.
        layer: Name of the `nn.Embedding`.
        like: As of `moved_rows`.

    Raises:
        Inapplicable: Where the table was not sent, is shared or stood still, where it looks up places and not what
            examples say, or where no two of its rows moved alike.
    """
    name = f"{layer}.weight" if layer else "weight"
    if name not in observed.update.tensors:
        raise not_sent(name, [*observed.params, *observed.personal])
    if not observed.update.tensors[name].any():
        raise refuse("zero_gradient")(
            f"no row of the embedding {name} moved: it was frozen, or its update withheld",
            "use token_sequences, or lora where adapters were trained",
        )
    silent = _check_alone(knowledge, observed, layer, name)
    rows = moved_rows(*_moves(observed, name), like)
    if rows is None:
        raise refuse("every_row_moved")(
            f"every row of {name} moved in a way of its own: noise was added, the decay of an optimizer that "
            "divides each entry by a size of its own is in it, or every token was used",
            "use token_sequences for one step of SGD, or seepage attack with candidate texts",
        )
    step, padding = observed.update.step, knowledge.model.get_submodule(layer).padding_idx
    hidden = step is not None and step.coupled > 0
    return LookedUp(name, rows, padding, hidden=hidden, silent=silent)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LookedUp:
    """What the table's rows did.

    Attributes:
        name: The table.
        rows: Which of them moved.
        padding: The row of padding, if the table names one.
        places: What stood at each place, where a table of places tells.
        hidden: A decay in the gradient moved every row, and may hide some that were looked up.
        silent: Some row that made-up examples look up has no gradient, as behind pooling that takes maxima.
    """

    name: str
    rows: MovedRows
    padding: int | None
    places: Places | None = None
    hidden: bool = False
    silent: bool = False

    @property
    def open(self) -> int:
        """Rows that moved in a way that does not tell whether they were looked up."""
        return len(self.rows.moved) - int(self.rows.moved.sum()) - self.rows.still

    def notes(self) -> list[str]:
        """What was found, in sentences for the report."""
        rows, count = self.rows, int(self.rows.moved.sum())
        alike = (
            f"shrank by {rows.share:.3g} alike, to within {rows.unit:.2g} units of the last place"
            if rows.unit
            else "were returned unchanged"
        )
        said = [f"{count:,} of {len(rows.moved):,} rows of {self.name} moved on their own; {rows.still:,} {alike}"]
        said += [self.places.words] if self.places is not None and any(self.places.tokens) else []
        part = count - int(rows.sure.sum())
        if part:
            said.append(f"of {part:,} of these few numbers moved: they are named and not certified")
        if self.open:
            said.append(f"{self.open:,} rows moved by so little, or so alike, that nothing is said of them")
        if self.hidden:
            said.append("a decay in the gradient moved every row, so that more may have been looked up than these")
        if self.silent:
            said.append("not every token that is read has a gradient in this network, so that more may have been read")
        if self.padding is not None:
            said.append(f"row {self.padding} is padding, which is never trained: whether texts were padded stays open")
        return said


def _moves(observed: Round, name: str) -> tuple[Tensor, Tensor | None]:
    """How the table's rows moved, float64, as between two checkpoints where there were two, and the table before."""
    update, start = observed.update, observed.params[name]
    change = update.tensors[name].double()
    if update.step is not None:  # what no token moved is not zero there, but an error
        share = update.decayed.get(name, 0.0)
        moved = weights_moved(change, start, update.step, share)
        if update.step.coupled:  # less what decay alone moves, which each entry's own size divides
            alone, own = weights_moved(torch.zeros_like(change), start, update.step, share), update.step.rate
            _, _, u, spread = entries_of_step(change, start, update.step, share, Formats())
            apart = (u + (alone + decay_of(share) * start.double()) / own).abs()
            moved = torch.where(apart <= 2 * DEVIATIONS * spread, 0.0, moved - alone)
        return moved, start
    if update.kind == "gradient" and update.rate is None:
        return change, None
    moved = change if update.rate is None else -update.rate * update.rates.get(name, 1.0) * change
    return moved - update.decayed.get(name, 0.0) * start.double(), start


def _check_alone(knowledge: Knowledge, observed: Round, layer: str, name: str) -> bool:
    """Raise where a row has a gradient though it is not looked up: the network runs once to find out.

    Returns:
        Whether some row that is looked up has none, but for that of padding.
    """
    model, params = knowledge.model, {**dict(knowledge.model.named_parameters()), **observed.params}
    params = {key: tensor.detach() for key, tensor in params.items()}
    table = params[name].clone().requires_grad_()
    inputs = _probes(knowledge, len(table)).to(table.device)
    try:
        with torch.enable_grad(), in_mode(model, training=False), captured_calls(model, [layer]) as calls:
            logits = forward(model, {**params, name: table}, inputs, buffers=observed.buffers)
            read = [call.input for call in calls.get(layer, [])]
            # Any function of all logits: only which rows have a gradient at all is read from it.
            (gradient,) = torch.autograd.grad(logits.square().sum(), table)
            calls.clear()
            forward(model, {**params, name: table}, inputs.flip(0), buffers=observed.buffers)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise refuse("does_not_run")(
            f"the network cannot be run on {tuple(inputs.shape)} made-up examples, so it is not known that only the "
            f"rows of {name} which are looked up move ({str(error).splitlines()[0][:80]})",
            "name a model that takes such examples alone, with --model",
        ) from error
    turned = [call.input for call in calls.get(layer, [])]
    if not read or all(torch.equal(*pair) for pair in zip(read, turned, strict=True)):
        raise refuse("same_rows")(f"the table {name} looks up the same rows for every example", "use token_sequences")
    used = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    used[torch.cat([one.flatten() for one in read])] = True
    if (gradient.any(1) & ~used).any():
        raise refuse("every_row_moved")(
            f"the embedding {name} is the last layer as well, which moves the rows of all tokens",
            "use token_sequences, for one step of SGD",
        )
    padding = model.get_submodule(layer).padding_idx
    used &= torch.arange(len(used), device=used.device) != (-1 if padding is None else padding)
    for seed in (1, 2):  # dropout leaves fewer windows of which a pool takes the maximum
        with torch.enable_grad(), in_mode(model, training=False, dropout=True), frozen_randomness(seed, table.device):
            logits = forward(model, {**params, name: table}, inputs, buffers=observed.buffers)
            gradient = gradient * torch.autograd.grad(logits.square().sum(), table)[0].any(1, keepdim=True)
    return bool((used & ~gradient.any(1)).any())


def _probes(knowledge: Knowledge, rows: int) -> Tensor:
    """`[2, *shape]` examples that look up at most half of the rows, and not the same ones."""
    shape = knowledge.input_shape
    tables = [one.num_embeddings for one in knowledge.model.modules() if isinstance(one, Table)]
    if token_table(knowledge.model) is None:  # numbers, with codes of 0 and 1 among them
        return torch.stack([torch.zeros(shape), torch.ones(shape)])
    if len(tables) > 1:  # a column may be of any of them, and some tables are short
        rows = min([rows, *(size for size in tables if size > 1)])
    rows = min([rows, *(codes_of(knowledge.model) or ())])
    order = torch.randperm(rows, generator=generator(0, "token set"))[: max(1, rows // 2)]
    if len(order) == 1:
        order = torch.arange(rows)
    places = torch.arange(shape[0])
    other = shape[0] if len(order) >= 2 * shape[0] else 1  # of few rows the next ones, so that no place has one twice
    return order[torch.stack([places, places + other]) % len(order)]
