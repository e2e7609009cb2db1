"""Names of parts: which file registers them, what they stand for, and the way back."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from seepage import CLIENTS, FedSGD, SeepageError, Sparsify
from seepage.audit.recipe.trust import refuse_code
from seepage.base.registry import KINDS, Entry, Registry, Spec


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_leads_to_a_part_that_registered_itself(kind: str) -> None:
    registry = KINDS[kind]
    assert len(registry) > 2
    for entry in registry.describe():
        assert entry.home.startswith(f"{registry.room}")
        assert entry.about


def test_a_name_stands_for_one_thing() -> None:
    registry: Registry[object] = Registry("attack", "seepage.attacks", "attacks")
    registry.register("new", paper="x")(Own)
    assert registry.find("new").paper == "x"
    assert registry["new"]() == Own()
    registry.register("new")(Own)  # as where a file is run twice
    with pytest.raises(SeepageError, match="'linear'"):
        registry.register("linear")(Own)
    with pytest.raises(AttributeError):
        _ = registry["new"].nothing


def test_a_part_is_registered_in_any_form_or_its_file_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ourroom").mkdir()
    (tmp_path / "ourroom" / "__init__.py").touch()
    (tmp_path / "ourroom" / "part.py").write_text("@registry.attacks.register('spelled')\ndef spelled(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ours: Registry[object] = Registry("attack", "ourroom", "attacks")
    assert list(ours) == ["spelled"]
    assert "ourroom.part" not in sys.modules, "names are found without importing their files"

    def hidden() -> None: ...

    hidden.__module__ = "ourroom.part"
    with pytest.raises(SeepageError, match=r"write @attacks.register\('hidden'\)"):
        ours.register("hidden")(hidden)


@dataclass(frozen=True)
class Own(Sparsify):
    keep: float = 0.5


def test_the_way_back_from_a_part_to_its_name() -> None:
    assert KINDS["defenses"].spec_of(Sparsify(keep=0.5)) == Spec("sparsify", {"keep": 0.5})
    assert KINDS["defenses"].spec_of(Own()) == Spec(f"{__name__}:Own", {"keep": 0.5})
    assert CLIENTS.build(CLIENTS.spec_of(FedSGD(mode="eval"))) == FedSGD(mode="eval")


def test_names_of_a_library_are_those_of_one_entry() -> None:
    found = KINDS["models"].find("torchvision:resnet18")
    assert isinstance(found, Entry)
    assert found.leading == ("resnet18",)
    assert "torchvision:NAME" not in KINDS["models"]
    with pytest.raises(SeepageError, match="torchvision:NAME"):
        KINDS["models"].find("torchvision")


OWN_CODE = """
def attack(transcript): ...
def loader(): ...
"""


def test_a_function_of_the_wrong_form_is_told_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_forms.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    problems = KINDS["attacks"].problems(Spec("wrong_forms:attack"))
    assert "must return a seepage.Attack" in problems[-1]
    assert "takes no argument" in KINDS["data"].problems(Spec("wrong_forms:loader"))[0]


def test_every_name_of_code_is_shown_to_who_is_asked_to_trust_it() -> None:
    names = [f"a_module_with_a_long_name_{number}:Thing" for number in range(9)]
    with pytest.raises(SeepageError) as refusal:
        refuse_code({"attack": [{"use": name} for name in names]}, "theirs.toml")
    assert all(name in str(refusal.value) for name in names)
