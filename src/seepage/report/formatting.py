"""Format numbers for reports: few digits, a typographic minus sign, and a dash for a missing number."""

import re
from collections.abc import Mapping
from math import isfinite

from markupsafe import Markup, escape

from seepage.audit.case import Case, Measure
from seepage.base.words import plural
from seepage.measure.metrics.rows import NAMES as ROW_METRICS

NONE = "\N{EM DASH}"
"""Stands where a number does not apply."""


GLOSSARY = {
    "certified": "an attack proved, without the private examples, that only they fit what was sent",
    "knew": "what the attacker was given beyond what the protocol shows to every server",
    "features only": "what an inner layer reads was reconstructed, and no attack made examples of it",
    "mixture only": "what an inner layer was given was found mixed, and no guess is proved to be of one example",
    "tokens identified": "which distinct tokens the texts hold, not which stood together, in what order or how often",
    "does not apply": "the attack needs something that this case has not; the reason stands under the tables",
    "not needed": "another attack had proved every private example already, so this one was not run",
    "not run": "the recipe asks for this attack in other cases only",
    "fresh": "the model had its random initial weights, so the attacked round is the first of a training",
}
"""What a reader who is no specialist may look up."""


def number(value: float | None, digits: int = 1) -> str:
    """A number with a fixed count of decimals.

    >>> number(3.14159), number(0.5, 2), number(None)
    ('3.1', '0.50', '—')
    """
    if value is None or not isfinite(value):
        return NONE
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float | None, digits: int = 1) -> str:
    """A difference, always with its sign.

    >>> signed(2.0)
    '+2.0'
    """
    text = number(value, digits)
    return text if text == NONE or text.startswith("\N{MINUS SIGN}") else f"+{text}"


def scientific(value: float | None) -> str:
    """Three digits of a number of any size, such as an objective.

    >>> scientific(1234567.0), scientific(12.0)
    ('1.23e+06', '12')
    """
    if value is None or not isfinite(value):
        return NONE
    return f"{value:.3g}".replace("-", "\N{MINUS SIGN}")


def percent(share: float | None) -> str:
    """A share in [0, 1] as a percentage.

    >>> percent(0.875), percent(None)
    ('88 %', '—')
    """
    if share is None or not isfinite(share):
        return NONE
    return f"{100 * share:.0f} %"


def count_of(share: float | None, total: int | None) -> str:
    """A share in [0, 1] of `total` examples as a count; as a percentage where the total is not known.

    >>> count_of(0.875, 8), count_of(0.5, None), count_of(None, 8)
    ('7/8', '50 %', '—')
    """
    if share is None or not isfinite(share):
        return NONE
    return f"{share * total:.0f}/{total}" if total else percent(share)


def duration(seconds: float | None) -> str:
    """A duration in the unit that fits.

    >>> duration(0.004), duration(1.234), duration(75.2), duration(7500)
    ('0.00 s', '1.2 s', '1 min 15 s', '2 h 5 min')
    """
    if seconds is None or not isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left} min" if hours else f"{minutes} min {rest} s"


def measured_on(measure: Measure, examples: int, which: str = "unseen") -> str:
    """What an accuracy is a share of.

    >>> measured_on("map", 3), measured_on("value", 1, "test")
    ('the pixels of 3 unseen examples', 'the variance of 1 test target')
    """
    inside, word = {
        "class": ("", "example"),
        "map": ("the pixels of ", "example"),
        "value": ("the variance of ", "target"),
        "token": ("the next tokens in ", "text"),
    }[measure]
    return f"{inside}{plural(examples, f'{which} {word}')}"


def with_options(name: str | None, options: Mapping[str, object]) -> str:
    """A name with its options, written as a call.

    >>> with_options("fc2", {"hidden": 64}), with_options("fc2", {})
    ('fc2(hidden=64)', 'fc2')
    """
    inside = ", ".join(f"{key}={value!r}" for key, value in options.items())
    return f"{name or 'model'}({inside})" if inside else name or "model"


def model_words(name: str | None, options: Mapping[str, object], parameters: int | None) -> str:
    """A model with its options and its size.

    >>> model_words("fc2", {"hidden": 64}, 50_890)
    'fc2(hidden=64), 50,890 parameters'
    """
    size = "" if parameters is None else f", {plural(parameters, 'parameter')}"
    return with_options(name, options) + size


def defense_words(defense: str | None, data: str | None) -> str:
    """The defense; of captured updates, which name no data, it is not known."""
    return defense or ("none" if data else "not known")


def training_words(history: str | None, steps: int | None) -> str:
    """How far the model was trained; empty where that is not known.

    >>> training_words(None, 5), training_words(None, 0), training_words(None, None)
    ('trained for 5 steps', 'freshly initialized', '')
    """
    if history or steps is None:
        return history or ""
    return f"trained for {plural(steps, 'step')}" if steps else "freshly initialized"


NO_DATA = "not known: the updates were captured"
"""What is said of the data of an update that somebody captured."""


OPTION = re.compile(r"--[a-z]+(?:-[a-z]+)*")
"""An option of a command in a sentence."""


def breakable(name: str) -> Markup:
    """A name that a browser may break after its underscores and opening brackets; escaped.

    >>> breakable("a_<b> f(x)")
    Markup('a_<wbr>&lt;b&gt; f(<wbr>x)')
    """
    return Markup("<wbr>").join(escape(part) for part in re.split(r"(?<=_)|(?<=\w\()", name))


def unbroken(text: str) -> Markup:
    """A text in which no line ends within an option; escaped.

    >>> unbroken("ask with --no-pictures & sign")
    Markup('ask with <span class="option">--no-pictures</span> &amp; sign')
    """
    return Markup(OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))


def accuracy_words(case: Case) -> str:
    """How well the model does; empty where it was measured on too few examples."""
    if case.known_accuracy is None:
        return ""
    share, whole = percent(case.known_accuracy), measured_on(case.measure, case.accuracy_examples or 0)
    return f"{share} of {whole} explained" if case.measure == "value" else f"accuracy {share} on {whole}"


def without_update(case: Case) -> str:
    """How good guesses are that need no update."""
    if case.baseline("frequent", "rouge_1") is not None:
        rouges = " and ".join(number(case.baseline("frequent", f"rouge_{n}"), 2) for n in (1, 2))
        share = case.baseline("frequent", "token_recall")
        named = "" if share is None else f"; they are {percent(share)} of the distinct ones"
        return f"the most frequent tokens of public text, ROUGE-1 and ROUGE-2 {rouges}{named}"
    picture = case.baseline("mean_color", "ssim") is not None
    known = {"typical": "mean of other rows", "mean_color": "mean color" if picture else "the example's mean",
             "grey": "grey" if picture else "mid-range", "random": "noise"}  # fmt: skip
    said = []
    for name, words in known.items():
        psnr, ssim = (case.baseline(name, metric) for metric in ("psnr", "ssim"))
        alike = "" if ssim is None else f", SSIM {number(ssim, 2)}"
        said += [] if psnr is None else [f"{words} {number(psnr)} dB{alike}"]
    rows, *shares = (case.baseline("typical", name) for name in ROW_METRICS)
    if rows is not None:
        kinds = zip(("words", "numbers"), shares, strict=True)
        parts = ", ".join(
            f"{percent(share)} of {kind}" for kind, share in [*kinds, ("rows", rows)] if share is not None
        )
        said.insert(1, f"each column's commonest word or mean {parts}")
    return "; ".join(said)
