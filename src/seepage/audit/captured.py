"""Attack captured files (checkpoints or a gradient): first converted to an `observed/` folder in the run folder."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from seepage.attacks.exposure.analysis import UNKNOWN_RATE
from seepage.attacks.exposure.inference import infer_sizes
from seepage.audit.capture import Capture
from seepage.audit.captured_network import TAKEN_FOR
from seepage.audit.folder import Run, claim, take, undone_on_mistake
from seepage.audit.observe import SIZE_UNKNOWN, Search, observe_files
from seepage.audit.recipe.resolve import run_name
from seepage.audit.recorded import AttackRequest, attack_only, request_contents
from seepage.audit.values import Range, ValuesShown, searched_values
from seepage.base.lock import locked
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.types import Architecture, Transcript


def attack_folder(
    observed: Path, request: AttackRequest, *, model: Architecture | None = None, batch_size: int | None = None
) -> Run:
    """Attack recorded updates without a truth. A batch size that is not stated is inferred and marked as inferred.

    Args:
        observed: An `observed/` folder, or one with several below it.
        request: The attacks.
        model: Use this model instead of the recorded one.
        batch_size: Batch size to use where the recording states none; None: infer it.

    Raises:
        SeepageError: As `attack_only` does.
    """
    request.check()
    sizes = infer_sizes(observed, model) if batch_size is None else None
    return attack_only(observed, request, model=model, batch_size=batch_size, sizes=sizes)


SCALE_FREE = (
    "cocktail_party",
    "inverting_gradients",
    "linear",
    "lora",
    "patch_embedding",
    "token_sequences",
    "token_set",
)
"""Attacks on directions, ratios and rows that moved: they read an update whose learning rate nobody knows."""
PRINTED_FIRST = (SIZE_UNKNOWN, TAKEN_FOR, "inferred, not stated: optimizer", f"inferred, not stated: {UNKNOWN_RATE}")
"""Beginnings of the remarks that are shown before hours are spent on attacks."""


SEARCHED = "gauss_newton"
"""The attack that looks for the range of values of pictures that nobody stated."""
SHARE, MOST_SECONDS = 0.25, 60.0
"""Share of a command's minutes, and most seconds, within which it does."""


def _search(request: AttackRequest) -> Search | None:
    """How the range of values is looked for, where the request has that attack."""
    if not request.default and SEARCHED not in {attack["use"] for attack in request.attacks}:
        return None
    seconds = MOST_SECONDS if request.minutes is None else min(MOST_SECONDS, 60 * SHARE * request.minutes)

    def search(within: Callable[[Range], Transcript]) -> ValuesShown | None:
        if request.tell is not None:
            request.tell(f"no --normalize or --values: {SEARCHED} looks for the range, for {seconds:.0f} s at most")
        return searched_values(within, seconds)

    return search


def attack_captured(capture: Capture, request: AttackRequest) -> Run:
    """Attack captured files without a truth. They are stored in `observed/` and `captured.json` of the run folder.

    Args:
        capture: The files and what is known.
        request: The attacks.

    Raises:
        SeepageError: For files that contradict the model or the stated facts, unknown attacks, and where `out`
            holds another run.
    """
    request.check()
    text = capture.text
    named = request_contents(request, capture.architecture, client=capture.client)
    asked = json.dumps(
        [
            list(map(dict, request.attacks)),
            request.seed,
            *([named] if named else []),
            *["all"] * request.all_attacks,
        ]
    )
    folder = request.out or Path("runs") / run_name(f"{text}{asked}", "attack")
    claim(folder, "captured.json", text, reuse=request.reuse)
    observed = folder / "observed"
    free = [attack for attack in request.attacks if attack["use"] in SCALE_FREE]
    with locked(folder) as made:
        claim(folder, "captured.json", text, sweeps=True, reuse=request.reuse)
        if not (observed / "knowledge.json").exists():
            with undone_on_mistake(made):
                take(folder, "captured.json", text)
                # Without a rate the default attacks that need none are run, and so are those that were named.
                most = 1 if request.default else len(request.attacks)
                for remark in observe_files(capture, observed, needs_rate=len(free) < most, search=_search(request)):
                    if request.tell is not None and remark.startswith(PRINTED_FIRST):
                        request.tell(remark)
        if UNKNOWN_RATE in read_facts(observed).said:
            request = replace(request, attacks=free)
        trust = request.trust or capture.names_code_of(observed)
        return attack_only(
            observed,
            replace(request, out=folder, trust=trust),
            model=Architecture(capture.architecture.use),
            beside=("captured.json", "observed"),
            files=capture.judged,
        )
