"""Opacus: what a live `PrivacyEngine` has spent, per client and round, beside what the update reveals.

ledger = Ledger(Path("seepage"), delta=1e-5)
ledger.resume(engine, client=7)                          # a new engine continues where the last one stopped
...                                                      # training, through the engine's optimizer
seen = recorder.record(before, model.state_dict(), t=3, client=7, examples=500)
print(ledger.record(engine, optimizer, t=3, client=7, seen=seen).line)
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seepage.base.storage import SCHEMA, append_line, make_private, read_lines, refuse_links
from seepage.errors import SeepageError
from seepage.measure.privacy.accounting import VACUOUS, caveats
from seepage.measure.privacy.ledger import LedgerEntry, read_entry, save_entry
from seepage.recorder.recorder import Recorded, label_of

if TYPE_CHECKING:
    from opacus import PrivacyEngine
    from opacus.optimizers import DPOptimizer

History = list[tuple[float, float, int]]
"""Noise multiplier, sample rate and steps, as Opacus keeps them: one entry for each stretch of equal steps."""


@dataclass(frozen=True)
class Ledger:
    """Epsilon per client and round, as JSON lines in `ledger/client-NUMBER.jsonl`.

    The unit is one example of the client's: not the client. Epsilon is what the engine's own accountant says of the
    steps that it saw; whether batches were really drawn at random, as it assumes, is not checked.

    Args:
        folder: Where the `ledger/` goes: best the recorder's folder. Only its owner can open it.
        delta: In (0, 1), below one over the client's examples.

    Raises:
        SeepageError: For a delta out of range.
    """

    folder: Path
    delta: float = field(kw_only=True, default=1e-5)

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise SeepageError(f"delta is in (0, 1), got {self.delta}; give less than one over the client's examples")

    def resume(self, engine: "PrivacyEngine", *, client: int | str) -> int:
        """Let a new engine go on counting where this client's last line ended.

        A client that makes a new engine each round, as stateless ones do, would otherwise count that round alone.

        Args:
            engine: One that has counted nothing yet.
            client: The client's number or name.

        Returns:
            Steps taken over; 0 where the client has no line yet.

        Raises:
            SeepageError: For an engine that has counted steps, or has another accountant than before.
        """
        if engine.accountant.history:
            raise SeepageError("this engine has already counted steps; resume it before the first one")
        rows = self.rows(client)
        if not rows:
            return 0
        if "history" not in rows[-1]:
            raise SeepageError(
                f"the last line of client {client} has no history of Opacus' accountant; use another ledger"
            )
        kind, own = rows[-1]["accountant"], engine.accountant.mechanism()
        if kind != own:
            raise SeepageError(
                f"client {client} was counted by the accountant {kind!r} and this engine has {own!r}; use "
                f"PrivacyEngine(accountant={kind!r})"
            )
        history = _history(rows[-1]["history"])
        engine.accountant.load_state_dict({"history": history, "mechanism": kind})
        return _steps(history)

    def record(
        self,
        engine: "PrivacyEngine",
        optimizer: "DPOptimizer",
        *,
        t: int,
        client: int | str,
        seen: Recorded | None = None,
    ) -> LedgerEntry:
        """Add the line of one client's round, and state it in the update's recording too, where there is one.

        Args:
            engine: The client's engine after its local training.
            optimizer: The optimizer that `PrivacyEngine.make_private` returned.
            t: Index of the round. A round that is recorded again adds a line; the last one counts.
            client: The client's number or name.
            seen: The recorder's result for the round's update; None: the update is not recorded.

        Returns:
            The line: the epsilon that the client has spent up to and with this round, and how it was counted.

        Raises:
            SeepageError: Where the folder cannot be written.
        """
        rows = [row for row in self.rows(client) if row["t"] < t]
        before = _history(rows[-1].get("history", ())) if rows else []
        entry = _entry(engine, optimizer, self.delta, before)
        self._append(client, {**_row(t, client, entry, seen), "history": engine.accountant.history})
        if seen is not None and seen.folder is not None:
            save_entry(entry, seen.folder)
        return entry

    def clients(self) -> dict[str, LedgerEntry]:
        """The last line of every client of this ledger, by the client's number or name.

        Raises:
            SeepageError: For a folder without a ledger, and a damaged file.
        """
        folder = self.folder / "ledger"
        if not folder.is_dir():
            raise SeepageError(f"{self.folder} holds no ledger; name the folder that the ledger was made with")
        refuse_links(folder)
        found = {}
        for path in sorted(folder.glob("client-*.jsonl")):
            lines = [row for row in read_lines(path) if isinstance(row, dict)]
            rows = {row["t"]: row for row in lines if isinstance(row.get("t"), int)}
            entry = read_entry(rows[max(rows)]) if rows else None
            if entry is None:
                raise SeepageError(f"{path} does not state a privacy that was spent, as a ledger does; delete it")
            found[str(rows[max(rows)].get("client"))] = entry
        return found

    def join(self, seen: Recorded, *, t: int, client: int | str) -> LedgerEntry | None:
        """Join a round's line with the analysis of its update, where the update was recorded after its line.

        The client's code adds the line, as it has the engine, and a hook of a framework sees the update that leaves.
        The recording then states the epsilon, and a further line of that round holds both.

        Args:
            seen: What the recorder made of the update.
            t: The round.
            client: The client's number or name, as in `record`.

        Returns:
            What was spent; None where the client has no line of this round.

        Raises:
            SeepageError: Where the folder cannot be written.
        """
        row = next((row for row in reversed(self.rows(client)) if row["t"] == t), None)
        entry = None if row is None else read_entry(row)
        if row is None or entry is None:
            return None
        history = {"history": row["history"]} if "history" in row else {}
        self._append(client, {**_row(t, client, entry, seen), **history})
        if seen.folder is not None:
            save_entry(entry, seen.folder)
        return entry

    def rows(self, client: int | str) -> list[dict[str, Any]]:
        """A client's lines, the last of each round, by round; one cut short by a kill is left out.

        Raises:
            SeepageError: For a file that is damaged elsewhere than at its end.
        """
        last = {row["t"]: row for row in read_lines(self._path(client))}
        return [last[t] for t in sorted(last)]

    def _path(self, client: int | str) -> Path:
        return self.folder / "ledger" / f"client-{label_of(client)}.jsonl"

    def _append(self, client: int | str, row: dict[str, Any]) -> None:
        path = self._path(client)
        make_private(self.folder)
        make_private(path.parent)
        _cut(path)
        append_line(path, row)


def _row(t: int, client: int | str, entry: LedgerEntry, seen: Recorded | None) -> dict[str, Any]:
    found = None if seen is None else seen.exposure
    return {
        "schema": SCHEMA,
        "t": t,
        "client": client,
        "recording": seen.folder.name if seen is not None and seen.folder is not None else None,
        "examples_given_away": None if found is None else found.examples,
        "looks": None if found is None else found.line,
        **entry.table(),
    }


def _entry(engine: "PrivacyEngine", optimizer: "DPOptimizer", delta: float, before: History) -> LedgerEntry:
    history = _history(engine.accountant.history)
    amount, why = _epsilon(engine, history, delta)
    return LedgerEntry(
        epsilon=amount,
        delta=delta,
        accountant=str(engine.accountant.mechanism()),
        noise=float(optimizer.noise_multiplier),
        clip=float(optimizer.max_grad_norm),  # of all layers together, also where each is clipped by itself
        sample_rate=history[-1][1] if history else None,
        steps=_steps(history),
        caveats=(*why, *caveats(epsilon=amount), *_oddities(optimizer, history, before)),
    )


def _epsilon(engine: "PrivacyEngine", history: History, delta: float) -> tuple[float | None, tuple[str, ...]]:
    """Epsilon by the engine's own accountant, and sentences on why it is missing or loose. Never raises.

    A `prv` accountant takes minutes and gigabytes where epsilon is large. So Renyi accounting (`rdp`), which is fast
    and looser, goes first; its value stands where it is above `VACUOUS`, since a tighter one is hardly worth the time.

    Args:
        engine: The engine, whose accountant counted the steps.
        history: Its steps.
        delta: In (0, 1).

    Returns:
        Epsilon, or None where none can be stated; and the sentences.
    """
    if not history:
        return None, ("no step was counted, so no epsilon can be stated",)
    if any(noise == 0 for noise, _, _ in history):
        return None, ("some steps had no noise, so no epsilon holds",)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            by_rdp = _renyi(history, delta) if engine.accountant.mechanism() == "prv" else 0.0
            is_loose = by_rdp > VACUOUS
            amount = by_rdp if is_loose else float(engine.get_epsilon(delta))
        except (ArithmeticError, ValueError, RuntimeError) as error:
            return None, (f"{engine.accountant.mechanism()} could not count it: {error}",)
    if not math.isfinite(amount):
        return None, ("no finite epsilon holds for so little noise",)
    if is_loose:
        return amount, ("counted by rdp, since prv takes minutes and gigabytes for so large an epsilon",)
    return amount, tuple(f"Opacus warns: {warning.message}" for warning in caught)


def _renyi(history: History, delta: float) -> float:
    """Epsilon of these steps by Renyi accounting: an upper bound of what a `prv` accountant states."""
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = history
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a looser bound; the number is only compared, or said to be loose
        return float(accountant.get_epsilon(delta))


def _oddities(optimizer: "DPOptimizer", history: History, before: History) -> Iterator[str]:
    """Sentences on steps that the accountant did not count; `before` is the history at the client's last round."""
    if optimizer.step_hook is None:
        yield "the optimizer tells no accountant of its steps; use the one that PrivacyEngine.make_private returns"
    if before and _steps(history) <= _steps(before):
        yield (
            f"the accountant counts {_steps(history)} steps and had {_steps(before)} in an earlier round, so it was "
            "made anew and earlier rounds are left out; call Ledger.resume on each new engine"
        )


def _history(entries: Sequence[Sequence[float]]) -> History:
    return [(float(noise), float(rate), int(steps)) for noise, rate, steps in entries]


def _steps(history: History) -> int:
    return sum(steps for _, _, steps in history)


def _cut(path: Path) -> None:
    """Remove a last line that a kill cut short: what is appended must start a line of its own."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            whole = path.read_bytes()
            file.truncate(whole.rfind(b"\n") + 1)
