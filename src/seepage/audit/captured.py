"""Attack captured files (checkpoints or a gradient): first converted to an `observed/` folder in the run folder."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from seepage.attacks.exposure.analysis import UNKNOWN_RATE
from seepage.attacks.exposure.inference import infer_sizes
from seepage.audit.captured_network import TAKEN_FOR
from seepage.audit.folder import Run, claim, take, undone_on_mistake
from seepage.audit.observe import SIZE_UNKNOWN, Files, observe_files
from seepage.audit.recipe.resolve import run_name
from seepage.audit.recipe.trust import own_code
from seepage.audit.recorded import AttackRequest, attack_only, request_contents
from seepage.base.lock import locked
from seepage.base.manifest import JudgedFile
from seepage.base.registry import Spec
from seepage.base.storage import SCHEMA
from seepage.errors import SeepageError
from seepage.federation.models.trial import own_faults
from seepage.federation.models.weights import check_head
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.types import Architecture, Target


@dataclass(frozen=True, kw_only=True)
class Capture:
    """Captured files, and what is known about the client that produced them.

    Attributes:
        files: Two checkpoints, or weights and a gradient.
        architecture: How to build the model.
        client: The client's rule.
        input_shape: Shape of one example, if known.
        num_classes: Classes of the model, if known.
        steps: Local steps of plain SGD, if known.
        batch_size: Examples behind the update, if known.
        target: What examples are trained towards, where it is stated.
    """

    files: Files
    architecture: Architecture
    client: Spec = Spec("fedsgd")  # noqa: RUF009
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    target: Target | None = None

    def observe(self, folder: Path, *, needs_rate: bool = True) -> list[str]:
        """Write the `observed/` folder and return notes for the reader. Raises the errors of `observe_files`."""
        with own_faults(self.architecture.use):
            return observe_files(
                self.files,
                folder,
                architecture=self.architecture,
                client=self.client,
                input_shape=self.input_shape,
                num_classes=self.num_classes,
                steps=self.steps,
                batch_size=self.batch_size,
                target=self.target,
                needs_rate=needs_rate,
            )

    @property
    def known(self) -> frozenset[str]:
        """Names of the facts that are stated here, as `seepage check` calls them, but for the model."""
        files, rule = self.files, self.client.options
        whole = self.client.use != "fedsgd"  # a rule with a rate, steps and an optimizer of its own
        stated = {
            "input shape": self.input_shape is not None,
            "classes": self.num_classes is not None,
            "normalization": "normalize" in self.architecture.options,
            "loss": "loss" in rule,
            "optimizer": whole,
            "learning rate": files.lr is not None or whole,
            "local steps": self.steps is not None or whole,
            "batch size": self.batch_size is not None,
            "weight decay": files.weight_decay is not None or "weight_decay" in rule,
            "clipping": bool({"clip_norm", "clip_value"} & set(rule)),
            "batch norm": "mode" in rule,
            "dropout": "mode" in rule,
        }
        return frozenset(name for name, is_stated in stated.items() if is_stated)

    def names_code_of(self, observed: Path) -> bool:
        """Whether all code that its `observed/` folder names was named here, where the client's rule has such code."""
        typed = {*own_code({"client": self.client.table()}), self.architecture.use}
        facts = read_facts(observed)
        found = set(own_code({"client": facts.client, "defense": facts.defense, "model": facts.architecture}))
        return len(typed) > 1 and found <= typed

    @property
    def judged(self) -> list[JudgedFile]:
        """The files by their roles, with their digests, for whoever signs what came of them."""
        files = self.files
        roles = (
            (files.before, "weights that were sent out", "BEFORE"),
            (files.after, "returned weights", "AFTER"),
            (files.gradient, "sent gradient", "GRADIENT"),
            (files.difference, "sent difference of weights", "DIFFERENCE"),
        )
        return [
            JudgedFile(case="case", what=what, name=name, sha256=_digest(path))
            for path, what, name in roles
            if path is not None
        ]

    @property
    def text(self) -> str:
        """The identity of this capture as JSON: digests of its files and what is known about them."""
        captured = (self.files.before, self.files.after, self.files.gradient, self.files.difference)
        known = {
            "files": [None if path is None else _digest(path) for path in captured],
            "lr": self.files.lr,
            "model": {"use": self.architecture.use, "options": dict(self.architecture.options)},
            "client": asdict(self.client),
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "steps": self.steps,
            "batch_size": self.batch_size,
            **({} if self.target is None else {"target": self.target}),
        }
        return json.dumps({"schema": SCHEMA, **known}, indent=2, default=str) + "\n"


def _digest(path: Path) -> str:
    """SHA-256 of a captured file in hexadecimal, after a check of its head: an untrusted file may be terabytes long."""
    try:
        if path.exists():
            check_head(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise SeepageError(f"{path} does not exist; check the path") from error


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
                for remark in capture.observe(observed, needs_rate=len(free) < most):
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
