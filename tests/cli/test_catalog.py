"""`seepage list`: everything that has a name, with what a reader needs to choose."""

import json

from seepage.attacks import ATTACKS
from seepage.cli.catalog import catalog
from seepage.federation.clients import CLIENTS
from seepage.federation.data import DATA
from seepage.federation.defenses import DEFENSES
from seepage.federation.models import MODELS
from seepage.measure.metrics import METRICS


def test_every_registered_name_is_listed() -> None:
    listed = {kind: [entry["name"] for entry in entries] for kind, entries in catalog().items()}
    assert listed["attacks"] == list(ATTACKS)  # cheapest first
    assert set(listed["defenses"]) == set(DEFENSES)
    assert set(listed["clients"]) == set(CLIENTS)
    assert set(listed["models"]) == {*(entry.name for entry in MODELS.describe()), "module:factory"}
    assert set(listed["data"]) == {*DATA, "PATH"}
    assert set(listed["metrics"]) == set(METRICS)
    assert {"default", "FILE.toml"} <= set(listed["recipes"])


def test_every_entry_says_what_it_is() -> None:
    found = catalog()
    assert json.loads(json.dumps(found)) == found
    for kind, entries in found.items():
        for entry in entries:
            assert all(isinstance(value, str) for value in entry.values())
            about = entry.get("about") or entry.get("needs")
            assert about or kind == "recipes", (kind, entry["name"])
            assert "\n" not in "".join(entry.values())


def test_attacks_have_the_promised_keys() -> None:
    for entry in catalog()["attacks"]:
        assert all(entry[key] for key in ("name", "needs", "paper", "cost"))
        assert "self" not in entry["options"]


def test_options_of_a_model_are_those_one_can_set() -> None:
    (fc2,) = [entry for entry in catalog()["models"] if entry["name"] == "fc2"]
    assert fc2["options"] == "hidden=256"
