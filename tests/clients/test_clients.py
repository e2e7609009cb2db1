"""What is said of clients as upstream trains them: nothing that is false, and what the files do tell.

A client's whole reading is compared with the truth: classes and counts, batch size, optimizer, weight decay, passes,
certificates, and what is to be questioned. What no check here knows must not be said either: the levels and names of
causes are the only ones allowed.
"""

import pytest
import torch
from safetensors.torch import load_file
from tests.clients.made import Client
from tests.clients.run import Reading, read
from tests.clients.upstream import CLIENTS

from seepage.audit.doubts import WITHOUT_RUN, causes
from seepage.audit.outcome import Outcome
from seepage.leakage import Exposure
from seepage.transcript.foreign import read_facts

SLOW = {"flower-huggingface", "peft-lora", "timm-vit-tiny"}
"""These take seconds to be built."""
NEEDS = {"bert": "transformers", "lora_vit": "peft", "timm_vit": "timm", "timm_vit_tiny": "timm"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name in SLOW)) for one in CLIENTS],
)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, Reading, Exposure]:
    client: Client = request.param
    pytest.importorskip(NEEDS.get(client.network, "torch"))
    found = read(client, tmp_path_factory.mktemp(client.name))
    return client, found, found.exposure


Told = tuple[Client, Reading, Exposure]


def said(found: Reading) -> dict[str, str]:
    return dict(read_facts(found.folder / "observed").said)


def test_the_classes_are_there_and_as_often_as_said(told: Told) -> None:
    client, found, look = told
    if look.labels is None or not look.labels.believed:
        assert "labels" not in said(found)
        assert client.nameless, "the last bias names its classes"
        return
    assert not client.nameless
    true = torch.bincount(found.labels, minlength=max(look.labels.present) + 1)
    assert all(true[label] > 0 for label in look.labels.present)
    if look.labels.least is not None:
        assert client.counted, "counts are proved for one step of a loss that is fully explained alone"
        assert all(true[label] >= least for label, least in enumerate(look.labels.least) if least)
        most = look.labels.most or ()
        assert all(true[label] <= many for label, many in enumerate(most) if label < len(true))
    else:
        assert look.labels.counts is None
        assert not client.counted


def test_the_batch_size_is_right_or_not_said(told: Told) -> None:
    client, found, look = told
    assert found.transcript[0].batch_size in (None, client.size)
    assert look.at_least is None or look.at_least <= client.size
    assert not any(doubt.startswith("Contradicted") for doubt in found.result.cells[0].doubts)
    if client.sized:
        assert found.transcript[0].batch_size == client.size


def test_steps_of_signs_are_recognized_and_no_attack_takes_them_for_gradients(told: Told) -> None:
    client, found, look = told
    names = {finding.name for finding in look.defenses}
    assert names == (client.looks | {"adaptive"} if client.signs else client.looks)
    rule = found.transcript.knowledge.client
    assert rule.signs_alone is client.signs
    assert rule.linear_in_gradient is not client.signs
    if client.signs:
        assert {row.outcome for row in found.result.rows} == {Outcome.INAPPLICABLE}
        assert "learning rate" not in said(found)


def test_weight_decay_is_that_of_each_tensor(told: Told) -> None:
    client, found, _ = told
    decayed = found.transcript[0].update.decayed
    if client.decay is None:
        assert not decayed
        return
    assert max(decayed.values()) == pytest.approx(client.decay, rel=0.02)
    assert not set(decayed) & set(client.spared)


def test_what_is_certified_is_of_a_private_example_and_nothing_else_is_said_to_be(told: Told) -> None:
    client, found, _ = told
    for row in found.result.rows:
        if row.space == "feature":
            # No feature of these clients is certified; one that is must be compared with what the layer read.
            assert row.outcome is Outcome.MIXTURE_ONLY
        assert row.certified is None or row.certified.n == 0
        assert row.outcome is not Outcome.FAILED, row.reason
    assert found.result.verdict_level == client.level


def test_what_is_questioned_is_what_the_files_speak_for(told: Told) -> None:
    client, found, _ = told
    assert set(causes(found.transcript, said(found))) == client.asks
    ran = any(row.outcome not in WITHOUT_RUN for row in found.result.rows)
    assert bool(found.result.cells[0].doubts) is (not client.signs and (ran or bool(client.asks)))


def test_images_are_as_near_as_said(told: Told) -> None:
    client, found, look = told
    if client.near is None:
        assert look.patches is None
        return
    (file,) = (found.folder / "attacks").glob("**/patch_embedding/*.safetensors")
    guess = load_file(file)["inputs"]
    decibels = float(-10 * (guess - found.inputs).square().mean().log10())
    assert decibels > client.near
    assert look.patches is not None
    assert look.patches.expected_db == pytest.approx(decibels, abs=6)


def test_frozen_weights_that_are_in_no_file_are_named(told: Told) -> None:
    client, found, _ = told
    assert ("weights" in said(found)) is client.lacking
