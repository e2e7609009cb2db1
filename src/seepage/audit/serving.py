"""Rounds that are made anew from the truth, in a process that has it, for an attack in one that has not.

Rounds over one data set that are too large to keep are computed again when an attack asks for one, and that takes the
private samples. They are opened in a process of their own. The attack's process holds a pipe to it, asks by JSON lines
(`["round", t]`) and gets what the folder `observed/` would have held:

    attack's process                          process with private/
    ServedTranscript[t]  -- ["round", t] -->  IndexedTranscript[t]
                         <--- an answer ----  update, weights if they moved, labels and indices if told
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from seepage.audit.record import made_anew
from seepage.core.executor import SAFE_PATH
from seepage.errors import SeepageError
from seepage.recipe.case import Recipe
from seepage.transcript.recorded import open_knowledge
from seepage.transcript.vertical import IndexedTranscript
from seepage.types import Knowledge, Round, Tensors, Update

SECONDS_TO_END = 10.0
"""What the process has to end by itself once it is told to."""

START = "from seepage.audit.serving import serve; serve()"


@dataclass(frozen=True)
class ServedTranscript:
    """Rounds that another process makes; nothing here, or reachable from here, holds an example.

    Attributes:
        knowledge: What the attacker is told.
        first: The model's `(params, buffers)` of the first round.
        rounds: How many there are.
        device: Where tensors are put.
    """

    knowledge: Knowledge
    first: tuple[Tensors, Tensors]
    rounds: int
    device: str
    _process: "subprocess.Popen[bytes]" = field(repr=False)

    def __len__(self) -> int:
        return self.rounds

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < len(self):
            raise IndexError(t)
        moved, update, kind, rate, decayed, batch_size, labels, indices = self._ask("round", t)
        return Round(
            t=t,
            params=self._here(moved) or self.first[0],
            buffers=self.first[1],
            update=Update(self._here(update), kind, rate, decayed),
            batch_size=batch_size,
            labels=labels,
            indices=indices,
        )

    def indices(self, t: int) -> Tensor | None:
        """`[K]` indices of the samples of round `t`, without computing it; None if the attacker lacks them."""
        found: Tensor | None = self._ask("indices", t)
        return found

    def select(self, t: int, names: Collection[str]) -> Tensors:
        """The gradients of these tensors in round `t`."""
        return self._here(self._ask("select", t, sorted(names)))

    def params(self, t: int) -> Tensors:
        """The weights of round `t`, without computing its update."""
        return self._here(self._ask("params", t)) or self.first[0]

    def _here(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self.device) for name, tensor in tensors.items()}

    def _ask(self, *question: Any) -> Any:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps(question).encode() + b"\n")
            asked.flush()
            well, answer = pickle.load(answers)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):  # the last: it ended in the middle of an answer
            raise SeepageError(
                "the process that makes the rounds anew from private/ has ended (out of memory, most likely); give the "
                "machine more memory, or ask for fewer attacks at a time with --jobs 1"
            ) from None
        if not well:
            raise answer
        return answer


@contextmanager
def served(
    recipe: Recipe, observed: Path, private: Path, *, device: str = "cpu", threads: int = 1
) -> Iterator[ServedTranscript]:
    """The transcript of a cell whose rounds were too large to store, while a process beside this one makes them.

    Args:
        recipe: The recipe that recorded the cell.
        observed: Its folder for attackers.
        private: The folder with the truth, which only the other process opens.
        device: Where tensors are, in both processes.
        threads: Threads of the other process: with as many as when the first round was recorded the bits are the same.
    """
    knowledge, first = open_knowledge(observed, device=device)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), SAFE_PATH: "1"}
    # In a session of its own: Ctrl-C ends the attack, which still needs its rounds until its checkpoint is saved.
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        pickle.dump((recipe, observed, private, device, threads), process.stdin)
        process.stdin.flush()
        rounds = ServedTranscript(knowledge, first, 0, device, process)._ask("length")
        yield ServedTranscript(knowledge, first, rounds, device, process)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End it: it does so by itself when nobody can ask any more."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # what could not be flushed to a process that has ended
                stream.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve() -> None:
    """Answer until the other side is gone: what the process with the truth runs."""
    with suppress(BrokenPipeError):
        _serve()


def _serve() -> None:
    asked, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what code prints must not come between the answers
    # The setting comes before any attack runs. What an attack may send are JSON lines, which run nothing.
    recipe, observed, private, device, threads = pickle.load(asked)
    torch.set_num_threads(threads)
    try:
        rounds: _Rounds | SeepageError = _Rounds(made_anew(recipe, observed, private, device))
    except SeepageError as error:
        rounds = error
    for line in asked:
        try:
            if isinstance(rounds, SeepageError):
                raise rounds
            _send((True, rounds.answer(*json.loads(line))), answers)
        except (SeepageError, ArithmeticError, LookupError, RuntimeError, ValueError) as error:
            _send((False, error), answers)


def _send(answer: tuple[bool, Any], answers: IO[bytes]) -> None:
    pickle.dump(answer, answers)
    answers.flush()


class _Rounds:
    """What is answered, as tensors on the CPU; weights that have not moved since the first round are left out."""

    def __init__(self, transcript: IndexedTranscript) -> None:
        self.transcript = transcript
        # Asked for once: going back to the first round would throw the latest weights of a trained model away.
        self.first = transcript.params(0)

    def answer(self, what: str, t: int = 0, names: Collection[str] = ()) -> Any:
        if what == "length":
            return len(self.transcript)
        if what == "indices":
            return self.transcript.indices(t)
        if what == "select":
            return _away(self.transcript.select(t, names))
        if what == "params":
            return self.moved(self.transcript.params(t))
        found = self.transcript[t]
        sent = found.update
        update = _away(sent.tensors), sent.kind, sent.rate, sent.decayed
        return self.moved(found.params), *update, found.batch_size, found.labels, found.indices

    def moved(self, params: Tensors) -> Tensors:
        return {} if params is self.first else _away(params)


def _away(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
