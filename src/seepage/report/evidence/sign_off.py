"""What may be signed after a run: the answer to the last question of whoever files its annex."""

from seepage.audit.result_rows import open_membership, tells_members
from seepage.audit.row import Result
from seepage.report.page import STRONG

ASK = {"membership_inference": "--membership", "upper_bound": "--bounds", "empirical_epsilon": "--prove"}
"""The parts of a verdict that an audit may lack, and the option that asks for each."""


def what_to_sign(result: Result) -> str:
    """One or two sentences, by the parts of the verdict; see "What to sign" in docs/concepts/four-questions.md."""
    parts = {part.name: part for part in result.summary}
    if any(row.contradicted for row in result.epsilons):
        return (
            "Nothing: a measurement contradicts the epsilon that is claimed for the defense. Correct the defense or "
            "the claim, and audit again."
        )
    if result.verdict_level in STRONG or any(row.identified_tokens for row in result.judged_rows):
        return (
            "Not that these updates may be sent: they reveal private data. Change the defense, the batch or the model, "
            "and audit again."
        )
    tests = result.judged_membership
    if tells_members(tests):
        return (
            "Not that these updates may be sent: they reveal who is in the data. Change the defense, the batch or the "
            "model, and audit again."
        )
    if result.verdict_level not in ("nothing", "partial"):
        return "Nothing yet: this run does not decide whether private data are revealed, for the reason given above."
    lacking = [
        f"{part.title} ({ASK[name]})" if part.words.startswith("not tried") else part.title
        for name, part in parts.items()
        if name in ASK and not part.tried
    ]
    bare = [row for row in result.membership if row not in tests and row.auc is not None]
    if open_membership(tests):
        lacking.append("membership (too few to tell: raise batch.count)")
    elif bare and not tells_members(bare):
        lacking.append("membership (no test works without the defense either)")
    more = f" Not known from this run: {', '.join(lacking)}." if lacking else ""
    if any(case.kind in (None, "pictures") for case in result.cases):
        more += " Look at the pictures of report.html first: people may recognize what these counts leave out."
    bound = parts.get("upper_bound")
    if bound is not None and bound.tried:
        return (
            "The upper bound above, together with what it rests on, for this model at this stage, this data and these "
            f"settings.{more}"
        )
    return (
        "Only that these attacks, with these steps, recovered nothing. That is no ground to call the updates safe, "
        f"since a better attack may come and no upper bound is known.{more}"
    )
