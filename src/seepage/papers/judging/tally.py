"""Attack success rate: the share of guesses that people call the same content."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import torch

from seepage.base.manifest import renew
from seepage.base.schema import Share
from seepage.base.storage import SCHEMA, write_json
from seepage.errors import SeepageError
from seepage.measure.metrics import bootstrap_interval
from seepage.papers.judging.answers import Answers, Group, Key, open_key
from seepage.papers.judging.pairs import EXPECTED, FEWEST_CONTROLS, Answer, Subject
from seepage.report.human_study import FILE, Judge, JudgedRow, JudgedStudy

MOST_MISSED = 0.2
"""Largest share of controls, in [0, 1], that a judge may answer wrongly; judges who miss more are excluded."""

Votes = dict[Subject, dict[str, Answer]]
"""Guess to judge to answer."""


def tally(folder: Path, answers: Sequence[Answers]) -> JudgedStudy:
    """The attack success rate of each attack on each case, by the answers of judges.

    Answers are joined with the keys of their pages, and judges who miss too many controls (`MOST_MISSED`) are excluded.

    With several judges a guess contributes the share of its judges who called it the same content. (FedLeak, Fan et
    al., USENIX Security 2025, had three judges but does not say how their answers were combined.) The 95 % interval
    is Clopper and Pearson's if the judges of every guess agree, since each guess is then a single yes or no; otherwise
    it is a bootstrap over guesses. It accounts for the sampling of guesses, not of judges.

    Args:
        folder: The run folder, which holds the keys of its pages.
        answers: From one or more judges, about one or more of the run's pages.

    Returns:
        Rows, judges and their agreement; rates are shares in [0, 1].

    Raises:
        SeepageError: Where a page has no key here, answers do not fit it, people and a machine are mixed, or no judge
            can be counted.
    """
    machines = {one.machine for one in answers}  # name of the rule that answered; None: a person
    if len(machines) > 1:
        raise SeepageError(
            "a machine's answers are counted by themselves, so that its rate is never taken for people's; pass the "
            "files of people or that of one machine"
        )
    keys = {one.page: open_key(folder, one) for one in answers}
    said = {name: _said(name, answers, keys) for name in dict.fromkeys(one.judge for one in answers)}
    judges = [_judge(name, found) for name, found in said.items()]
    counted = [judge.name for judge in judges if judge.left_out is None]
    votes = _votes({name: said[name] for name in counted})
    if not votes:
        reasons = "; ".join(f"{judge.name} {judge.left_out}" for judge in judges if judge.left_out)
        raise SeepageError(f"no judged guess can be counted ({reasons or 'none was answered'}); ask others to judge")
    groups = {(group.case, group.attack): group for key in keys.values() for group in key.groups}
    rows = [_row(group, own) for group in groups.values() if (own := _of_group(votes, group))]
    agreement, kappa = _agreement(votes, counted)
    # Controls that show a mean color beside an example: "same" among them is the rate without any recovery.
    flats = [word for name in counted for subject, word in said[name].items() if subject.kind == "flat"]
    flat_same = _share(flats, "same") if flats else None
    return JudgedStudy(
        rows=rows, judges=judges, kappa=kappa, agreement=agreement, flat_same=flat_same, machine=machines.pop()
    )


def write_judged(folder: Path, judged: JudgedStudy) -> Path:
    """Write `judgements.json` into the run folder; an earlier one is replaced."""
    write_json(folder / FILE, {"schema": SCHEMA, **judged.model_dump(mode="json")})
    renew(folder, [FILE])
    return folder / FILE


# --- judges ------------------------------------------------------------------------------------------------------


def _said(name: str, answers: Iterable[Answers], keys: Mapping[str, Key]) -> dict["_Seen", Answer]:
    """One judge's answers over all pages; if a guess appears on two pages, the later answer counts."""
    return {
        _seen(keys[one.page].pairs[pair], one.page, pair): word
        for one in answers
        if one.judge == name
        for pair, word in one.answers.items()
    }


class _Seen(Subject):
    """Identity of a judged pair: controls are distinguished by page and number, guesses by their content only."""

    where: str = ""


def _seen(subject: Subject, page: str, pair: str) -> _Seen:
    return _Seen(**subject.model_dump(), where="" if subject.kind == "guess" else f"{page}/{pair}")


def _judge(name: str, said: Mapping[_Seen, Answer]) -> Judge:
    """A judge's counts, with the reason where the judge is excluded: too few controls answered, or too many missed."""
    controls = [(seen.kind, word) for seen, word in said.items() if seen.kind != "guess"]
    missed = sum(word != EXPECTED[kind] for kind, word in controls)
    judge = Judge(name=name, guesses=len(said) - len(controls), controls=len(controls), missed=missed)
    if len(controls) < FEWEST_CONTROLS:
        why = f"answered {len(controls)} control pairs, too few to check the answers by"
        return judge.model_copy(update={"left_out": why})
    if missed > MOST_MISSED * len(controls):
        why = f"missed {missed} of {len(controls)} control pairs, more than {MOST_MISSED:.0%}"
        return judge.model_copy(update={"left_out": why})
    return judge


def _votes(said: Mapping[str, Mapping[_Seen, Answer]]) -> Votes:
    """The answers about guesses, by guess and judge; `said` holds them by judge and pair."""
    votes: Votes = {}
    for name, found in said.items():
        for seen, word in found.items():
            if seen.kind == "guess":
                votes.setdefault(seen, {})[name] = word
    return votes


# --- rows --------------------------------------------------------------------------------------------------------


def _of_group(votes: Votes, group: Group) -> list[dict[str, Answer]]:
    """Judge to answer, for each judged guess of one attack on one case."""
    return [words for guess, words in votes.items() if (guess.case, guess.attack) == (group.case, group.attack)]


def _row(group: Group, votes: Sequence[Mapping[str, Answer]]) -> JudgedRow:
    """The result of one attack on one case; `votes` holds judge to answer for each judged guess, at least one."""
    shares = [_share(words.values(), "same") for words in votes]
    asr = fmean(shares)
    low, high, how = asr_interval(shares)
    return JudgedRow(
        case=group.case,
        attack=group.attack,
        pairs=len(votes),
        judges=len({name for words in votes for name in words}),
        asr=asr,
        asr_low=low,
        asr_high=high,
        interval=how,
        cannot_tell=fmean(_share(words.values(), "unsure") for words in votes),
        returned=group.returned,
        examples=group.examples,
        asr_of_examples=asr * group.returned / group.examples,
    )


def _share(words: Iterable[Answer], wanted: Answer) -> float:
    """Share in [0, 1] of at least one answer that are the wanted one."""
    return fmean(word == wanted for word in words)


def asr_interval(shares: Sequence[float]) -> tuple[float | None, float | None, str]:
    """A 95 % interval of an attack success rate.

    Args:
        shares: Per guess, the share of its judges who called it the same content; in [0, 1].

    Returns:
        Lower and upper end in [0, 1], and the name of the method: `clopper-pearson` if every share is 0 or 1;
        else `bootstrap over pairs`; `none`, with ends None, if all shares are the same fraction, for which a bootstrap
        would give an interval of width 0.

    >>> low, high, how = asr_interval([1.0, 1.0, 1.0, 0.0])
    >>> f"{low:.2f} to {high:.2f} ({how})"
    '0.19 to 0.99 (clopper-pearson)'
    """
    if all(share in (0, 1) for share in shares):
        return *Share.count(round(sum(shares)), len(shares)).interval, "clopper-pearson"
    if len(set(shares)) == 1:
        return None, None, "none"
    drawn = bootstrap_interval(torch.tensor(shares, dtype=torch.float64), torch.arange(len(shares)))
    assert drawn is not None  # two different shares need at least two guesses
    return *drawn, "bootstrap over pairs"


def _agreement(votes: Votes, judges: Sequence[str]) -> tuple[float | None, float | None]:
    """Agreement rate and Cohen's kappa, each the mean over all pairs of judges with guesses in common."""
    alike, kappas = [], []
    for a, b in combinations(judges, 2):
        both = [(words[a], words[b]) for words in votes.values() if a in words and b in words]
        if both:
            alike.append(fmean(one == other for one, other in both))
            kappas.append(cohen_kappa(both))
    defined = [kappa for kappa in kappas if kappa is not None]
    return (fmean(alike) if alike else None), (fmean(defined) if defined else None)


def cohen_kappa(both: Sequence[tuple[Answer, Answer]]) -> float | None:
    """Cohen's kappa (1960) of two judges, from their answers to the same guesses; None where it is not defined.

    It is (p_o - p_e) / (1 - p_e) with the observed agreement p_o and the agreement by chance p_e: 1 for full
    agreement, 0 for agreement by chance. If both judges always give the same single answer, p_e = 1 and it is
    undefined.

    >>> cohen_kappa([("same", "same"), ("not", "not")]), cohen_kappa([("not", "not"), ("not", "not")])
    (1.0, None)
    """
    from sklearn.metrics import cohen_kappa_score

    first, second = zip(*both, strict=True)
    if len({*first, *second}) == 1:
        return None
    return float(cohen_kappa_score(first, second))


# --- words -------------------------------------------------------------------------------------------------------


def lines(judged: JudgedStudy, titles: Mapping[str, str]) -> list[str]:
    """The count as plain lines for a terminal.

    Args:
        judged: The count.
        titles: A case's name to its title.
    """
    machine = [f"judged by a machine, and by no person: {judged.machine}"] if judged.machine else []
    return [
        *machine,
        *(_row_line(row, titles.get(row.case, row.case)) for row in judged.rows),
        *(_judge_line(judge) for judge in judged.judges),
        *_rest(judged),
    ]


def _row_line(row: JudgedRow, title: str) -> str:
    interval = "no interval" if row.asr_low is None else f"95 % interval {row.asr_low:.0%} to {row.asr_high:.0%}"
    words = f"{row.attack} on {title}: attack success rate {row.asr:.0%} of {row.pairs} guesses ({interval})"
    if row.cannot_tell:
        words += f", cannot tell {row.cannot_tell:.0%}"
    if row.returned < row.examples:
        words += f"; it returned {row.returned} of {row.examples} examples, so {row.asr_of_examples:.0%} of all"
    return words


def _judge_line(judge: Judge) -> str:
    if judge.left_out:
        return f"judge {judge.name} is left out: {judge.left_out}"
    return f"judge {judge.name}: {judge.guesses} guesses; missed {judge.missed} of {judge.controls} control pairs"


def _rest(judged: JudgedStudy) -> list[str]:
    counted = sum(judge.left_out is None for judge in judged.judges)
    found = []
    if counted > 1:
        alike = "no guess in common" if judged.agreement is None else f"{judged.agreement:.0%} answered alike"
        kappa = "not defined" if judged.kappa is None else f"{judged.kappa:.2f}"
        found.append(f"agreement between judges: Cohen's kappa {kappa} ({alike})")
    if judged.flat_same is not None:
        found.append(f"squares of an example's mean color called the same content: {judged.flat_same:.0%}")
    return found
