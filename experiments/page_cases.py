"""What cases of `tables.toml` call by name: phrases for one record, or for all records of a line."""

import re
from collections.abc import Sequence
from functools import cache
from statistics import mean, median

import torch
from page_parts import Row, span

from seepage.base.schema import Share
from seepage.measure.metrics.interval import bootstrap_interval
from seepage.papers import find_item

__all__ = ["mean", "median", "span"]


def weights(steps: int) -> str:
    return f"{steps} steps" if steps else "fresh"


def ends(low: float | None, high: float | None, form: str = ".1f") -> str:
    """An interval in brackets; nothing where there is none."""
    return "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"


def hits(share: float, of: int, between: str = " of ") -> str:
    """How many a share is."""
    return f"{round(share * of)}{between}{of}"


def resnet(options: str) -> str:
    given = dict(pair.split("=") for pair in options.split(","))
    return f"ResNet-{given['depth']}, width {given['width']}"


def local_steps(client: str) -> str:
    """Steps and rate of a FedAvg client, by its `repr`."""
    rate, steps = re.search(r"lr=([\d.]+)", client), re.search(r"steps=(\d+)", client)
    return f"{steps[1]} at {rate[1]}" if rate and steps else client


def pooled(rows: Sequence[Row], share: str, of: str) -> Share:
    """Hits of all seeds together."""
    return Share.count(sum(round(row[share] * row[of]) for row in rows), sum(row[of] for row in rows))


def with_ends(rate: Share) -> str:
    return f"{rate.hits} of {rate.of} ({rate.interval[0]:.1%} to {rate.interval[1]:.1%})"


def counted(rows: Sequence[Row], hits: str, of: str) -> str | None:
    """Hits of all seeds together, as `with_ends`; None where no record has them."""
    own = [row for row in rows if hits in row]
    total = sum(row[of] for row in own)
    return with_ends(Share.count(sum(row[hits] for row in own), total)) if total else "no result" if own else None


def solved_for(rows: Sequence[Row], name: str) -> str | None:
    """Examples whose features or activations are known, or that no update let them be solved for."""
    none = [row for row in rows if name in row.get("refused", {})]
    return "refused" if none and not any(row[name] for row in none) else counted(rows, name, "read_of")


def images(rows: Sequence[Row], hits: str) -> str | None:
    """How many images an attack returned so, or that no update let it begin."""
    own = [row for row in rows if "exact_tried" in row]
    return counted([row for row in own if row["exact_tried"]], hits, "read_of") or ("refused" if own else None)


def cafe_method(row: Row, designs: Row) -> str:
    if row["who"] == "published":
        return "published, single loop" if "single_loop" in row["attack"] else "published, nested loops"
    steps = re.search(r"\bsteps=\((\d+)", row["attack"])
    return f"`cafe`, {designs[row['design']]}, {steps[1] if steps else '?'} steps of step III"


def cut_steps(row: Row) -> int | None:
    """Steps of the methods of CPA's tables that are cut short of what was published."""
    if "steps" in row:
        return int(row["steps"])
    asked = re.search(r"\bsteps=(\d+)", row.get("attack", ""))
    searched = row["method"].startswith(("published", "matching", "all", "-"))
    return int(asked[1]) if asked and searched else None


def mean_with_ends(rows: Sequence[Row], key: str) -> str:
    """Mean over batches with its 95 % bootstrap interval."""
    values = torch.tensor([row[key] for row in rows], dtype=torch.float64)
    found = bootstrap_interval(values, torch.arange(len(values)))
    return f"{float(values.mean()):.4f}" + (f" ({found[0]:.4f} to {found[1]:.4f})" if found else "")


def restarted(attack: str) -> str:
    """The attack with what its number in the recipe stands for."""
    name, last = attack.rpartition("-")[::2] if attack.endswith(("-2", "-3")) else (attack, "")
    return f"`{name}`" + {"2": ", 4 restarts", "3": ", annealed, with restarts of the rate"}.get(last, "")


def every(values: Sequence[float]) -> str:
    """All of a few numbers, else their mean and range."""
    if len(values) <= 3:
        return ", ".join(f"{value:.1f}" for value in values)
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def head_error(row: Row) -> str:
    if not row["solved"]:
        return "refused"
    error = "none known" if row["error"] is None else f"{row['error']:.0e}"
    return error if row["known"] == row["examples"] else f"{error} ({row['known']} of {row['examples']})"


def best_found(row: Row) -> str:
    """What the best attack of a frontier recovered."""
    if row["zero"]:
        return "the rest is zero: nothing to attack"
    if row["recovered"] is None:
        return "not scored"
    return f"{round(row['recovered'])} of {row['examples']}" + f", `{row['attack']}`" * bool(row["recovered"])


def behind(row: Row) -> str:
    """What an attack recovered behind a defense."""
    if "refused" in row:
        return "nothing to attack"
    return f"{row['psnr_median']:.1f} dB, {hits(row['recovered'], row['examples'], '/')}"


def fitted(rows: Sequence[Row]) -> str:
    """Epsilon by Gaussian fit, where it fits with every seed."""
    fits = [row["fit_epsilon"][1] for row in rows if row.get("fit_plausible")]
    return span(fits, "{:.3g}") if len(fits) == len(rows) else "refused" if "fit_epsilon" in rows[0] else "-"


def mistaken(rows: Sequence[Row]) -> str:
    """Epsilon by Gaussian fit, or what stands in its place."""
    fits = [row["fit"][1] for row in rows if row.get("fit")]
    if len(fits) == len(rows):
        return span(fits, "{:.3g}")
    return "no output differs" if rows[0]["deterministic"] else "nothing varies" if rows[0].get("notes") else "refused"


def named_steps(found: Row) -> str:
    """The numbers of local steps that were inferred, and in how many cases."""
    steps = {int(step): count for step, count in found.items() if step != "not inferred"}
    return f"{span(steps)} ({sum(steps.values())} of {sum(found.values())})" if steps else "not inferred"


def headline(row: Row) -> str:
    """The first words of an upstream client's verdict, or that there was none."""
    if row["stopped"]:
        return "no end in 15 minutes"
    if not row.get("verdict"):
        return "refused"
    words = str(row["verdict"]).partition(".")[0].lower()
    return f"{words}: {row['tokens']}" if row.get("tokens") else words


def noise_of(defense: str) -> list[float]:
    """Sigma and clip of a defense, in the order of its text."""
    return [float(value) for value in re.findall(r"(?:sigma|clip)=([\d.e-]+)", defense)]


def times(row: Row, name: str) -> str | None:
    """How many times as long as the first-order attack another takes."""
    found = row["ratio_to_first_order"].get(name)
    return found and "{:.2f} ({:.2f} to {:.2f})".format(*found)


@cache
def printed(item: str, row: str) -> list[float]:
    """A row of numbers that a paper prints, as its recipe's `[expect]` has them."""
    return [float(value) for value in next(line for line in find_item(item).lines if line.name == row).paper]


def paper_steps(case: str) -> str | None:
    """What FedLeak's table 9 has at the setting nearest to a case of local steps."""
    columns = {"convnet": 0, "convnet-2-steps": 1, "convnet-4-steps": 2, "convnet-12-steps": 4}
    known = [printed("fedleak/table-9", name) for name in ("IG", "FedLeak")]
    return "IG {:.1f}, FedLeak {:.1f}".format(*(row[columns[case]] for row in known)) if case in columns else None


def paper_skew(case: str) -> str | None:
    """What FedLeak's tables 5 and 6 have at the setting nearest to a case of skewed clients."""
    kind = case.partition(" ")[0]
    if kind == "dirichlet":
        places = {"dirichlet alpha-0.1": 0, "dirichlet alpha-0.5": 1, "dirichlet alpha-5.0": 3}
        return f"{printed('fedleak/table-6', 'FedLeak')[places[case]]:.2f}" if case in places else None
    if kind not in ("label", "quantity", "feature"):
        return None
    found = printed("fedleak/table-5", f"{kind.capitalize()} skew")
    listed = {f"label skew classes-{n}": f"{found[n - 1]:.2f}" for n in (1, 2, 5)} if kind == "label" else {}
    listed["quantity skew low-50 high-230"] = span(found, "{:.2f}")
    listed["feature skew groups-5"] = f"{found[0]:.2f} to {found[-1]:.2f}"
    return listed.get(case)


def bare(model: str) -> str:
    """A model's name without the package's."""
    return model.removeprefix("torchvision:")


def half(low: float | None, high: float | None) -> str:
    """Half of an interval's width."""
    return "" if low is None or high is None else f" ± {(high - low) / 2:.2f}"


def network_of(name: str) -> str:
    """The network in the name of a membership test's row."""
    return name.partition(", n")[0].partition(", sum")[0]


def share_with_ends(rate: Share) -> str:
    return f"{rate.share:.0%} ({rate.interval[0]:.0%} to {rate.interval[1]:.0%})"
