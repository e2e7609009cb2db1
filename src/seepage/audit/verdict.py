"""A run in plain words: a level, the parts of the verdict (`verdict_summary` words them), and what limits them."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from seepage.audit.case import Kind, shared_parts
from seepage.audit.findings import inconclusive, worst
from seepage.audit.result_rows import identifies_members, open_membership, tells_members
from seepage.audit.row import Case, EpsilonRow, MembershipRow, Outcome, Result, Row, SummaryPart
from seepage.audit.verdict_summary import members_identified, reconstructed, verdict_summary
from seepage.base.schema import Finding
from seepage.base.words import places_of, plural

LISTED_NAMES = 3
"""Largest number of cases or attacks that a sentence names one by one; more are counted."""

NEARLY = 0.25
"""Likeness of half of an attack's guesses from which a verdict of nothing recovered asks for a look; unrelated guesses
are at 0 (docs/concepts/verdict.md)."""

HEADS = {
    "exact": "LEAKS.",
    "recognizable": "LEAKS.",
    "certified": "LEAKS, BY ITS OWN PROOF.",
    "partial": "PARTIAL.",
    "nothing": "NOTHING RECOGNIZABLE.",
    "inconclusive": "INCONCLUSIVE.",
}
"""What a verdict begins with, by its level; `unscored` has several."""

ASK = "not tried: ask with "
"""How the words of a part begin that nobody asked for."""

NOTHING_MORE = "no extra knowledge"

UNMEASURED = "not measured with the defense (--set federation.rounds=50 trains with it)"
"""Said of what a defense costs where that is not known."""

_TRACES: Mapping[Kind, str] = {
    "pictures": "come closer than a flat color; look at the pictures",
    "records": "come closer than the means that need no update; look at the records",
    "texts": "hold more than half of the tokens of a private text; look at the texts",
}
"""What guesses do that are no copies, and no nothing either."""

NO_PROOF = "That is no proof of safety: a stronger attack, more steps or an earlier round may recover more."
PROOF = "A certified guess is proved to be an example as the network was given it; whoever has the truth can"
NO_TRUTH = (
    "The truth is not at hand to say how close that is, and nothing here is a proof of safety; whoever has it can"
)
MISFITS = {
    True: "Other inputs may give the same update, too.",
    False: "Guesses that give another update are no exact copies, unless the update was changed (noise, rounding) or a "
    "setting of the client, stated or inferred, is wrong.",
}
"""What the update that guesses give says of them, by whether it is the one that was sent."""
NEARER = "An update that is nearer need not be of a guess that is nearer."
MIXTURES = (
    "What an inner layer read of private examples was found mixed, and not separated: no guess is proved to be of one "
    "example, and none is shown to be near one. That is no proof of safety."
)
FEATURES = "Inner features of private examples were reconstructed, and no attack made examples of them"
ORDER_OPEN = "It is a set, without order and counts: seepage check says what of these the update shows."


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
    said = [words, named_members(found.membership, found.cases)]
    if level not in ("exact", "recognizable", "certified") and tells_members(found.judged_membership):
        said.reverse()  # what was found comes first
    first = [contradicted(found.epsilons, cases), false_certificates(found.judged_rows, cases)]
    words = " ".join(filter(None, (*first, *said, stopped_words(found.judged_rows))))
    summary = verdict_summary(found, asked, captured=captured)
    return found.model_copy(update={"verdict": words, "verdict_level": level, "summary": summary})


def verdict(
    rows: Sequence[Row], cases: Sequence[Case], flags: Sequence[Finding] = (), *, own_code: bool = False
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
    named = {case.name: case for case in cases if not case.control}
    titles = {case.name: case.heading for case in cases}
    doubt = _doubt(inconclusive(rows, cases, flags), named)
    every, rows = rows, [row for row in rows if row.case in named]
    level = level_of(rows, list(named.values()), doubtful=bool(doubt))
    words = reconstructed(rows, titles, list(named.values())).words
    score = f"seepage report RUN --truth FILE{' --trust' if own_code else ''}"
    said = [_head(level, rows, named, words, doubt), *_limits(level, rows, named, doubt, score)]
    beside = [row for row in every if row.case not in named]
    if any(row.leaks for row in beside):
        said.append(f"Without the defense: {reconstructed(beside, titles).words}.")
    return level, " ".join(filter(None, said))


def level_of(rows: Sequence[Row], cases: Sequence[Case], *, doubtful: bool) -> str:
    """The level of a run.

    Args:
        rows: Rows of the judged cases.
        cases: The judged cases.
        doubtful: Whether the failure of all attacks is no evidence of safety in any of them.
    """
    shown = {row.case for row in rows if row.mean("exact") or row.certified_examples}
    scored = [row for row in rows if row.scored]
    if any(row.mean("exact") for row in scored):
        return "exact"
    if any(case.exposed_examples and case.name not in shown for case in cases):
        return "certified"  # a proof, whoever looks
    if any(row.leaks for row in scored):
        return "recognizable"
    if not scored and any(row.certified_examples for row in rows):
        return "certified"
    if any(row.identified_tokens for row in rows):
        return "partial"
    if not scored:
        return "unscored"
    if doubtful:
        return "inconclusive"
    return "partial" if any(row.outcome is Outcome.PARTIAL for row in scored) else "nothing"


def _head(level: str, rows: Sequence[Row], cases: Mapping[str, Case], words: str, doubt: str) -> str:
    """What a verdict begins with.

    Args:
        level: The level.
        rows: Rows of the judged cases.
        cases: The judged cases.
        words: The part of the verdict on reconstruction.
        doubt: Why the failure of the attacks is no evidence of safety; may be empty.
    """
    seen = {row.case for row in rows if row.scored}
    if level in ("exact", "recognizable"):
        given = _leaking(rows, cases)
        many = f"Private examples can be reconstructed in {len(given)} of {_cases(len(seen | given))}."
        return f"{HEADS[level]} {many} Worst: {words}."
    if level == "certified":
        return f"{HEADS[level]} {_sentence(words)}"
    if any(row.identified_tokens for row in rows):
        return f"TOKENS IDENTIFIED. {_sentence(words)} {ORDER_OPEN}"
    if level == "unscored":
        return _unscored(rows, cases, words)
    where = _cases(len(seen))
    if any(row.outcome is Outcome.PARTIAL for row in rows):
        best = [worst([row for row in rows if row.scored and row.case == case]) for case in cases if case in seen]
        signs = dict.fromkeys(_TRACES[_kind(row)] for row in best)
        quiet = f"In {where} no example counts as recovered, but some guesses {', or '.join(signs)}."
    else:
        quiet = f"In {where} these attacks, with the steps they were given, recovered nothing.{_nearly(rows)}"
    return " ".join(filter(None, (HEADS[level], doubt, quiet, NO_PROOF)))


def _unscored(rows: Sequence[Row], cases: Mapping[str, Case], words: str) -> str:
    """What a verdict begins with where nothing was scored, nor certified."""
    back = [row for row in rows if row.gave_result]
    kinds = list(dict.fromkeys(cases[row.case].kind or "pictures" for row in back))
    outcomes = {row.outcome for row in back}
    if not back:
        return "NO RESULT."
    if outcomes == {Outcome.MIXTURE_ONLY}:
        return f"MIXTURE ONLY. {MIXTURES}"
    if outcomes <= {Outcome.FEATURES_ONLY, Outcome.MIXTURE_ONLY}:
        more = "; cpa_fia goes on from there to images" * ("pictures" in kinds)
        return f"FEATURES ONLY. {FEATURES}{more}. {_sentence(words)}"
    return f"NOT SCORED. {_sentence(words.removeprefix('not known: '))} Look at the {' and the '.join(kinds)}."


def _limits(level: str, rows: Sequence[Row], cases: Mapping[str, Case], doubt: str, score: str) -> list[str]:
    """What limits what was found: who was told what, what was found nowhere, and what has no result."""
    said, leaking = [], [row for row in rows if row.leaks]
    if leaking:
        most = worst(leaking)
        said.append(f"The attacker used {_knowledge(most)}.")
        said += [f"Its score fitted {most.fitted} with the truth, which an attacker could not."] * bool(most.fitted)
    found = _leaking(rows, cases) | {row.case for row in rows if row.identified_tokens}
    quiet = dict.fromkeys(row.case for row in rows if row.scored and row.case not in found)
    if quiet and found:
        where = _named([cases[name] for name in quiet], cases)
        none = "these attacks, with the steps they were given, recovered no example. That is no proof of safety."
        said.append(f"In {where} {none}")
    if doubt and level != "inconclusive":
        said.append(f"INCONCLUSIVE: {doubt}")
    back = [row for row in rows if row.returned and row.space == "input"] if level == "unscored" else []
    near = min((row for row in back if row.misfit is not None), key=lambda row: row.misfit or 0.0, default=None)
    said += [] if near is None else [MISFITS[near.fits]]
    said += [NEARER] * (near is not None and not near.fits and len({row.attack for row in back}) > 1)
    if not any(row.scored for row in rows) and any(row.certified_examples for row in rows):
        said.append(f"{PROOF} check: {score}")
    elif level == "unscored" and {row.outcome for row in rows} & {Outcome.NOT_SCORED, Outcome.RETURNED_NOTHING}:
        said.append(f"{NO_TRUTH}: {score}")
    return [*said, _silent(rows, cases), _unaware(rows, cases)]


def _leaking(rows: Sequence[Row], cases: Mapping[str, Case]) -> set[str]:
    """Cases whose examples were reconstructed, or are revealed in closed form."""
    return {row.case for row in rows if row.leaks} | {name for name, case in cases.items() if case.exposed_examples}


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _unaware(rows: Sequence[Row], cases: Mapping[str, Case]) -> str:
    """Sentence that no attacker knew of the defense; empty if some did, or if there is no defense."""
    known = {row.case for row in rows if "defense" in row.side_information}
    spoke = {row.case for row in rows if row.gave_result}
    unaware = [case for name, case in cases.items() if case.defense and name in spoke - known]
    if not unaware:
        return ""
    where = "" if len(unaware) == len(cases) else f"In {_named(unaware, cases)} "
    return f"{where}{'the' if where else 'The'} attackers did not know of the defense."


def _doubt(doubtful: Mapping[str, str], cases: Mapping[str, Case]) -> str:
    """Sentences on why the failure of the attacks is no evidence of safety, each reason once with its cases."""
    return " ".join(
        _sentence(why) if len(names) == len(cases) else f"In {_named([cases[n] for n in names], cases)} {why}."
        for why, names in places_of(doubtful.items()).items()
    )


def _silent(rows: Sequence[Row], cases: Mapping[str, Case]) -> str:
    """Sentences about the cases for which no attack gave a result; empty if there are none."""
    spoke = {row.case for row in rows if row.gave_result}
    zero = {row.case for row in rows if row.outcome is Outcome.ZERO_UPDATE} - spoke
    parts = []
    if mute := [case for name, case in cases.items() if name not in spoke | zero]:
        causes = dict.fromkeys(_cause(case, [row for row in rows if row.case == case.name]) for case in mute)
        parts.append(
            f"In {_named(mute, cases, 'further' if spoke else 'audited')} no attack gave a result: "
            f"{', or '.join(causes)}. That is no proof of safety either; the reasons are listed with the results."
        )
    if zero:
        named = _named([case for name, case in cases.items() if name in zero], cases)
        nothing = "the update is zero everywhere: it holds nothing to attack, but the update of another round may."
        parts.append(f"In {named} {nothing}")
    return " ".join(parts)


def _cause(case: Case, rows: Sequence[Row]) -> str:
    """Why a case has no result."""
    if case.skipped or any(row.outcome is Outcome.NOT_RECORDED for row in rows):
        return "no update could be made"
    if any(row.status == "error" for row in rows):
        return "those that apply failed"
    return "time was over before a first guess" if any(row.status == "not_tried" for row in rows) else "none applies"


def _cases(count: int, which: str = "audited") -> str:
    return plural(count, f"{which} case")


def _knowledge(row: Row) -> str:
    shown = "indices" in {*row.known} - {*row.side_information}
    extra = f"extra knowledge: {', '.join(row.side_information)}" if row.side_information else NOTHING_MORE
    return extra + "; the protocol shows the indices of each batch" * shown


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


def _nearly(rows: Sequence[Row]) -> str:
    """A sentence on the guesses that are most like their examples, where these are no strangers; else empty."""
    row = max(rows, key=lambda row: row.median("likeness") or 0.0)
    alike = row.median("likeness") or 0.0
    look = f" Look at the pictures of {row.attack} all the same: half of them have a likeness of {alike:.2f} or more."
    return look * (alike >= NEARLY)


def false_certificates(rows: Sequence[Row], cases: Sequence[Case]) -> str:
    r"""Sentence on guesses that an attack certified and that are no private example; empty where there are none.

    >>> row = Row(case="a", attack="x", outcome="partly_exact", certified={"n": 3, "wrong": 1})
    >>> print(false_certificates([row], [Case(name="a", title="net", data="digits")]).replace(": ", ":\n"))
    FALSE CERTIFICATE. 1 of 3 guesses that x certified on net is no exact copy of a private example:
    do not rely on its certificates here.
    """
    named, parts = {case.name: case for case in cases}, []
    for row, given in ((row, row.certified) for row in rows if row.certified is not None and row.certified.wrong):
        one, skipped = (
            given.wrong == 1,
            [other.attack for other in rows if other.case == row.case and other.outcome is Outcome.NOT_NEEDED],
        )
        copies = "exact copy of a private example" if one else "exact copies of a private example"
        what = ("token" if one else "tokens") + " of the texts" if row.of_tokens else copies
        parts.append(
            f"{given.wrong} of {plural(given.n, 'guess')} that {row.attack} certified on {named[row.case].heading} "
            f"{'is' if one else 'are'} no {what}: do not rely on its certificates here."
        )
        if skipped:
            parts[-1] += f" For its sake {' and '.join(skipped)} did not run: run again with --all."
        # Somebody who brings a truth may bring that of another update; an audit has its own.
        if named[row.case].data is None and given.wrong == given.n:
            parts[-1] += " Or the truth is that of another update: then the scores say nothing."
    more = f" Nor on {len(parts) - LISTED_NAMES} more rows." if len(parts) > LISTED_NAMES else ""
    return f"FALSE CERTIFICATE. {' '.join(parts[:LISTED_NAMES])}{more}" if parts else ""


def named_members(rows: Sequence[MembershipRow], cases: Sequence[Case]) -> str:
    r"""Sentences on membership inference; empty where no membership test was asked for.

    >>> rate = {"hits": 7, "of": 8, "low": 0.47, "high": 1.0}
    >>> row = MembershipRow(case="a", test="matched_filter", members=8, others=8, auc=0.98, auc_low=0.9, level=0.01,
    ...     members_identified=rate, others_identified=rate | {"hits": 0})
    >>> print(named_members([row], [Case(name="a", title="net")]).replace(", and ", ",\nand "))
    MEMBERS IDENTIFIED. 7 of 8 members [47 %, 100 %],
    and 0 of 8 others [47 %, 100 %] at a false positive rate of 1 %, by matched_filter on net.
    """
    headings, beside = {case.name: case.heading for case in cases}, {case.name for case in cases if case.control}
    lacking = [case.heading for case in cases if case.membership_skipped and not case.control]
    more = f" and {len(lacking) - LISTED_NAMES} more" if len(lacking) > LISTED_NAMES else ""
    missing = f"Membership was not tested on {'; '.join(lacking[:LISTED_NAMES])}{more}: see the report." * bool(lacking)
    tested = [row for row in rows if row.auc is not None and row.case not in beside]
    bare = [row for row in rows if row.auc is not None and row.case in beside]
    where = _cases(len({row.case for row in tested}))
    if tells_members(tested):
        level = "MEMBERS IDENTIFIED" if identifies_members(tested) else "MEMBERSHIP LEAKS"
        said = f"{level}. {_sentence(members_identified(tested, headings).words)}"
    elif open_membership(tested):
        said = (
            f"MEMBERSHIP OPEN. In {where} there were too few candidates to tell members from others: raise batch.count."
        )
    elif tested:
        said = (
            f"NO MEMBERS IDENTIFIED. In {where} no membership test did better than chance. "
            "That is no proof that nobody can be identified."
        ) + " Without the defense none did either, so that these say nothing of it." * (
            bool(bare) and not tells_members(bare)
        )
    else:
        said = "No membership test gave a result; the reasons are listed with the results." * bool(rows)
    return " ".join(filter(None, (said, missing)))


def contradicted(epsilons: Sequence[EpsilonRow], cases: Sequence[Case]) -> str:
    """Sentences on defenses whose claimed epsilon a measurement contradicts; empty for none.

    >>> row = EpsilonRow(case="a", contradicted=["the stated epsilon of 1 is contradicted"])
    >>> contradicted([row], [Case(name="a", title="net")])
    'CONTRADICTED. On net the stated epsilon of 1 is contradicted by measuring the defense.'
    """
    headings = {case.name: case.heading for case in cases}
    wrong = [row for row in epsilons if row.contradicted]
    if not wrong:
        return ""
    more = f" A claim is contradicted in {_cases(len(wrong) - 1, 'further')}, too." if len(wrong) > 1 else ""
    claims = " and ".join(wrong[0].contradicted)
    return f"CONTRADICTED. On {headings[wrong[0].case]} {claims} by measuring the defense.{more}"


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


def headline(result: Result) -> str:
    """The verdict without what `answers` says in lines of their own.

    >>> part = SummaryPart(name="reconstruction", tried=True, words="4 of 4 examples exactly, by dlg on net")
    >>> words = "LEAKS. In 1 of 1 audited case. Worst: 4 of 4 examples exactly, by dlg on net. Look."
    >>> headline(Result(verdict=words, verdict_level="exact", rows=[], cases=[], thresholds={}, summary=[part]))
    'LEAKS. In 1 of 1 audited case. Look.'
    """
    words = result.verdict
    for said in (*(part.words for part in result.summary if part.tried), *_without_defense(result)):
        for form in (f" Worst: {said}.", f" Without the defense: {said}.", f" {_sentence(said)}", f" {said}."):
            words = words.replace(form, "") if said else words
    return words.replace(f" The attacker used {NOTHING_MORE}.", "")  # what it did use is a column


def answers(result: Result, *, brief: bool = True) -> list[tuple[str, str]]:
    """What was found of each question of a run, and what a defense claims and costs: the question and the answer.

    Args:
        result: The result.
        brief: Call each case by its title in fewer words.
    """
    said = [(part.title, part.words) for part in result.summary if not part.words.startswith(ASK)]
    said.insert(1, ("without the defense", "; ".join(_without_defense(result))))
    last = len(said) - (said[-1][0] == "measured epsilon")
    said[last:last] = [("claimed", line) for line in claims(result.judged)]
    said.append(("accuracy", _accuracy(result)))
    for case in sorted(result.cases if brief else (), key=lambda case: -len(case.heading)):
        said = [(what, words.replace(case.heading, case.brief)) for what, words in said]
    return [(what, words) for what, words in said if words]


def not_asked(summary: Sequence[SummaryPart]) -> str:
    """The parts of a verdict that nobody asked for, and how to; empty for none.

    >>> not_asked([SummaryPart(name="upper_bound", tried=False, words="not tried: ask with --bounds")])
    'not tried: upper bound (--bounds)'
    """
    left = [f"{part.title} ({part.words.removeprefix(ASK)})" for part in summary if part.words.startswith(ASK)]
    return f"not tried: {', '.join(left)}" if left else ""


def _without_defense(result: Result) -> list[str]:
    """What attacks, and membership tests, found of the cases beside the judged ones."""
    beside = {case.name for case in result.cases if case.control}
    rows = [row for row in result.rows if row.case in beside]
    tests = [row for row in result.membership if row.case in beside and row.auc is not None]
    found = [reconstructed(rows, result.titles).words] if any(row.leaks for row in rows) else []
    return found + [members_identified(tests, result.titles).words] * bool(tests)


def _accuracy(result: Result) -> str:
    """What the defense costs in accuracy, of the case where that is most; empty where no client uses a defense."""
    named = {case.name: case for case in result.cases}
    defended = [case for case in result.judged if case.defense]
    pairs = [
        (case.known_accuracy, twin.known_accuracy, case)
        for case in defended
        if (twin := named.get(case.undefended or "")) and case.rounds_trained
    ]
    known = [(own, bare, case) for own, bare, case in pairs if own is not None and bare is not None]
    if known:
        own, bare, case = min(known, key=lambda pair: pair[0] - pair[1])
        after, spent = plural(case.rounds_trained, "round"), case.trained_promise
        price = f" at epsilon = {spent.epsilon:.3g}" if spent is not None and spent.epsilon is not None else ""
        return f"{100 * bare:.0f} % where clients trained {after} without the defense, {100 * own:.0f} % with it{price}"
    return UNMEASURED * bool(defended)


def claims(cases: Sequence[Case]) -> list[str]:
    """The differential-privacy guarantees of the defenses, each once. That there is none is a warning.

    >>> claims([Case(name="a", promise={"epsilon": 8, "delta": 1e-5, "unit": "example", "rounds": 1})])
    ['epsilon = 8 at delta = 1e-05 for each example, over 1 round']
    """
    said = (
        (one.heading, one.promise.phrase + (f"; the client that took part most: {spent.phrase}" if spent else ""))
        for one in cases
        if one.promise and one.promise.epsilon is not None
        for spent in [one.trained_promise]
    )
    return once(said, len(cases))


def caveat_lines(cases: Sequence[Case]) -> list[str]:
    """Caveats on the stated facts of captured updates, shown beside the verdict; each sentence once.

    >>> caveat_lines([Case(name="a", title="net", caveats=["Contradicted: this."]), Case(name="b", title="other")])
    ['Contradicted: this. (net)']
    """
    return once(((case.heading, words) for case in cases for words in case.caveats), len(cases))


def warning_lines(flags: Sequence[Finding], cases: Sequence[Case]) -> list[str]:
    """The warnings by which a number may mislead, shown under the verdict: one of each kind, and how many more.

    Those of cases that only show that the attacks work are left out.

    >>> flags = [Finding(case=case, name="failed", severity="warning", message=f"{case} failed.") for case in "ab"]
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
