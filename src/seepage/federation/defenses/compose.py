"""Several defenses, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Generator, nn

from seepage.errors import SeepageError
from seepage.federation.types import ClientUpdate, ClientView, Defense, DefenseModel, Tensors, Update


@dataclass(frozen=True)
class Compose(Defense):
    """Apply defenses from left to right, all from one generator.

    Args:
        parts: The defenses. One that makes the update anew from the batch, such as `dp_sgd`, can only come first.

    Example:
        >>> from seepage.federation.defenses import DPSGD, Soteria
        >>> both = Compose((DPSGD(sigma=1.0), Soteria(ratio=0.5)))  # FedLeak, Figure 5
    """

    parts: tuple[Defense, ...]

    def __post_init__(self) -> None:
        for part in self.parts[1:]:
            if part.from_batch:
                raise SeepageError(
                    f"{type(part).__name__} makes the update anew from the batch, so the defenses before it would be "
                    "lost; put it first"
                )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        for part in self.parts:
            update = part(update, client, generator=generator)
        return update

    def stages(self) -> tuple[Defense, ...]:
        return tuple(stage for part in self.parts for stage in part.stages())

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        """Those of the parts that still show behind all later parts, with one in place of several of a kind."""
        stages = self.stages()
        found: list[DefenseModel] = []
        for place, stage in enumerate(stages):
            # After later noise or rounding, hidden entries and quantization levels are not visible in the sent update.
            shows = all(later.only_hides for later in stages[place + 1 :])
            for one in stage.attacker_models(model):
                if place == 0 if one.scales_whole else shows:
                    found = _merged(found, one)
        return tuple(found)

    def defended_rule(self, rule: ClientUpdate, model: nn.Module, sent: Tensors) -> ClientUpdate:
        """The first part's rule if it computes the update from the batch; else the client's rule, unchanged."""
        first = self.stages()[:1]
        return first[0].defended_rule(rule, model, sent) if first and first[0].from_batch else rule

    @property
    def follows_training(self) -> bool:  # type: ignore[override]
        return any(part.follows_training for part in self.parts)

    @property
    def needs_neighbor(self) -> bool:  # type: ignore[override]
        return any(part.needs_neighbor for part in self.parts)

    def begin(self, losses: Sequence[float], memory: float | None) -> "Compose":
        return Compose(tuple(part.begin(losses, memory) for part in self.parts))

    def remember(self, sent: Update) -> float | None:
        """The memory of the last part: those before it do not see the sent update."""
        return self.parts[-1].remember(sent) if self.parts else None

    def with_less_noise(self, share: float, t: int) -> "Compose":
        return Compose(tuple(part.with_less_noise(share, t) for part in self.parts))

    def wire_bytes(self, update: Update) -> int:
        """Bytes of the update in the format of the last part."""
        return self.parts[-1].wire_bytes(update) if self.parts else super().wire_bytes(update)


def _merged(models: list[DefenseModel], new: DefenseModel) -> list[DefenseModel]:
    kept: list[DefenseModel] = []
    for model in models:
        both = model.merged(new)
        if both is None:
            kept.append(model)
        else:
            new = both
    return [*kept, new]
