"""What a shell is offered after TAB: registered names and recipes. Nothing of it imports PyTorch."""

from collections.abc import Callable

Complete = Callable[[str], list[str]]


def names_of(kind: str) -> Complete:
    """What completes an option that takes a name of one kind, such as `attacks`."""

    def complete(incomplete: str) -> list[str]:
        from seepage.base.registry import KINDS

        return sorted(name for name in KINDS[kind] if name.startswith(incomplete))

    return complete


def loss_names(incomplete: str) -> list[str]:
    """The losses that have a name here."""
    return [name for name in ("cross_entropy", "mse", "bce", "binary") if name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """The built-in recipes."""
    from seepage.audit.recipe.files import list_recipes

    return [name for name in list_recipes() if name.startswith(incomplete)]
