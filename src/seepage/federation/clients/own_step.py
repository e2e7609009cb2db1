"""The client's own training code, run as it is to record; attacks read its update by the nearest rule they can follow.

def train_step(model, batch): ...           once for each local batch, a pair (inputs, labels)
def train_step(model, inputs, labels): ...  the same
def train(model, loader): ...               once: a list of all local batches, over which the loop is its own
def make(model): ...                        once: returns what is called for each batch, and keeps its optimizer
class Trainer: __init__(self, model), __call__(self, batch)
"""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from seepage.base.nn import at_state, derived_seed, frozen_randomness
from seepage.base.own_code import first_line, own_line
from seepage.base.registry import Spec, clients, import_dotted, is_dotted
from seepage.errors import SeepageError, refuse, short
from seepage.federation.clients.base import WrappedRule
from seepage.federation.clients.fedavg import FedAvg
from seepage.federation.types import ClientUpdate, LocalProblem, Tensors, Update

FORMS = (
    "write train_step(model, batch), train_step(model, inputs, labels), train(model, loader), or make(model) that "
    "returns what is called for each batch, each with its optimizer and rate inside"
)


@dataclass(frozen=True)
class OwnStep(WrappedRule):
    """A client that trains by code of its own: its loop body, called for each local batch, or its whole loop.

    The code gets a copy of the model in train mode and changes its weights; what it draws from the global generators of
    PyTorch, NumPy and Python, such as dropout's masks, is repeatable and the client's own. It cannot be differentiated:
    attacks are given `rule`, the nearest that can be, and never run the code.

    Args:
        rule: How attacks read the update. It also says how the examples are shared out in batches, and for how long.
        step: The code, in one of the forms that this module lists.
        name: What it is called.
        stated: Whether the rule's learning rate was given; else it is read off the update.
        decayed: The share of each weight that weight decay took off, by name, where it was read off the update.

    Example:
        >>> from torch import nn
        >>> from seepage.federation.types import Batch
        >>> def train_step(model, batch):
        ...     inputs, labels = batch
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     nn.functional.cross_entropy(model(inputs), labels).backward()
        ...     optimizer.step()
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(6, 4), torch.arange(6) % 3)
        >>> own, same = OwnStep.of(train_step), FedAvg(lr=0.1)
        >>> own, same = (rule(model, params, batch).tensors["weight"] for rule in (own, same))
        >>> torch.allclose(own, same)
        True
    """

    rule: FedAvg
    step: Callable[..., Any]
    name: str = ""
    stated: bool = True
    decayed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, step: Callable[..., Any], name: str = "", **options: Any) -> Self:
        """A client that trains by this code.

        Args:
            step: The code, in one of the forms that this module lists.
            name: What to call it; default: its own name.
            options: Of `fedavg`: how attacks read it, and how examples are shared out in batches. Without `lr` it is
                read off the update, and with it optimizer and weight decay.

        Raises:
            SeepageError: For code of another form, and wrong options.
        """
        named = name or getattr(step, "__name__", type(step).__name__)
        _check_form(step, named)
        return cls(clients.build(Spec("fedavg", options)), step, named, "lr" in options)

    def __repr__(self) -> str:
        return f"{self.name}, read as {self.rule}" if self.stated else f"{self.name}, read off its update"

    @property
    def read_as(self) -> ClientUpdate:
        return self.rule.read_as

    def undecayed(self, update: Update, params: Tensors, examples: int) -> Update:
        if self.decayed:
            return update.without_decay(params, self.decayed)
        return self.rule.undecayed(update, params, examples)

    def for_round(self, seed: int, t: int) -> Self:
        # The order of the examples, as of `FedAvg`, and what the code draws.
        return replace(self, rule=replace(self.rule, seed=derived_seed(seed, "client order", t)))

    def compute(self, problem: LocalProblem) -> Update:
        if problem.create_graph:
            raise refuse("no_derivatives")(
                f"the client's own code {short(self.name)} is run as it is and cannot be differentiated",
                "use what attacks know of it, its read_as",
            )
        inputs, labels = problem.batch.inputs, problem.batch.labels
        model = at_state(problem.model, problem.params, problem.buffers).train(self.rule.mode == "train")
        own = dict(model.named_parameters())
        for name in problem.params:
            own[name].requires_grad_()
        batches = [(inputs[places].clone(), labels[places].clone()) for places in self.rule.batches(len(inputs))]
        with _own_randomness(derived_seed(self.rule.seed, "masks"), inputs.device), torch.enable_grad():
            try:
                _train(self.step, model, batches)
            except SeepageError:
                raise
            except Exception as error:  # user code may raise anything
                place = own_line(error)
                raise SeepageError(
                    f"the training step {short(self.name)} fails ({type(error).__name__}: {first_line(error)}"
                    f"{f', {place}' if place else ''}) on {len(batches[0][0])} examples of shape "
                    f"{tuple(inputs.shape[1:])}; correct that line"
                ) from error
        delta = {name: own[name].detach() - start.detach() for name, start in problem.params.items()}
        if not any(bool(tensor.any()) for tensor in delta.values()):
            raise SeepageError(
                f"the training step {short(self.name)} moved no weight of the model it was given; let it end with "
                "optimizer.step(), of an optimizer that has model.parameters()"
            )
        return Update(delta, kind="delta")


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed every global generator that training code draws from, and put each back."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with frozen_randomness(seed, device):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _train(step: Callable[..., Any], model: Any, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Call the code in its form."""
    given, first = _required(step), tuple[Any, ...]()
    if len(given) == 1:
        made = step(model)
        if isinstance(made, ClientUpdate) or not callable(made):
            raise SeepageError(
                f"what is made of the model alone must be called for each batch, and this is a {type(made).__name__}; "
                f"{FORMS}"
            )
        step, given = made, _required(made)
    else:
        first, given = (model,), given[1:]
    if len(given) == 1 and "loader" in given[0]:
        step(*first, batches)
        return
    for batch in batches:
        step(*first, *([batch] if len(given) == 1 else batch))


def _required(step: Callable[..., Any]) -> list[str]:
    """Names of the arguments that have to be given, in order."""
    try:
        taken = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in taken if one.kind in places and one.default is one.empty]


def _check_form(step: object, name: str) -> None:
    given = _required(step) if callable(step) else []
    if not 1 <= len(given) <= 3:
        what = f"takes {len(given)} arguments" if callable(step) else f"is a {type(step).__name__}"
        raise SeepageError(f"the training step {short(name)} {what}; {FORMS}")


def own_step(spec: Spec) -> OwnStep | None:
    """The client of a training step that a part names; None where it names a rule, or what makes one of its options.

    A rule's own arguments are options. What must be given more, such as a model, makes a training step of a function.

    Args:
        spec: A part that the user typed: a dotted path is imported.

    Raises:
        SeepageError: For code of another form, and wrong options.
    """
    if not is_dotted(spec.use) or spec.use in clients:
        return None
    found = import_dotted(spec.use)
    rule = isinstance(found, type) and issubclass(found, ClientUpdate)
    if rule or not callable(found) or not [name for name in _required(found) if name not in spec.options]:
        return None
    return OwnStep.of(found, spec.use, **spec.options)
