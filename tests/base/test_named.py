"""Names and options: what a signature admits, and sentences for the rest."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from seepage.base.registry import import_dotted, is_dotted
from seepage.base.signatures import bind, describe, fits, problems_with
from seepage.errors import Problems, SeepageError, short


@dataclass(frozen=True, kw_only=True)
class Thing:
    size: int
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"
    names: Sequence[str] = ()
    limit: int | None = None


def test_a_right_call_has_no_problems() -> None:
    options = {"size": 3, "rate": 1, "kind": "b", "names": ["x"], "limit": None}
    assert problems_with(Thing, options, "thing") == []
    bind(Thing, options, "thing")


def test_all_problems_of_a_call_are_told_at_once() -> None:
    found = problems_with(Thing, {"sizze": 3, "rate": "fast", "kind": "c", "names": "x", "limit": 1.5}, "thing")
    near = [("sizze", "did you mean 'size'"), ("rate", "'fast'"), ("kind", "'a', 'b'"), ("names", "a list"),
            ("limit", "1.5"), ("size", "size = VALUE")]  # fmt: skip
    assert [name in said and words in said for said, (name, words) in zip(found, near, strict=True)] == [True] * 6
    with pytest.raises(Problems) as error:
        bind(Thing, {"x": 1}, "thing")
    assert error.value.problems == tuple(problems_with(Thing, {"x": 1}, "thing"))


def given_two(shape: tuple[int, ...], classes: int, *, width: int = 3) -> None: ...


def open_ended(first: int, *rest: int, **options: int) -> None: ...


def unresolvable(x: "Nowhere" = 1) -> None: ...  # type: ignore[name-defined]


def test_signatures_of_all_kinds() -> None:
    assert problems_with(given_two, {"width": 3}, "x", given=2) == []
    (said,) = problems_with(given_two, {"classes": 3}, "x", given=2)
    assert "'classes'; it takes: width" in said
    assert problems_with(open_ended, {"anything": 3}, "x", given=1) == []
    (said,) = problems_with(open_ended, {}, "x")
    assert "add first = VALUE" in said
    assert problems_with(functools.partial(given_two, (1,), 2), {"width": 3}, "x") == []
    assert problems_with(unresolvable, {"x": 5}, "x") == []
    (said,) = problems_with(lambda: None, {"x": 5}, "x")
    assert "'x'; it takes: none" in said
    for nothing in (3, "text", None, dict):
        assert "cannot call" in problems_with(nothing, {}, "x")[0]  # type: ignore[arg-type]


RIGHT = [
    (3, int), (3, float), (-1e308, float), (True, bool), ("x", str), (None, type(None)), (None, int | None),
    ("b", Literal["a", "b"]), ([1, 2], list[int]), ((1, 2), tuple[int, ...]), ([], Sequence[str]),
    ({"a": 1}, dict[str, Any]), ({}, Mapping[str, int]), ({}, dict), ([], list), ("here", Path), (Path(), Path),
    (len, Callable[[Any], int]), (3 + 4j, object), (3, Any), ("x", int | str),
]  # fmt: skip
WRONG = [
    (3.0, int), (True, int), ("3", int), (True, float), (float("nan"), float), (float("inf"), float), (10**400, float),
    (1, bool), (3, str), (None, int), ("c", Literal["a", "b"]), ([1], Literal[1]), ("ab", list[str]),
    ([1, "2"], list[int]), ({"a"}, Sequence[str]), ({}, list), ([], dict), ([], dict[str, int]), (3, Path),
    (3, Callable[[], None]), (1.5, int | str),
]  # fmt: skip


def test_values_that_fit_and_that_do_not() -> None:
    assert [(value, hint) for value, hint in RIGHT if not fits(value, hint)] == []
    assert [(value, hint) for value, hint in WRONG if fits(value, hint)] == []
    assert all(describe(hint) and "typing" not in describe(hint) for _, hint in WRONG)


def test_long_values_are_cut() -> None:
    assert short([1, 2]) == "[1, 2]"
    assert len(short("x" * 10**6)) == 80


def test_which_names_are_dotted() -> None:
    assert all(map(is_dotted, ["mod:thing", "a.b_c:D1", "_x:_y"]))
    others = ["fc2", ":x", "x:", "a:b:c", "a b:c", "../a:b", "a-b:c", "a/b:c", "1a:b", "", "a:b\n"]
    assert [use for use in others if is_dotted(use)] == []


@pytest.mark.parametrize("use", ["a-b:ran", "0a:ran", "éa:ran", " fine:ran", "fine:ran.x", "fine:", "fine"])
def test_nothing_is_imported_under_a_name_of_another_form(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`refuse_code` knows strangers' code by the form of its name, so nothing else may be imported."""
    monkeypatch.chdir(tmp_path)
    Path(f"{use.strip().partition(':')[0]}.py").write_text("open('ran', 'w').close()\n")
    with pytest.raises(SeepageError, match="module:thing"):
        import_dotted(use)
    assert not Path("ran").exists()


def test_a_dotted_name_is_looked_for_in_the_current_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("seepage_test_module.py").write_text("def thing(): return 3\n")
    before = list(sys.path)
    assert import_dotted("seepage_test_module:thing")() == 3
    assert sys.path == before
    with pytest.raises(SeepageError, match="'thong'; did you mean thing"):
        import_dotted("seepage_test_module:thong")
    with pytest.raises(SeepageError, match="'seepage_no_module'"):
        import_dotted("seepage_no_module:thing")
    assert sys.path == before
    sys.modules.pop("seepage_test_module")
