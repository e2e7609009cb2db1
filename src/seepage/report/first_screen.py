"""A report's first screen, beside the verdict: the closest reconstructions, and the system under test."""

from collections.abc import Callable, Sequence

from seepage.audit.row import Case
from seepage.base.words import places_of, plural
from seepage.report.formatting import NO_DATA, defense_words, model_words, training_words
from seepage.report.pictures import Place
from seepage.report.run import RunFolder

MOST_PAIRS = 4
"""Private pictures beside their reconstructions on the first screen: a row of them fits into 400 pixels."""

Best = tuple[Case, str, Place]
"""A case, an attack, and the place of an example of that case."""


def best_examples(run: RunFolder) -> list[Best]:
    """Examples by how close their reconstructions are to the private pictures, each by its best attack.

    Exact copies rank alike, so that these are of as many cases as there are, and not all of the first one; each case
    begins with other examples than the one before, since cases often hold the same. Cases that run beside a defended
    one are no finding, and left out; so are examples that are no pictures, which have no SSIM.
    """
    judged = {case.name: case for case in run.result.cases if not case.control}
    exact_db = run.result.thresholds.exact_db
    best: dict[str, dict[Place, tuple[float, str]]] = {name: {} for name in judged}
    for (name, attack, t, i, metric), value in run.scores.items():
        if metric == "psnr" and value is not None and name in judged:
            similar = run.scores.get((name, attack, t, i, "ssim"))
            if similar is not None and value > best[name].get((t, i), (float("-inf"), ""))[0]:
                best[name][t, i] = (value, attack)
    ranked = list[tuple[float, int, int, Best]]()
    own_share = -(-MOST_PAIRS // len(judged)) if judged else 0
    for order, case in enumerate(judged.values()):
        own = sorted(best[case.name].items())
        first = order * own_share % max(len(own), 1)
        for rank, (place, (psnr, attack)) in enumerate([*own[first:], *own[:first]]):
            ranked.append((-min(psnr, exact_db), rank, order, (case, attack, place)))
    return [example for *_, example in sorted(ranked, key=lambda entry: entry[:3])]


def system_under_test(cases: Sequence[Case], knows: Sequence[str] = ()) -> dict[str, dict[str, list[str]]]:
    """What was audited: each fact in words, to the names of the cases that it is one of.

    Args:
        cases: The cases of a run.
        knows: What the attacker knew in every case.
    """
    facts: dict[str, Callable[[Case], str]] = {
        "Model": lambda case: model_words(case.model, case.model_options, case.parameters),
        "Training": lambda case: training_words(case.history, case.training_steps) or "not known",
        "Data": lambda case: case.data or (NO_DATA if case.skipped is None else "not recorded"),
        "Client": lambda case: case.client or "not known",
        "Batch": lambda case: "size not known" if case.batch_size is None else plural(case.batch_size, "example"),
        "Defense": lambda case: defense_words(case.defense, case.data),
    }
    found = {name: places_of((case.name, said(case)) for case in cases) for name, said in facts.items()}
    return {**found, "Attacker knows": {", ".join(knows): []}} if knows else found
