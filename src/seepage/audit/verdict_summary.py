"""The four parts of a verdict: reconstruction, membership inference, upper bound, empirical epsilon.

Each part states the worst of all cases with its interval, or that it was not tried and how to ask for it.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from seepage.audit.findings import worst
from seepage.audit.result_rows import open_membership, tells_members
from seepage.audit.row import BoundRow, Case, EpsilonRow, MembershipRow, Result, Row, SummaryName, SummaryPart
from seepage.base.schema import Share
from seepage.base.words import plural


def verdict_summary(result: Result, asked: Collection[str] = (), *, captured: bool = False) -> list[SummaryPart]:
    """All parts of a run, in the order in which they are shown.

    Args:
        result: The result, apart from its verdict.
        asked: Which of `membership` and `epsilon` the recipe asks for in any case.
        captured: Whether the updates were recorded elsewhere, so that no option of an audit helps.
    """
    headings, cases = result.titles, result.cases
    untested = next((case.membership_skipped for case in cases if case.membership_skipped), "no case could be tested")
    doubtful = any(case.inconclusive is not None for case in cases)
    found = [
        reconstructed(result.judged_rows, headings, result.judged),
        _asked(members_identified(result.judged_membership, headings), "membership" in asked, untested),
        upper_bound(result.bounds, headings),
        _asked(empirical_epsilon(result.epsilons, headings), "epsilon" in asked, NO_DEFENSE),
    ]
    if doubtful and found[0].value == 0:
        found[0] = found[0].model_copy(update={"words": f"inconclusive: {found[0].words}"})
    if not captured:
        return found
    words = [(part, part.words.rpartition("ask with ")[2]) for part in found]
    return [
        part.model_copy(update={"words": f"not tried: ask with {ELSEWHERE[option]}"}) if option in ELSEWHERE else part
        for part, option in words
    ]


NO_ATTACK = ", by any attack in any case"
"""Behind a count of nothing."""

ELSEWHERE = {
    "--membership": "seepage attack OBSERVED --candidates FILE --public FILE",
    "--bounds": "seepage audit --bounds on data of your own",
    "--prove": "seepage prove",
}
"""What asks for a part of the verdict on an update that was captured, in place of an option of an audit."""

NO_DEFENSE = "no client uses a defense, so updates are sent as they are and no epsilon holds"


def _asked(part: SummaryPart, asked: bool, why: str) -> SummaryPart:
    """A part that was asked for and could not be had says why."""
    if part.tried or not asked or "ask with" not in part.words:
        return part
    return part.model_copy(update={"words": f"asked for, but not available: {why}"})


def reconstructed(rows: Sequence[Row], headings: Mapping[str, str], cases: Sequence[Case] = ()) -> SummaryPart:
    """The largest share of private examples that an attack reconstructed, or that is revealed in closed form.

    Exact ones count where there are any, else recognizable ones. The interval is Clopper and Pearson's, which takes
    the examples for independent; those of one batch are not quite.

    >>> row = Row(case="a", attack="x", outcome="exact", examples=4, scores={"exact": {"mean": 1.0}, "psnr":
    ...     {"mean": 99.0}, "recovered": {"mean": 1.0}})
    >>> reconstructed([row], {"a": "net"}).words
    '4 of 4 examples exactly [40 %, 100 %], by x on net'
    """
    part, given = _attacked(rows, headings), worst(cases) if cases else None
    exact = max((row.mean("exact") or 0.0 for row in rows if row.scored), default=0.0)
    proved = not any(row.scored for row in rows) and any(row.certified_examples for row in rows)
    if given is None or given.closed_share <= exact or proved:
        return part
    away, of = given.closed_form
    # Of an unknown number there is no interval, but where the truth that guesses were scored by says it.
    there = [row.examples or 0 for row in rows if row.case == given.name and row.scored and not given.counted]
    found = Share.count(away, max([of, *there]))
    if there and found.share <= exact:
        return part
    more = not (given.counted or there)
    size = f"{found.of} or more examples exactly" if more else f"{found.of} examples exactly {found.range}"
    closed = f"{found.hits} of {size}, as the network was given them, in closed form, on {given.heading}"
    words = f"{closed}; by attacks: {part.words.removesuffix(NO_ATTACK)}"
    return _part("reconstruction", words, given.name, found.share, *found.interval)


def _attacked(rows: Sequence[Row], headings: Mapping[str, str]) -> SummaryPart:
    """The part on examples that the attacks reconstructed."""
    scored = [row for row in rows if row.scored and row.examples]
    best = worst(rows) if rows else None
    if not scored and best is not None and best.certificate:
        lacking = "; no truth at hand" if best.certified_examples else ""  # which no score of features would need
        words = f"{best.certificate}, by {best.attack} on {headings[best.case]}{lacking}"
        return _part("reconstruction", words, best.case)
    if not scored:
        why = "no guess could be scored" if any(row.gave_result for row in rows) else "no attack gave a result"
        near = min((row for row in rows if row.misfit is not None), key=lambda row: row.misfit or 0.0, default=None)
        fits = "" if near is None else f"; {near.attack}'s guesses: {near.misfit_words}"
        return SummaryPart(name="reconstruction", tried=False, words=f"not known: {why}{fits}")
    most = worst(scored)
    exact = bool(most.mean("exact"))
    assert most.examples is not None
    found = Share.count(most.count("exact" if exact else "recovered") or 0, most.examples)
    how = "exactly" if exact else "recognizably"
    by = f", by {most.attack} on {headings[most.case]}" if found.hits else NO_ATTACK
    named = [row for row in rows if row.identified_tokens]
    tokens = worst(named) if named else None
    beside = "" if tokens is None else f"; {tokens.certificate}, by {tokens.attack} on {headings[tokens.case]}"
    words = f"{found.hits} of {found.of} examples {how} {found.range}{by}{beside}"
    return _part("reconstruction", words, most.case, found.share, *found.interval)


def members_identified(members: Sequence[MembershipRow], headings: Mapping[str, str]) -> SummaryPart:
    """The largest share of members that a membership test identified.

    >>> members_identified([], {}).words
    'not tried: ask with --membership'
    """
    judged = [row for row in members if row.members_identified is not None]
    if not judged:
        lacking = next((row.reason for row in members if row.reason), None)
        return SummaryPart(
            name="membership_inference", tried=False, words=f"not tried: {lacking or 'ask with --membership'}"
        )
    most, how = worst([row for row in judged if row.tells] or judged), ""
    hit = most.members_identified
    assert hit is not None
    area = f"AUC {most.auc or 0:.2f}, [{most.auc_low or 0:.2f}, {most.auc_high or 1:.2f}]"
    if not tells_members(judged):
        doubt = "too few to distinguish" if open_membership(judged) else "not distinguished"
        how = f"{doubt} from chance ({area}): "
    elif most.tells and not most.identifies:
        how = f"distinguished on the whole ({area}): "
    elif not most.tells:
        own = [row.members_identified for row in judged if row.test == most.test and row.members_identified]
        hits, of = sum(one.hits for one in own), sum(one.of for one in own)
        how = f"{hits} of {of} members over all cases together; the most in one, "
    words = f"{how}{most.words}, by {most.test} on {headings[most.case]}"
    return _part("membership_inference", words, most.case, hit.share, *hit.interval)


def upper_bound(bounds: Sequence[BoundRow], headings: Mapping[str, str]) -> SummaryPart:
    """The bounds of the case where they forbid least.

    >>> upper_bound([], {}).words
    'not tried: ask with --bounds'
    >>> upper_bound([BoundRow(case="a", measure="tpr", value=1.0, words="members identified: not bounded")], {}).words
    'no bound: the limits that were computed rule nothing out, exact copies included'
    """
    if not bounds:
        return SummaryPart(name="upper_bound", tried=False, words="not tried: ask with --bounds")
    # A bound that says "not bounded" forbids nothing.
    telling = [row for row in bounds if row.value is not None and not row.words.endswith("not bounded")]
    if not telling:
        why = next((row.reason for row in bounds if row.reason), NOTHING_RULED_OUT)
        return SummaryPart(name="upper_bound", tried=False, words=f"no bound: {why}")
    first = next((kind for kind in BOUND_ORDER if any(row.measure == kind for row in telling)), telling[0].measure)
    loosest = max((row for row in telling if row.measure == first), key=lambda row: row.value or 0.0)
    beside = [row.words for row in telling if row.case == loosest.case and row is not loosest and row.measure != "auc"]
    bare = len({row.case for row in bounds} - {row.case for row in telling})
    less = f"; no bound in {bare} of {len({row.case for row in bounds})} such cases" if bare else ""
    words = f"{'; '.join([loosest.words, *beside])}, by one update, on {headings[loosest.case]}{less}"
    return _part("upper_bound", words, loosest.case, loosest.value, loosest.low, loosest.high)


NOTHING_RULED_OUT = "the limits that were computed rule nothing out, exact copies included"
"""Said where bounds were asked for and each of them is so high that every attack stays below it."""

BOUND_ORDER = ("exact_share", "tpr")
"""Bounds in the order in which they are printed."""


TOO_FEW = ", which so few calls could not do"


def empirical_epsilon(epsilons: Sequence[EpsilonRow], headings: Mapping[str, str]) -> SummaryPart:
    """The defense whose claim is contradicted, or else the least private one.

    >>> empirical_epsilon([], {}).words
    'not tried: ask with --prove'
    """
    if not epsilons:
        return SummaryPart(name="empirical_epsilon", tried=False, words="not tried: ask with --prove")
    judged = [row for row in epsilons if row.measured is not None]
    if not judged:
        return SummaryPart(name="empirical_epsilon", tried=False, words=f"not measured: {epsilons[0].reason}")
    most = worst(judged)
    held = [
        f"{name} {claimed:.3g} not contradicted{TOO_FEW if claimed >= (most.ceiling or inf) else ''}"
        for name, claimed in (("stated", most.stated), ("computed", most.computed))
        if claimed is not None and not any(name in against for against in most.contradicted)
    ]
    verdict = "; ".join([*most.contradicted, *held]) or "nothing is claimed"
    over = f"over {plural(most.rounds or 0, 'round')} at delta {most.delta:g}"
    words = f"{verdict}; {most.words}; {over}, on {headings[most.case]}"
    return _part("empirical_epsilon", words, most.case, most.measured, most.measured, most.fitted_high)


def _part(
    name: SummaryName,
    words: str,
    case: str,
    value: float | None = None,
    low: float | None = None,
    high: float | None = None,
) -> SummaryPart:
    """A part that has a finding."""
    return SummaryPart(name=name, tried=True, words=words, case=case, value=value, low=low, high=high)
