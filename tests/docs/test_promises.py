"""Each sentence that SECURITY.md and docs/safety.md promise has tests, named here by the words it begins with."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRANGERS = "tests/cli/test_strangers_folders.py"
HOSTILE = "tests/base/test_hostile_files.py"

pytestmark = pytest.mark.skipif(not (ROOT / "SECURITY.md").exists(), reason="the repository's own files are not here")

SAFETY = {
    "A gate (": [(STRANGERS, "test_a_run_that_a_checkout_brings_opens_no_gate")],
    "That key is made": [
        (STRANGERS, "test_the_key_is_ones_own_alone"),
        (STRANGERS, "test_a_seal_of_ones_own_vouches_for_nothing_else"),
    ],
    "What a stranger began": [
        (STRANGERS, "test_a_run_that_a_stranger_began_is_not_gone_on_from_and_never_becomes_ones_own")
    ],
    "Your own interrupted": [
        (STRANGERS, "test_ones_own_run_is_gone_on_from_and_judged_again_without_a_question"),
        (STRANGERS, "test_without_a_place_for_a_key_a_fresh_run_is_judged_and_an_older_one_says_what_to_do"),
    ],
    "A run without a manifest": [(STRANGERS, "test_a_missing_manifest_is_a_change_wherever_something_is_judged")],
    "The action refuses": [("tests/docs/test_distribution.py", "test_the_action_judges_no_folder_that_is_there")],
    "Files are hashed": [
        (STRANGERS, "test_terabytes_of_nothing_are_refused_before_they_are_hashed"),
        (STRANGERS, "test_many_files_of_nothing_have_a_limit_together"),
    ],
    "A folder is walked": [
        (STRANGERS, "test_folders_a_thousand_deep_are_one_sentence"),
        (STRANGERS, "test_entries_of_a_folder_have_a_limit"),
        (HOSTILE, "refuse_links"),
    ],
    "JSON is read": [
        (STRANGERS, "test_json_from_others_is_bounded"),
        (STRANGERS, "test_a_strangers_result_is_one_sentence"),
    ],
    "A file has at most": [
        (STRANGERS, "test_thousands_of_names_are_refused_by_their_number"),
        (STRANGERS, "test_a_number_in_a_description_stops_no_command"),
    ],
    "`verify` calls": [(STRANGERS, "test_whatever_is_not_listed_is_added")],
    "`verify --json` says": [
        (STRANGERS, "test_json_says_whose_key_it_is"),
        (STRANGERS, "test_keys_under_which_anybody_can_sign_are_refused"),
    ],
    "`evidence --out` replaces": [
        (STRANGERS, "test_evidence_removes_nothing_that_is_not_its_own"),
        (STRANGERS, "test_what_a_killed_evidence_left_is_private_and_goes_with_the_next"),
    ],
    "In the pack": [(STRANGERS, "test_a_strangers_words_act_in_no_format")],
    "The settings of pictures": [(STRANGERS, "test_the_settings_of_pictures_in_the_working_folder_are_not_read")],
}

SECURITY = {
    "**Nothing of a stranger's is run.**": [
        (STRANGERS, "test_nothing_of_the_working_folder_is_imported_with_p"),
        (HOSTILE, "pickle"),
    ],
    "**No file and no client stops a machine.**": [
        (STRANGERS, "test_terabytes_of_nothing_are_refused_before_they_are_hashed"),
        (HOSTILE, "def test_"),
        ("tests/recorder/test_recorder.py", "def test_"),
    ],
    "**Private data stay.**": [("tests/cli/test_names.py", "def test_"), ("tests/report/test_page.py", "def test_")],
    "**A stranger's words are words.**": [
        (STRANGERS, "test_a_strangers_words_act_in_no_format"),
        ("tests/report/test_strangers.py", "def test_"),
    ],
    "**A gate that is open was judged.**": [(STRANGERS, "test_a_run_that_a_checkout_brings_opens_no_gate")],
}


@pytest.mark.parametrize(
    ("page", "heading", "tests"),
    [("docs/safety.md", "What is promised", SAFETY), ("SECURITY.md", "What seepage promises", SECURITY)],
)
def test_every_promise_has_tests_that_are_there(
    page: str, heading: str, tests: dict[str, list[tuple[str, str]]]
) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    promises = re.findall(r"^- (.+)$", section, re.MULTILINE)
    assert promises
    for promise in promises:
        (own,) = [found for start, found in tests.items() if promise.startswith(start)]
        for file, name in own:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert (f"def {name}(" if name.startswith("test_") else name) in source, (promise, file, name)
    assert len(promises) == len(tests)


def test_the_limits_that_the_page_names_are_those_of_the_code() -> None:
    from seepage.base import hashing, storage

    text = " ".join((ROOT / "docs" / "safety.md").read_text(encoding="utf-8").split())
    for words in (
        f"{hashing.MOST_OF_PACK >> 20} MiB for a whole pack", f"are refused from {hashing.MOST_EMPTY >> 20} MiB on",
        f"{storage.DEEPEST_FOLDER} levels deep and up to {storage.MOST_ENTRIES:,} entries",
        f"up to {storage.LARGEST_JSON >> 20} MiB, {storage.DEEPEST_JSON} levels, {storage.MOST_DIGITS} digits",
        f"at most {storage.MOST_TENSORS:,} tensors",
    ):  # fmt: skip
        assert words in text
