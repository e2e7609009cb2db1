"""What a metric is. One file adds one:

    from seepage.base.registry import metrics

    @metrics.register("mine", unit="dB", about="one line for lists and reports")
    def mine(guesses: Tensor, truth: Tensor) -> Tensor: ...

A recipe can also name a function of your own: `[score] metrics = ["mymodule:mine"]`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

from torch import Tensor

from seepage.base.registry import metrics
from seepage.errors import SeepageError

Measure = Callable[..., Tensor | None]
"""(guesses, truth)."""


@dataclass(frozen=True)
class Metric:
    """A metric of guesses `[n, *shape]` and their examples `[n, *shape]`, both on [0, 1], per example.

    Attributes:
        name: In recipes, rows and `--fail-if`.
        measure: The function. It returns `[n]`, or None where it cannot measure these examples here.
        unit: `dB`, or empty for a plain number.
        images_only: Whether it is measured on images alone.
        by_default: Whether every audit measures it; the others are measured where a recipe asks for them.
        of_labels: Whether it compares labels, not inputs: measured wherever labels were guessed.
        digits: Decimals of its summary.
    """

    name: str
    measure: Measure
    unit: str = ""
    images_only: bool = False
    by_default: bool = False
    of_labels: bool = False
    digits: int = 4

    def __call__(self, guesses: Tensor, truth: Tensor) -> Tensor | None:
        """The values `[n]`, float64.

        Raises:
            SeepageError: Where the function returns something else.
        """
        found = self.measure(guesses, truth)
        if found is not None and (not isinstance(found, Tensor) or found.shape != (len(truth),)):
            what = f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise SeepageError(
                f"the metric {self.name!r} returned {what} for {len(truth)} examples; return one number per example, "
                f"a tensor of shape ({len(truth)},), or None where it does not apply"
            )
        return None if found is None else found.detach().cpu().double()


_FACTS = {field.name for field in fields(Metric)} - {"name", "measure"}


def find_metric(use: str) -> Metric:
    """A metric by its name, or by `module:function`, which imports the module.

    Raises:
        SeepageError: For an unknown name, and a function that would stand for another metric of its name.

    >>> find_metric("psnr").unit
    'dB'
    """
    entry = metrics.find(use)
    name, make = entry.name.rpartition(":")[2], entry.make
    known = metrics.get(name)
    if known is not None and known.make is not make:
        raise SeepageError(f"{use} would be called {name!r}, as a metric of seepage is; rename the function")
    if not callable(make):
        raise SeepageError(f"{use} is a {type(make).__name__} and no metric; name a function (guesses, truth)")
    facts = (known or entry).facts
    return Metric(name, make, **{key: facts[key] for key in _FACTS & facts.keys()})


def default_metrics() -> list[Metric]:
    """What every audit measures of the inputs."""
    found = map(find_metric, metrics)
    return [metric for metric in found if metric.by_default and not metric.of_labels]
