"""A run in plain words, from its rows."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from seepage.audit.case import Kind, shared_parts
from seepage.audit.findings import inconclusive, worst
from seepage.audit.row import (
    Case,
    Diagnostic,
    EpsilonRow,
    MembershipRow,
    Outcome,
    Result,
    Row,
    counted_features,
    share_words,
)
from seepage.audit.verdict_summary import verdict_summary
from seepage.base.units import in_words
from seepage.base.words import places_of, plural

LISTED_NAMES = 3
"""Largest number of cases or attacks that a sentence names one by one; more are counted."""


def with_verdict(
    found: Result, *, own_code: bool = False, asked: Collection[str] = (), captured: bool = False
) -> Result:
    """A result with its verdict and the four parts of it, and why what was recovered nowhere says nothing of a case.

    Args:
        found: The result without them.
        own_code: Whether scoring the run later has to execute third-party code.
        asked: Which of `membership` and `epsilon` the recipe asks for in any case.
        captured: Whether the updates were recorded elsewhere.
    """
    doubtful = inconclusive(found.rows, found.cases, found.warnings)
    cases = [case.model_copy(update={"inconclusive": doubtful.get(case.name)}) for case in found.cases]
    found = found.model_copy(update={"cases": cases})
    level, words = verdict(found.rows, cases, found.warnings, own_code=own_code)
    said = [words, named_members(found.membership, found.judged)]
    if level not in ("exact", "recognizable", "certified") and any(row.tells for row in found.membership):
        said.reverse()  # what was found comes first
    first = [contradicted(found.epsilons, cases), false_certificates(found.judged_rows, cases)]
    words = " ".join(filter(None, (*first, *said, stopped_words(found.judged_rows))))
    summary = verdict_summary(found, asked, captured=captured)
    return found.model_copy(update={"verdict": words, "verdict_level": level, "summary": summary})


def stopped_words(rows: Sequence[Row]) -> str:
    """What the deadline left open, in a sentence; empty where every attack came to its own end."""
    going = list(dict.fromkeys(row.attack for row in rows if row.status == "interrupted"))
    none = [
        name for name in dict.fromkeys(row.attack for row in rows if row.status == "not_tried") if name not in going
    ]
    parts = [
        f"{', '.join(going)} {'was' if len(going) == 1 else 'were'} still improving" if going else "",
        f"{', '.join(none)} had no guess yet" if none else "",
    ]
    left = " and ".join(filter(None, parts))
    return f"Stopped at the deadline: {left}; the same command goes on from there." if left else ""


def verdict(
    rows: Sequence[Row], cases: Sequence[Case], flags: Sequence[Diagnostic] = (), *, own_code: bool = False
) -> tuple[str, str]:
    """The run in plain words: `(level, text)`.

    Levels: `exact`, `recognizable`, `partial`, `nothing`, `certified`, `inconclusive` and `unscored` (see `Result`).
    Cases that only show that the attacks work are no finding, and are reported separately.

    Args:
        rows: All rows.
        cases: All cases.
        flags: The diagnostics of the run.
        own_code: Whether scoring the run later has to execute third-party code, which requires `--trust`.
    """
    judged = [case for case in cases if not case.control]
    named = {case.name: case for case in judged}
    doubtful = inconclusive(rows, cases, flags)
    beside = _without_defense(rows, cases)
    every, rows = rows, [row for row in rows if row.case in named]
    others, tokens = [row for row in rows if row.space != "token"], identified_tokens_words(rows, judged)
    score = f"seepage report RUN --truth FOLDER{' --trust' if own_code else ''}"
    if tokens and not any(row.gave_result for row in others):
        level, text = "unscored", _silent(rows, named)  # of cases, not of attacks that do not apply
    else:
        level, text = _found(others, named, score, doubtful)
    if tokens:
        leaks = level in ("exact", "recognizable", "certified")
        text = " ".join(filter(None, (text, tokens) if leaks else (tokens, text)))
        level = level if leaks else "partial"
    level, text = _with_closed_forms(level, text, rows, judged, _doubt(doubtful, named))
    return level, " ".join(filter(None, (text, _unaware(every, named), beside)))


def _with_closed_forms(
    level: str, text: str, rows: Sequence[Row], cases: Sequence[Case], doubt: str
) -> tuple[str, str]:
    """Level and text with what is revealed exactly where no attack of this run shows it: a proof, whoever looks."""
    shown = {row.case for row in rows if row.mean("exact") or row.certified_examples}
    given = [case for case in cases if case.exposed_examples and case.name not in shown]
    if not given:
        return level, text
    most = worst(given)
    away, of = most.closed_form
    whole = f"{away} of its {of} examples" if of > 1 else "its one example"
    if "batch size" in (most.inferred or {}):
        whole = f"{away} of its {of} or more examples"
    more = f" Examples are revealed in {_cases(len(given) - 1, 'further')}, too." if len(given) > 1 else ""
    said = f"In closed form, with no attack, the first update of {most.heading} reveals {whole} exactly.{more}"
    if level in ("exact", "certified"):
        return level, f"{text} {said}"
    if level == "recognizable":
        return "certified", f"{text} {said}"
    none = "The attacks of this run recovered none of them" if any(row.gave_result for row in rows) else ""
    advice = "; an attack that reads closed forms, such as linear, shows them."
    beside = f" INCONCLUSIVE: {doubt}" if doubt else ""  # of other cases
    return (
        "certified",
        f"LEAKS, BY ITS OWN PROOF. {said} {none or 'No attack of this run gave a result'}{advice}{beside}",
    )


def _without_defense(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    """A sentence on the best attack in the cases without the defense; empty where none was run or none leaks.

    >>> row = Row(case="b", attack="x", outcome="exact", examples=4, scores={"exact": {"mean": 1.0}, "psnr":
    ...     {"mean": 99.0}, "recovered": {"mean": 1.0}})
    >>> _without_defense([row], [Case(name="a", undefended="b"), Case(name="b", control=True)])
    'Without the defense x reconstructed 4 of 4 examples exactly.'
    """
    controls = [case for case in cases if case.control]
    scored = [row for row in rows if row.scored and row.case in {case.name for case in controls}]
    best = [worst(own) for case in controls if (own := [row for row in scored if row.case == case.name])]
    leaking = [row for row in best if row.leaks]
    if not leaking:
        return ""  # another sentence says why nothing was recovered
    most = worst(leaking)
    if len(controls) == 1:
        return f"Without the defense {most.attack} reconstructed {_share(most)}."
    return (
        f"Without the defense examples can be reconstructed in {len(leaking)} of {_cases(len(best))}: "
        f"{most.attack} reconstructed {_share(most)} at the most."
    )


def _found(rows: Sequence[Row], cases: Mapping[str, Case], score: str, doubtful: Mapping[str, str]) -> tuple[str, str]:
    """Level and sentences about what the attacks found.

    Args:
        rows: Rows of these cases.
        cases: The cases.
        score: The command that compares what was found with a truth.
        doubtful: Name of each case in which the failure of all attacks is no evidence of safety, to the reason.
    """
    scored = [row for row in rows if row.scored]
    silent = _silent(rows, cases)
    kinds = list(dict.fromkeys(cases[row.case].kind or "pictures" for row in rows if row.gave_result))
    if not any(row.gave_result for row in rows):
        return "unscored", f"NO RESULT. {silent}"
    spoke = {row.outcome for row in rows if row.gave_result}
    if not scored and spoke == {Outcome.MIXTURE_ONLY}:
        return "unscored", (
            "MIXTURE ONLY. What an inner layer read of private examples was found mixed, and not separated: no guess "
            "is proved to be of one example, and none is shown to be near one. That is no proof of safety."
        )
    if not scored and spoke <= {Outcome.FEATURES_ONLY, Outcome.MIXTURE_ONLY}:
        return "unscored", (
            "FEATURES ONLY. Inner features of private examples were reconstructed, and no attack made examples of them"
            f"{'; cpa_fia goes on from there to images' * ('pictures' in kinds)}.{_features(rows)}"
        )
    if not scored and any(row.certified_examples for row in rows):
        return "certified", (
            f"LEAKS, BY ITS OWN PROOF. {_unscored(rows, cases)} A certified guess passes a check "
            f"that only a private example passes. No truth was at hand; whoever has it can check: {score}"
        )
    if not scored:
        return "unscored", (
            f"NOT SCORED. Look at the {' and the '.join(kinds)}: {_unscored(rows, cases)}{_features(rows)} The truth "
            f"is not at hand to say how close that is, and nothing here is a proof of safety; whoever has it "
            f"can: {score}"
        )
    best = {case: worst(own) for case in cases if (own := [row for row in scored if row.case == case])}
    leaking = [row for row in best.values() if row.leaks]
    if not leaking:
        partial = any(row.outcome is Outcome.PARTIAL for row in scored)
        doubt = _doubt(doubtful, cases)
        level = "inconclusive" if doubt else "partial" if partial else "nothing"
        return level, f"{_quiet_verdict(best, partial, _nearly(scored), doubt)} {silent}".strip()
    most = worst(leaking)
    level = "exact" if most.mean("exact") else "recognizable"
    parts = [
        f"LEAKS. Private examples can be reconstructed in {len(leaking)} of {_cases(len(best))}.",
        f"Worst: {cases[most.case].heading}, where the attack {most.attack} reconstructed {_share(most)}.",
        *_closeness(most),
        *_targets(most),
        f"The attacker used {_knowledge(most)}.",
        *_fitted(most),
    ]
    quiet = [row for row in best.values() if not row.leaks]
    if quiet:
        parts.append(
            f"In {_named([cases[row.case] for row in quiet], cases)} these attacks, with the steps they were given, "
            "recovered no example. That is no proof of safety."
        )
        parts += [f"INCONCLUSIVE: {doubt}"] if (doubt := _doubt(doubtful, cases)) else []
    return level, " ".join([*parts, silent]).strip()


def _unaware(rows: Sequence[Row], cases: Mapping[str, Case]) -> str:
    """Sentence that no attacker knew of the defense; empty if some did, or if there is no defense."""
    known = {row.case for row in rows if "defense" in row.side_information}
    spoke = {row.case for row in rows if row.gave_result}
    defended = {name for name, case in cases.items() if case.defense}
    unaware = [case for case in cases if case in defended & spoke - known]
    if not unaware:
        return ""
    where = "" if len(unaware) == len(cases) else f"In {_named([cases[case] for case in unaware], cases)} "
    return f"{where}{'the' if where else 'The'} attackers did not know of the defense."


def _doubt(doubtful: Mapping[str, str], cases: Mapping[str, Case]) -> str:
    """Sentences on why the failure of the attacks is no evidence of safety, each reason once with its cases."""
    return " ".join(
        (
            f"{why[0].upper()}{why[1:]}"
            if len(names) == len(cases)
            else f"In {_named([cases[n] for n in names], cases)} {why}"
        )
        + "."
        for why, names in places_of(doubtful.items()).items()
    )


def _unscored(rows: Sequence[Row], cases: Mapping[str, Case]) -> str:
    """Sentence on the returned guesses of a run without a truth, from what the attacks report themselves."""
    back = [row for row in rows if row.returned and row.space != "feature"]
    if not back:
        return "no attack returned any guess."
    best = worst(back)
    of_them = "it" if best.returned == 1 else f"{best.certified_examples} of them"
    sure = (
        f" and certifies {of_them} without any truth" if best.certified_examples else ", none of which it can certify"
    )
    guesses = plural(best.returned or 0, "guess")
    return f"{best.attack} returned {guesses} on {cases[best.case].heading}{sure}.{_misfit(best)}{_beside(best, back)}"


def _beside(best: Row, back: Sequence[Row]) -> str:
    """Sentence on other guesses of the same update, where none is certified and no figure says which are nearest."""
    others = [row for row in back if row is not best and row.case == best.case]
    if best.certified_examples or best.fits or not others:
        return ""
    named = [f"{row.attack} ({row.misfit_words or 'update not known'})" for row in others]
    return f" So did {' and '.join(named)}; an update that is nearer need not be of a guess that is nearer."


def _misfit(row: Row) -> str:
    """Sentence on whether the guesses give the update that was sent; empty where that is not known."""
    if row.misfit is None:
        return ""
    one = row.returned == 1
    again = f" Recomputing the update from {'this guess' if one else 'these guesses'} gives"
    if row.fits:
        alike = "" if row.certified_examples else ", which other inputs may give too"
        off = share_words(row.misfit)
        return f"{again} the one that was sent, or a multiple of it, within {off} of its size{alike}."
    differs = f"{again} one that differs from the one that was sent by {share_words(row.misfit)} of its size"
    if row.certified_examples:
        return (
            f"{differs}: that was changed (noise, rounding), or a setting of the client, stated or inferred, is wrong."
        )
    copies = "it is no exact copy" if one else "they are no exact copies"
    return (
        f"{differs}: {copies}, unless the update was changed (noise, rounding) or a setting of the "
        "client, stated or inferred, is wrong."
    )


def _features(rows: Sequence[Row]) -> str:
    """Sentence on certified inner features, which are no certified examples; empty where there are none."""
    best = worst(rows)
    if not best.certified_features:
        return ""
    return f" Of {best.attack}: {counted_features(best.certified_features)}."


def _silent(rows: Sequence[Row], cases: Mapping[str, Case]) -> str:
    """Sentences about the cases for which no attack gave a result; empty if there are none."""
    spoke = {row.case for row in rows if row.gave_result}
    zero = {row.case for row in rows if row.outcome is Outcome.ZERO_UPDATE} - spoke
    mute = [case for name, case in cases.items() if name not in spoke | zero]
    parts = []
    if mute:
        named = _named(mute, cases, "further" if spoke else "audited")
        parts.append(
            f"In {named} no attack gave a result: {_causes(rows, mute)}. "
            "That is no proof of safety either; the reasons are listed with the results."
        )
    if zero:
        named = _named([case for name, case in cases.items() if name in zero], cases)
        parts.append(
            f"In {named} the update is zero everywhere: "
            "it holds nothing to attack, but the update of another round may."
        )
    return " ".join(parts)


def _causes(rows: Sequence[Row], mute: Sequence[Case]) -> str:
    """Reasons why cases have no result, each once."""
    found = dict[str, None]()
    for case in mute:
        own = [row for row in rows if row.case == case.name]
        if case.skipped or any(row.outcome is Outcome.NOT_RECORDED for row in own):
            found["no update could be made"] = None
        elif any(row.status == "error" for row in own):
            found["those that apply failed"] = None
        else:
            found["none applies"] = None
    return ", or ".join(found)


def _cases(count: int, which: str = "audited") -> str:
    return plural(count, f"{which} case")


def _fitted(row: Row) -> list[str]:
    return [f"Its score fitted {row.fitted} with the truth, which an attacker could not."] if row.fitted else []


def _knowledge(row: Row) -> str:
    shown = (
        "; the protocol shows the indices of each batch" if "indices" in {*row.known} - {*row.side_information} else ""
    )
    extra = f"extra knowledge: {', '.join(row.side_information)}" if row.side_information else "no extra knowledge"
    return extra + shown


def _share(row: Row) -> str:
    kind, share = ("exactly", "exact") if row.mean("exact") else ("recognizably", "recovered")
    return f"{row.count(share)} of {row.examples} examples {kind}"


def _closeness(row: Row) -> list[str]:
    """A sentence with the median PSNR; values are capped at 150 dB, which would distort a mean. Of text, the ROUGE."""
    if row.of_text:
        tokens, pairs = (row.mean(name) or 0.0 for name in ("rouge_1", "rouge_2"))
        shares = f"{tokens:.0%} of the tokens and {pairs:.0%} of their neighboring pairs"
        return [f"{shares} were reconstructed (ROUGE-1, ROUGE-2)."]
    median, flat = row.median("psnr"), row.value("mean_color_psnr")
    typical = (row.baselines.get("typical") or {}).get("psnr")
    if median is None:
        return []
    pictures = _kind(row) == "pictures"
    guess = "guessing the mean color" if pictures else "guessing the example's own mean"
    beside = "" if flat is None else f"; {guess} scores {flat:.0f} dB"
    beside = beside if typical is None else f"; the mean of other rows scores {typical:.0f} dB"
    what = f"Median PSNR of the {row.examples} examples" if row.examples != 1 else "PSNR"
    return [f"{what}: {median:.0f} dB{beside}."]


def _targets(row: Row) -> list[str]:
    """A sentence on the values, or maps of classes, that were reconstructed with the examples."""
    if "labels" in row.side_information:
        return []  # it was given them
    error, floor = row.mean("target_error"), row.baselines.get("mean_target", {}).get("target_error")
    if error is not None:
        beside = "" if floor is None else f"; the mean target is off by {in_words(floor)}"
        return [f"Its targets are off by {in_words(error)} in their own unit{beside}."]
    share, commonest = row.mean("label_accuracy"), row.baselines.get("commonest", {}).get("label")
    if share is not None and commonest is not None:
        return [
            f"{share:.0%} of the pixels of its maps are of the right class; one class everywhere has {commonest:.0%}."
        ]
    return []


def _named(some: Sequence[Case], cases: Mapping[str, Case], which: str = "audited") -> str:
    """The number of cases with their titles; for many cases, with the parts that only their titles share."""
    if len(some) <= LISTED_NAMES:
        return f"{_cases(len(some), which)} ({'; '.join(case.heading for case in some)})"
    everywhere = shared_parts(cases.values())
    common = ", ".join(part for part in shared_parts(some) if part not in everywhere)
    return _cases(len(some), which) + (f" (all of them: {common})" if common else "")


def _kind(row: Row) -> Kind:
    """Kind of the examples of a scored row."""
    return "texts" if row.of_text else "pictures" if "ssim" in row.scores else "records"


_TRACES: Mapping[Kind, str] = {
    "pictures": "come closer than a flat color; look at the pictures",
    "records": "come closer than the means that need no update; look at the records",
    "texts": "hold more than half of the tokens of a private text; look at the texts",
}
"""What guesses do that are no copies, and no nothing either."""


NEARLY = 0.25
"""Likeness of half of an attack's guesses from which a verdict of nothing recovered asks for a look; unrelated guesses
are at 0 (docs/concepts/verdict.md)."""


def _nearly(rows: Sequence[Row]) -> str:
    """A sentence on the guesses that are most like their examples, where these are no strangers; else empty."""
    found = [(row.median("likeness") or 0.0, row) for row in rows]
    likeness, row = max(found, key=lambda one: one[0], default=(0.0, None))
    if row is None or likeness < NEARLY:
        return ""
    return (
        f" Look at the pictures of {row.attack} all the same: half of them have a likeness of {likeness:.2f} or more."
    )


def _quiet_verdict(best: Mapping[str, Row], partial: bool, near: str, doubt: str) -> str:
    """The verdict where nothing was recovered.

    Args:
        best: The best row of each case.
        partial: Whether guesses hold more than nothing.
        near: A sentence on guesses that nearly count as recovered; may be empty.
        doubt: The reasons that make it inconclusive; may be empty.
    """
    if partial:
        signs = dict.fromkeys(_TRACES[_kind(row)] for row in best.values())
        head = f"In {_cases(len(best))} no example counts as recovered, but some guesses {', or '.join(signs)}."
        more = "A stronger attack or more steps may recover more."
    else:
        head = f"In {_cases(len(best))} these attacks, with the steps they were given, recovered nothing."
        head += near
        more = "That is no proof of safety: a stronger attack, more steps or an earlier round may recover more."
    if doubt:
        return f"INCONCLUSIVE. {doubt} {head} {more}"
    return f"{'PARTIAL' if partial else 'NOTHING RECOGNIZABLE'}. {head} {more}"


def false_certificates(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    r"""Sentence on guesses that an attack certified and that are no private example; empty where there are none.

    >>> row = Row(case="a", attack="x", outcome="partly_exact", certified={"n": 3, "wrong": 1})
    >>> print(false_certificates([row], [Case(name="a", title="net", data="digits")]).replace(": ", ":\n"))
    FALSE CERTIFICATE. Of 3 guesses that x certified on net, 1 is no exact copy of a private example:
    do not rely on its certificates here.
    """
    named, parts = {case.name: case for case in cases}, []
    for row in rows:
        given = row.certified
        if given is None or not given.wrong:
            continue
        # Somebody who brings a truth may bring that of another update; an audit has its own.
        brought = named[row.case].data is None and given.wrong == given.n
        other = " Or the truth is that of another update: then the scores say nothing." if brought else ""
        parts.append(
            f"Of {plural(given.n, 'guess')} that {row.attack} certified on {named[row.case].heading}, {given.wrong} "
            f"{_no_copies(row, given.wrong)}: do not rely on its certificates here."
            f"{_passed_over(rows, row)}{other}"
        )
    more = f" Nor on {len(parts) - LISTED_NAMES} more rows." if len(parts) > LISTED_NAMES else ""
    return f"FALSE CERTIFICATE. {' '.join(parts[:LISTED_NAMES])}{more}" if parts else ""


def _no_copies(row: Row, wrong: int) -> str:
    if row.space == "token":
        return "is no token of the texts" if wrong == 1 else "are no tokens of the texts"
    return f"{'is no exact copy' if wrong == 1 else 'are no exact copies'} of a private example"


def _passed_over(rows: Sequence[Row], false: Row) -> str:
    """A clause on attacks that were not run for the sake of certificates, some of which are false."""
    names = [row.attack for row in rows if row.case == false.case and row.outcome is Outcome.NOT_NEEDED]
    return f" For its sake {' and '.join(names)} did not run: run again with --all." if names else ""


def named_members(rows: Sequence[MembershipRow], cases: Sequence[Case]) -> str:
    r"""Sentences on membership inference; empty where no membership test was asked for.

    >>> rate = {"hits": 7, "of": 8, "low": 0.47, "high": 1.0}
    >>> row = MembershipRow(case="a", test="matched_filter", members=8, others=8, auc=0.98, auc_low=0.9, level=0.01,
    ...     members_identified=rate, others_identified=rate | {"hits": 0})
    >>> print(named_members([row], [Case(name="a", title="net")]).replace("; ", ";\n"))
    MEMBERS IDENTIFIED. matched_filter distinguishes members of the batch from others in 1 audited case;
    on net it identifies 7 of 8 members and 0 of 8 others at a false positive rate of 1 % (AUC 0.98).
    """
    named = {case.name: case for case in cases}
    lacking = [case.heading for case in cases if case.membership_skipped]
    more = f" and {len(lacking) - LISTED_NAMES} more" if len(lacking) > LISTED_NAMES else ""
    where = f"{'; '.join(lacking[:LISTED_NAMES])}{more}"
    missing = f"Membership was not tested on {where}: see the report." if lacking else ""
    judged = [row for row in rows if row.auc is not None]
    if not judged:
        silent = "No membership test gave a result; the reasons are listed with the results." if rows else ""
        return " ".join(filter(None, (silent, missing)))
    telling = [row for row in judged if row.tells]
    tested = {row.case for row in judged}
    if not telling:
        return (
            f"NO MEMBERS IDENTIFIED. In {_cases(len(tested))} no membership test did better than chance. "
            f"That is no proof that nobody can be identified. {missing}"
        ).strip()
    best = worst(telling)
    hit, false = best.members_identified, best.others_identified
    assert hit is not None
    assert false is not None
    assert best.level is not None
    leaking, where = len({row.case for row in telling}), _cases(len(tested))
    return (
        f"MEMBERS IDENTIFIED. {best.test} distinguishes members of the batch from others in "
        f"{where if leaking == len(tested) else f'{leaking} of {where}'}; on {named[best.case].heading} it identifies "
        f"{hit.hits} of {hit.of} members and {false.hits} of {false.of} others at a false positive rate of "
        f"{100 * best.level:g} % (AUC {best.auc:.2f}). {missing}"
    ).strip()


def identified_tokens_words(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    r"""Sentences on the distinct tokens of the texts that were identified; empty where none were.

    >>> share = {"mean": 0.99, "low": 0.95, "high": 0.998, "n": 200}
    >>> row = Row(case="a", attack="token_set", outcome="tokens_identified", space="token", returned=198,
    ...     certified={"n": 190, "wrong": 0}, scores={"token_recall": share, "token_precision": share | {"mean": 1.0}})
    >>> print(identified_tokens_words([row], [Case(name="a", title="net")]).replace("texts, ", "texts,\n"))
    TOKENS IDENTIFIED. On net token_set identifies 198 of 200 distinct tokens of the client's texts,
    none wrong [95 %, 100 %]. Which stood together, in what order and how often stays open.
    """
    found = [row for row in rows if row.identified_tokens]
    if not found:
        return ""
    best = worst(found)
    where = {case.name: case for case in cases}[best.case]
    recall, precision = best.scores.get("token_recall"), best.scores.get("token_precision")
    if recall is None or precision is None or recall.low is None or recall.high is None or not recall.n:
        words = (
            f"{best.identified_tokens:,} distinct tokens of the client's texts by rows of the embedding that moved, "
            f"{best.certified_tokens:,} of them certified"
        )
    else:
        wrong = best.identified_tokens - round(precision.mean * best.identified_tokens)
        frequent = where.baseline("frequent", "token_recall")
        beside = "" if frequent is None else f"; as many of the most frequent public tokens are {frequent:.0%} of them"
        words = (
            (
                f"{round(recall.mean * recall.n):,} of {recall.n:,} distinct tokens of the client's texts, "
                f"{f'{wrong:,} wrong' if wrong else 'none wrong'} [{recall.low:.0%}, {recall.high:.0%}]{beside}"
            )
            .replace("%,", " %,")
            .replace("%]", " %]")
            .replace("% of", " % of")
        )
    more = len({row.case for row in found}) - 1
    further = f" Tokens were identified in {_cases(more, 'further')}, too." if more else ""
    unknown = "Which stood together, in what order and how often stays open."
    return f"TOKENS IDENTIFIED. On {where.heading} {best.attack} identifies {words}. {unknown}{further}"


def contradicted(epsilons: Sequence[EpsilonRow], cases: Sequence[Case]) -> str:
    """Sentences on defenses whose claimed epsilon a measurement contradicts; empty for none.

    >>> row = EpsilonRow(case="a", contradicted=["the stated epsilon of 1 is contradicted"])
    >>> contradicted([row], [Case(name="a", title="net")])
    'CONTRADICTED. On net the stated epsilon of 1 is contradicted by measuring the defense.'
    """
    named = {case.name: case for case in cases}
    wrong = [row for row in epsilons if row.contradicted]
    if not wrong:
        return ""
    first = wrong[0]
    more = f" A claim is contradicted in {_cases(len(wrong) - 1, 'further')}, too." if len(wrong) > 1 else ""
    claims = " and ".join(first.contradicted)
    return f"CONTRADICTED. On {named[first.case].heading} {claims} by measuring the defense.{more}"


# --- sentences beside the verdict --------------------------------------------------------------------------------


def reasons(rows: Iterable[Row], titles: Mapping[str, str]) -> list[tuple[str, str]]:
    """The reasons why attacks gave no result, each reason once with its attacks and cases.

    Args:
        rows: Rows without a result, on all or some batches.
        titles: Name of every case to its title.

    Returns:
        Pairs of the attacks' names and the sentence.

    >>> rows = [Row(case=case, attack="dlg", outcome="failed", status="error", reason="no memory") for case in "ab"]
    >>> reasons(rows, {"a": "A", "b": "B", "c": "C"})
    [('dlg', 'failed (2 of 3 cases): no memory')]
    """
    places: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        outcome = "no result" if row.scored else row.phrase
        key = row.attack, outcome, row.reason or "no reason was recorded"
        places.setdefault(key, []).append(titles[row.case])
    attacks: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (attack, outcome, reason), headings in places.items():
        attacks.setdefault((outcome, reason, tuple(headings)), []).append(attack)
    found = []
    for (outcome, reason, where), names in attacks.items():
        who = ", ".join(names) if len(names) <= LISTED_NAMES else f"{len(names)} attacks"
        several = f" ({where[0] if len(where) == 1 else f'{len(where)} of {len(titles)} cases'})"
        among = several * (len(titles) > 1)
        found.append((who, f"{outcome}{among}: {reason}"))
    return found


def guarantee_lines(cases: Sequence[Case]) -> list[str]:
    """The differential-privacy guarantees of the defenses, shown beside the verdict; each sentence once.

    That there is none is a warning, and stands with those.

    >>> guarantee_lines([Case(name="a", promise={"epsilon": 8, "delta": 1e-5, "unit": "example", "rounds": 1})])
    ['Claimed by the defense: epsilon = 8 at delta = 1e-05 for each example, over 1 round.']
    """
    said = ((one.heading, one.promise.phrase) for one in cases if one.promise and one.promise.epsilon is not None)
    return [f"Claimed by the defense: {line}." for line in once(said, len(cases))]


def caveat_lines(cases: Sequence[Case]) -> list[str]:
    """Caveats on the stated facts of captured updates, shown beside the verdict; each sentence once.

    >>> caveat_lines([Case(name="a", title="net", caveats=["Contradicted: this."]), Case(name="b", title="other")])
    ['Contradicted: this. (net)']
    """
    return once(((case.heading, words) for case in cases for words in case.caveats), len(cases))


def warning_lines(flags: Sequence[Diagnostic], cases: Sequence[Case]) -> list[str]:
    """The warnings by which a number may mislead, shown under the verdict: one of each kind, and how many more.

    Those of cases that only show that the attacks work are left out.

    >>> flags = [Diagnostic(case=case, name="failed", severity="warning", message=f"{case} failed.") for case in "ab"]
    >>> warning_lines(flags, [Case(name="a", title="net"), Case(name="b", title="other")])
    ['a failed. (net) 1 more warning of this kind: flags.json.']
    """
    shown = {case.name: case.heading for case in cases if not case.control}
    kinds: dict[str, list[tuple[str, str]]] = {}
    for flag in flags:
        if flag.severity == "warning" and (flag.case is None or flag.case in shown):
            kinds.setdefault(flag.name, []).append((shown[flag.case] if flag.case else "", flag.message))
    lines = []
    for said in map(places_of, kinds.values()):
        (message, where), *rest = said.items()
        titles = list(filter(None, dict.fromkeys(where)))
        place = f" ({'; '.join(titles) if len(titles) <= LISTED_NAMES else f'{len(titles)} cases'})"
        many = f" {plural(len(rest), 'more warning')} of this kind: flags.json."
        lines.append(f"{message}{place if titles and len(shown) > 1 else ''}{many if rest else ''}")
    return lines


def once(said: Iterable[tuple[str, str]], cases: int) -> list[str]:
    """Each sentence once, with its cases in brackets, where these are not all.

    Args:
        said: Title of the case and words.
        cases: Number of all cases.
    """
    return [
        f"{words} ({'; '.join(titles) if len(titles) <= LISTED_NAMES else f'{len(titles)} of {cases} cases'})"
        if len(titles) < cases
        else words
        for words, titles in places_of(said).items()
    ]
