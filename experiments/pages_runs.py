"""Parts of pages that are made of recipes as shipped, of frontiers, and of studies with a table of their own."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial

from page_parts import Lines, Part, Row, commands, rows_of, span, table


def recipes(study: str) -> Lines:
    """Every attack on every case of recipes as they are shipped."""
    rows = rows_of(study)
    body = []
    for row in rows:
        case = "" if row["cell"] == "cell" else f", {row['cell']}"
        counts = [f"{round(row[key] * row['examples'])} of {row['examples']}" for key in ("recovered", "exact")]
        quality = [f"{row[key]:.1f}" for key in ("psnr_median", "mean_color_psnr", "cpu_seconds")]
        body.append([f"{row['recipe']}{case}", f"`{row['attack']}`", *counts, *quality])
    heads = ["recipe, case", "attack", "recovered", "exact", "median PSNR, dB", "mean color, dB", "cpu_s"]
    return [*table(heads, body), *commands(rows)]


def linear_equations() -> Lines:
    """Examples that come back exactly by network and batch size, a number per batch; beside, who has units alone."""
    rows = rows_of("closed/linear-equations")
    groups: dict[tuple[str, str, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        network = f"{row['depth']} x {row['hidden']}{'' if row['bias'] else ', no bias'}"
        groups[row["data"], network, row["n"]][row["method"]].append(row)
    body = []
    for (data, network, n), methods in groups.items():
        own = methods["linear_equations"]
        alone = "; ".join(", ".join(map(str, row["one_by_layer"])) for row in own)
        cells = [", ".join(f"{row['examples_exact']:.0f}" for row in found) for found in (own, methods["linear"])]
        false = sum(row.get("false_certificates") or 0 for row in own)
        condition = ", ".join(str(row["condition"]) for row in own)
        seconds = span((row["cpu_s"] for row in own), "{:.1f}")
        body.append([data, network, str(n), alone, condition, *cells, str(false), seconds])
    heads = ["data", "network", "n", "of their own, by layer", "condition", "exact", "exact by `linear`"]
    return [*table([*heads, "false certificates", "cpu_s"], body), *commands(rows)]


def tuned(study: str) -> Lines:
    """Values of an option that were tried on other batches, and what the one that was best there scores."""
    rows = rows_of(study)
    body = []
    for row in rows:
        plan = row["tuned"]
        for one in plan["tried"]:
            scored = [f"{row['psnr']:.1f}", f"{row['ssim']:.2f}"] if one["options"] == plan["chosen"] else ["", ""]
            options = ", ".join(f"{name} = {value:g}" for name, value in one["options"].items())
            body.append([row["data"], f"`{row['attack']}`", options, f"{one['value']:.1f}", *scored])
    heads = ["data", "attack", "tried", "dB on the other batch", "dB, scored batches", "SSIM, scored batches"]
    return [*table(heads, body), *commands(rows)]


def attributes() -> Lines:
    """An attribute read off recovered embeddings, beside what the true ones tell and the more frequent answer."""
    rows = rows_of("cpa/attributes")
    keys = ("accuracy", "accuracy_true_embeddings", "more_frequent", "embedding_cosine")
    body = [[row["data"], row["attribute"], str(row["n"]), *(f"{row[key]:.2f}" for key in keys)] for row in rows]
    heads = ["data", "attribute", "n", "read right", "from true embeddings", "more frequent answer", "embedding cosine"]
    return [*table(heads, body), *commands(rows)]


def frontier(study: str) -> Lines:
    """A frontier: a line for each defense, with the best of the attackers who know of nothing and of those who know."""
    rows = rows_of(study)
    groups: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        groups[row["defense"]][row["attacker"]] = row
    body = []
    for defense, found in groups.items():
        plain = found["oblivious"]
        epsilon = "" if plain["epsilon"] is None else f"{plain['epsilon']:.4g}"
        accuracy = "" if plain["accuracy"] is None else f"{plain['accuracy']:.1%}"
        kB = "" if plain["bytes"] is None else f"{plain['bytes'] / 1000:.1f}"
        body.append([defense, accuracy, _found(plain), _found(found.get("knows")), epsilon, kB])
    heads = ["defense", "accuracy", "found", "found, attacker knows", "epsilon", "kB"]
    return [*table(heads, body), *commands(rows)]


def _found(row: Row | None) -> str:
    if row is None:
        return ""
    if row["zero"]:
        return "the rest is zero: nothing to attack"
    if row["recovered"] is None:
        return "not scored"
    best = f", `{row['attack']}`" if row["recovered"] else ""
    return f"{round(row['recovered'])} of {row['examples']}{best}"


def inferring() -> Lines:
    """What was inferred from a difference of weights: a line for each network and its training."""
    rows = rows_of("captured/inferring")
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row["network"], row["trained_steps"]].append(row)
    body = []
    for (network, trained), own in groups.items():
        sizes: Counter[str] = Counter()
        for row in own:
            sizes.update(row["sizes"])
        right = f"{sizes['right']} right, {sizes['wrong']} wrong, {sizes['not told']} not told"
        told = []
        for row in own:
            steps = {int(step): count for step, count in row["found_steps"].items() if step != "not told"}
            cases = sum(row["found_steps"].values())
            values = f"{span(steps)} ({sum(steps.values())} of {cases})" if steps else "not told"
            told.append(values)
        body.append([network, "fresh" if not trained else f"{trained} steps", right, *told])
    steps = list(dict.fromkeys(row["local_steps"] for row in rows))
    heads = ["network", "weights", "batch size, 32 cases", *(f"{k} local step{'s' * (k > 1)}, told as" for k in steps)]
    return [*table(heads, body), *commands(rows)]


def adaptive() -> Lines:
    """Noise that follows the training beside noise that stays, by stage: a line for each, all seeds together."""
    rows = rows_of("defenses/adaptive")
    groups: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[int(row["cell"].partition("-")[2].partition("_")[0]), row["defense"].partition("(")[0]].append(row)
    names, body = {"GaussianNoise": "gaussian_noise", "AdaptiveDP": "adaptive_dp"}, []
    for (stage, defense), own in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[0][1]))):
        noise = [[float(value) for value in re.findall(r"(?:sigma|clip)=([\d.e-]+)", row["defense"])] for row in own]
        found = []
        for use in dict.fromkeys(row["attack"] for row in rows):
            of = [row for row in own if row["attack"] == use]
            found.append(
                f"{sum(round(row['recovered'] * row['examples']) for row in of)} of {sum(r['examples'] for r in of)}"
            )
        sigmas, clips = (span({pair[i] for pair in noise}, "{:.2g}") for i in (0, 1))
        accuracy = span({row["accuracy"] for row in own}, "{:.0%}")
        body.append([str(stage), f"`{names[defense]}`", sigmas, clips, accuracy, *found])
    uses = [f"found, `{use}`" for use in dict.fromkeys(row["attack"] for row in rows)]
    return [*table(["round", "defense", "sigma", "clip", "accuracy", *uses], body), *commands(rows)]


def seeds(study: str, heads: tuple[str, ...], named: Callable[[Row], tuple[str, ...]]) -> Lines:
    """A line for each setting and attack, with all seeds together: the span of their PSNR, and what they recovered."""
    rows = rows_of(study)
    groups: dict[tuple[tuple[str, ...], str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[named(row), row["attack"]].append(row)
    body = []
    for (setting, use), own in groups.items():
        accuracy = span([row["accuracy"] for row in own], "{:.0%}") if own[0]["accuracy"] is not None else ""
        scored = [row for row in own if row["psnr"] is not None]
        if not scored:
            body.append([*setting, accuracy, f"`{use}`", own[0]["outcome"], "", ""])
            continue
        hits = sum(round(row["recovered"] * row["examples"]) for row in scored)
        quality = [span([row[key] for row in scored], "{:.1f}") for key in ("mean_color_psnr", "psnr")]
        body.append([*setting, accuracy, f"`{use}`", *quality, f"{hits} of {sum(row['examples'] for row in scored)}"])
    return [*table([*heads, "accuracy", "attack", "mean color", "PSNR, dB", "recovered"], body), *commands(rows)]


def _stage(row: Row) -> tuple[str, ...]:
    return row["model"], row["cell"].rpartition("-")[2]


def _start(row: Row) -> tuple[str, ...]:
    words = row["model"].removeprefix("torchvision:"), row["model_options"].get("activation", "relu")
    history = row["history"]
    return *words, "pretrained" if history.startswith("weights") else "wide" if history == "wide start" else "default"


def _sparse(row: Row) -> tuple[str, ...]:
    return row["model_options"].get("activation", "relu"), row["cell"]


PARTS: dict[str, Part] = {
    "closed recipes": Part("closed-forms.md", partial(recipes, "closed/recipes")),
    "closed linear-equations": Part("closed-forms.md", linear_equations),
    "cpa attributes": Part("cpa.md", attributes),
    "cpa tuned": Part("cpa.md", partial(tuned, "cpa/tuned")),
    "generative recipes": Part("generative.md", partial(recipes, "generative/recipes")),
    "frontier": Part("frontier.md", partial(frontier, "defenses/frontier")),
    "known": Part("defenses.md", partial(frontier, "defenses/known")),
    "adaptive": Part("defenses.md", adaptive),
    "long stages": Part("federation.md", partial(seeds, "federation/long-stages", ("network", "round"), _stage)),
    "wide starts": Part(
        "federation.md", partial(seeds, "federation/starts", ("network", "activation", "start"), _start)
    ),
    "sparse": Part("defenses.md", partial(seeds, "defenses/sparse", ("activation", "attacker"), _sparse)),
    "inferring": Part("captured.md", inferring),
}
