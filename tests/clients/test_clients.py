"""What is said of clients as upstream trains them: nothing that is false, and what the files do tell.

A client's whole reading is compared with the truth: classes and counts, batch size, optimizer, weight decay, passes,
certificates, and what is to be questioned. What no check here knows must not be said either: the levels and names of
causes are the only ones allowed.
"""

import pytest
import torch
from safetensors.torch import load_file
from tests.clients.made import Client
from tests.clients.run import Reading, capture_of, read
from tests.clients.upstream import CLIENTS
from torch import nn

from seepage.attacks.exposure import Exposure
from seepage.audit.caveats import WITHOUT_RUN, causes
from seepage.audit.checking import Look, check_capture
from seepage.audit.facts import Fact
from seepage.audit.outcome import Outcome
from seepage.federation.transcript.foreign import read_facts

SLOW = {"examples-imagenet", "flower-huggingface", "peft-lora", "pytorch-cifar-autocast", "timm-vit", "timm-vit-tiny"}
"""These take seconds to be built and trained."""
LOW = "low precision"
NEEDS = {"bert": "transformers", "lora_vit": "peft", "timm_vit": "timm", "timm_vit_tiny": "timm"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name in SLOW)) for one in CLIENTS],
)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, Reading, Exposure]:
    client: Client = request.param
    pytest.importorskip(NEEDS.get(client.network, "torch"))
    found = read(client, tmp_path_factory.mktemp(client.name))
    return client, found, found.exposure


SideInformation = tuple[Client, Reading, Exposure]


def said(found: Reading) -> dict[str, str]:
    return dict(read_facts(found.folder / "observed").said)


@pytest.mark.slow
def test_the_classes_are_there_and_as_often_as_said(known: SideInformation) -> None:
    client, found, look = known
    labels = next((one.evidence for one in look.of("labels") if one.tensors), None)
    if labels is None:
        assert "labels" not in said(found)
        assert client.nameless, "the last bias names its classes"
        return
    # Whether sums in bfloat16 cancel is up to the processor's kernels; what is said then must be true all the same.
    assert not client.nameless or LOW in client.asks
    true = torch.bincount(found.labels, minlength=max(labels["present"]) + 1)
    assert all(true[label] > 0 for label in labels["present"])
    if labels["least"] is not None:
        assert client.counted, "counts are proved for one step of a loss that is fully explained alone"
        assert all(true[label] >= least for label, least in enumerate(labels["least"]) if least)
        most = labels["most"] or ()
        assert all(true[label] <= many for label, many in enumerate(most) if label < len(true))
    else:
        assert labels["counts"] is None
        assert not client.counted


def test_the_batch_size_is_right_or_not_said(known: SideInformation) -> None:
    client, found, look = known
    sent = found.transcript[0]
    assert sent.batch_size in (None, client.size) or (sent.size_inferred and sent.batch_size < client.size)
    assert look.at_least is None or look.at_least <= client.size
    assert not any(doubt.startswith("Contradicted") for doubt in found.result.cases[0].caveats)
    if client.sized:
        assert found.transcript[0].batch_size == client.size


def test_steps_of_signs_are_recognized_and_no_attack_takes_them_for_gradients(known: SideInformation) -> None:
    client, found, look = known
    names = {finding.name for finding in look.defenses}
    assert names == (client.looks | {"adaptive"} if client.signs else client.looks)
    rule = found.transcript.knowledge.client
    assert rule.sign_only is client.signs
    assert rule.linear_in_gradient is not client.signs
    if client.signs:
        assert {row.outcome for row in found.result.rows} == {Outcome.INAPPLICABLE}
    if client.signs or client.bent:
        assert "learning rate" not in said(found)


def test_one_step_of_an_optimizer_that_bends_it_is_inverted(known: SideInformation) -> None:
    client, found, _ = known
    sent = found.transcript[0]
    assert (sent.update.step is not None) is client.bent
    if client.bent:
        measured = sent.measured(found.transcript.knowledge.client)
        assert measured.step is not None
        assert not measured.step.linear
        assert 0 < measured.known() <= 1


def test_weight_decay_is_that_of_each_tensor(known: SideInformation) -> None:
    client, found, _ = known
    decayed = found.transcript[0].update.decayed
    if client.decay is None:
        assert not decayed
        return
    assert max(decayed.values()) == pytest.approx(client.decay, rel=0.02)
    assert not set(decayed) & set(client.spared)


def test_what_is_certified_is_of_a_private_example_and_nothing_else_is_said_to_be(known: SideInformation) -> None:
    client, found, _ = known
    for row in found.result.rows:
        if row.space == "feature":
            certified = sum(certified_features(found, row.attack))
            assert row.outcome is (Outcome.FEATURES_ONLY if certified else Outcome.MIXTURE_ONLY)
            assert (row.certified.n if row.certified else 0) == certified
        else:
            assert row.certified is None or row.certified.n == 0
        assert row.outcome is not Outcome.FAILED, row.reason
    assert found.result.verdict_level == client.level


def certified_features(found: Reading, attack: str) -> list[bool]:
    """Which features an attack certifies, each of which must be what a layer read of a private example."""
    (file,) = (found.folder / "attacks").glob(f"**/{attack}/*.safetensors")
    held = load_file(file)
    certified = held.get("certified", torch.zeros(len(held["inputs"]))).bool()
    reads: list[torch.Tensor] = []
    model = found.transcript.knowledge.model
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    hooks = [layer.register_forward_pre_hook(lambda _, given: reads.append(given[0])) for layer in layers]
    with torch.no_grad():
        model(found.inputs)
    for hook in hooks:
        hook.remove()
    for feature in held["inputs"][certified]:
        near = [
            torch.nn.functional.cosine_similarity(feature, read) for read in reads if read.shape[1:] == feature.shape
        ]
        assert torch.cat(near).max() > 0.99
    return certified.tolist()


def test_what_is_questioned_is_what_the_files_speak_for(known: SideInformation) -> None:
    client, found, _ = known
    assert set(causes(found.transcript, said(found))) == client.asks
    certified = any(row.certified is not None and row.certified.n for row in found.result.rows)
    ran = not certified and any(row.outcome not in WITHOUT_RUN for row in found.result.rows)
    assert bool(found.result.cases[0].caveats) is (not client.signs and (ran or bool(client.asks)))


def test_images_are_as_near_as_said(known: SideInformation) -> None:
    client, found, look = known
    if client.near is None:
        assert not look.of("patches")
        return
    (file,) = (found.folder / "attacks").glob("**/patch_embedding/*.safetensors")
    guess = load_file(file)["inputs"]
    decibels = float(-10 * (guess - found.inputs).square().mean().log10())
    assert decibels > client.near
    (patches,) = look.of("patches")
    # Where stochastic depth dropped a block, the decay of all layers is not known, and no error is promised.
    expected = patches.evidence["expected_db"]
    assert expected is None or expected == pytest.approx(decibels, abs=6)


def test_frozen_weights_that_are_in_no_file_are_named(known: SideInformation) -> None:
    client, found, _ = known
    assert ("weights" in said(found)) is client.lacking


@pytest.fixture(scope="module")
def facts(known: SideInformation) -> dict[str, Fact]:
    """What `seepage check` says of the client before any attack."""
    client, found, _ = known
    (case,) = check_capture(capture_of(client, found.folder.parent), Look()).cases
    return {fact.name: fact for fact in case.facts}


@pytest.mark.slow
def test_each_fact_is_told_with_its_origin_and_none_is_false(
    known: SideInformation, facts: dict[str, Fact], subtests: pytest.Subtests
) -> None:
    client, found, look = known
    origins = {name: fact.origin for name, fact in facts.items()}
    with subtests.test("what is stated is known, and needs no option"):
        assert {fact.option for fact in facts.values() if fact.origin in ("stated", "read")} == {""}
        stated = {"lr": "learning rate", "steps": "local steps", "batch_size": "batch size"}
        for option, name in stated.items():
            bent = client.signs or client.bent
            known_of = option in client.known and not (bent and name == "learning rate")
            assert name not in origins or (origins[name] == "stated") is known_of
        assert origins["input shape"] == "stated"
    with subtests.test("keys"):
        parameters = dict(found.transcript.knowledge.model.named_parameters())
        assert facts["keys"].value.startswith(f"{len(found.transcript[0].params)} of the network's {len(parameters)}")
        assert ("weights" in facts) is client.lacking
        assert ("sent" in facts) is client.lacking
    with subtests.test("optimizer"):
        # Several steps leave more sizes than one, and which optimizer took them is then a guess.
        assert origins["optimizer"] in ("inferred", "assumed")
        plain = facts["optimizer"].value.removeprefix("assumed: ").startswith("SGD")
        assert plain is not (client.signs or client.bent)
    with subtests.test("batch size"):
        size = facts["batch size"]
        if size.origin == "inferred":
            number = int(size.value.split(" ")[0])
            assert number == client.size or (number < client.size and "or more" in size.value)
    with subtests.test("weight decay"):
        decay = facts["weight decay"]
        if client.decay is not None:
            assert decay.origin == "inferred"
            assert float(decay.value.split(" ")[0]) == pytest.approx(client.decay, rel=0.02)
        else:
            assert (decay.origin, client.hides) in (("inferred", frozenset()), ("unknown", client.hides))
    with subtests.test("noise and half precision"):
        assert (origins["noise"] == "inferred" and not facts["noise"].value.startswith("none")) is (
            "noised" in client.looks
        )
        assert facts["half precision"].value.startswith("as under autocast") is ("low precision" in client.asks)
    with subtests.test("batch norm"):
        norms = sum(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in parts_of(found))
        assert origins["batch norm"] == "read"
        assert facts["batch norm"].value.startswith("train mode") is (norms > 0)
        assert ("passes" in facts["batch norm"].value) is ("several passes" in client.asks)
    with subtests.test("dropout"):
        drops = sum("drop" in type(one).__name__.lower() and is_on(one) for one in parts_of(found))
        draws = client.network == "vae"  # of its own code
        assert (origins["dropout"] == "unknown") is (drops > 0 or draws)
    with subtests.test("classes and labels"):
        if client.network == "vae":
            assert facts["classes"].value.startswith("none")
            assert origins["loss"] == "stated"
        assert (origins.get("labels") in ("inferred", "assumed")) is not client.nameless or LOW in client.asks
    with subtests.test("tokens"):
        assert ("tokens" in facts) is (client.network == "bert")
        if "tokens" in facts:
            count = int(facts["tokens"].value.split(" ")[0].replace(",", ""))
            assert 0.99 * len(found.inputs.unique()) < count <= len(found.inputs.unique())
    with subtests.test(
        "a span of inner vectors is not wider than the batch, and one is said to be unmixable if it is so"
    ):
        assert all(span.evidence["examples"] == client.size for span in look.of("span"))


def parts_of(found: Reading) -> list[nn.Module]:
    return list(found.transcript.knowledge.model.modules())


def is_on(module: nn.Module) -> bool:
    return getattr(module, "drop_prob", getattr(module, "p", 0.0)) > 0
