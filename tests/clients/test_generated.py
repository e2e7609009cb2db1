"""Nothing false on clients that nobody wrote: drawn ones, and one of each form that networks and files come in."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tests.clients.generated import checked
from torch import Tensor, nn

from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.base.registry import Spec
from seepage.errors import SeepageError
from seepage.federation.models.weights import read_state
from seepage.federation.types import Architecture


def false_in(seeds: Iterable[int]) -> list[str]:
    return [f"{d.seed}: {one}" for d, verdict in checked(seeds) for one in verdict.false]


def test_nothing_false_is_said_of_a_few_drawn_clients() -> None:
    assert not false_in(range(8))


def test_a_word_that_moved_as_several_places_did_is_put_at_none() -> None:
    """Behind Adagrad one text outweighed two, so that its places moved alike, and one of its tokens as all of them."""
    assert not false_in(range(700159, 700160))


def test_numbers_that_faint_noise_moved_by_a_unit_are_no_tokens() -> None:
    """In half precision noise moved two numbers of a row that nobody looked up, both ways, which counted as a token.

    And a number near zero by many units of its own last place.
    """
    assert not false_in([700192, 1000227])


@pytest.mark.slow
def test_nothing_false_is_said_of_two_hundred_drawn_clients() -> None:
    assert not false_in(range(200))


# --- one of each form ---------------------------------------------------------------------------------------------


class Small(nn.Module):
    """A network of named layers, whose forward pass is a function of the case."""

    def __init__(self, run: Callable[[Any, Tensor], Any], **layers: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def words_last() -> nn.Module:
    return Small(lambda s, x: s.h(s.g(s.words(x))[0][:, -1]), g=nn.GRU(8, 8, batch_first=True),
                 words=nn.Embedding(50, 8), h=nn.Linear(8, 4))  # fmt: skip


def codes() -> nn.Module:
    return Small(lambda s, x: s.h(torch.cat([s.e(x[:, 0].long()), s.n(x[:, 1:])], 1)), e=nn.Embedding(12, 4),
                 n=nn.LayerNorm(2), h=nn.Linear(6, 3))  # fmt: skip


def tied() -> nn.Module:
    made = Small(lambda s, x: s.out(s.g(s.e(x))[0]).transpose(1, 2), e=nn.Embedding(40, 8),
                 g=nn.GRU(8, 8, batch_first=True), out=nn.Linear(8, 40))  # fmt: skip
    made.out.weight = made.e.weight
    return made


def places() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(16, 9)


def log_softmax() -> nn.Module:
    return Small(
        lambda s, x: F.log_softmax(s.h(s.e(x)), -1).transpose(1, 2), e=nn.Embedding(50, 16), h=nn.Linear(16, 9)
    )


def inplace() -> nn.Module:
    return Small(lambda s, x: s.h(s.n(F.relu(s.a(x), inplace=True))), a=nn.Linear(30, 64), n=nn.BatchNorm1d(64),
                 h=nn.Linear(64, 4))  # fmt: skip


def dropping() -> nn.Module:
    return Small(lambda s, x: s.h(F.dropout(s.a(x).relu(), 0.5, s.training)), a=nn.Linear(30, 64), h=nn.Linear(64, 4))


def erasing() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 16), nn.GroupNorm(16, 16), nn.ReLU(), nn.Linear(16, 2))


def findings() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 14))


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 6))


HERE = __name__
RATE = 0.1


def drawn(*shape: int, most: float = 1.0) -> Tensor:
    return most * torch.rand(shape, generator=torch.Generator().manual_seed(1))


def numbers(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(2))


def step(
    net: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[Tensor]]:
    """The states around one step of SGD, and its gradient."""
    net.train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    torch.manual_seed(3)
    loss(net(x), y).backward()
    slopes = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    torch.optim.SGD(net.parameters(), RATE).step()
    return before, {name: t.clone() for name, t in net.state_dict().items()}, slopes


def looked(home: Path, network: str, files: Mapping[str, Any], **known: Any) -> Check:
    """What is said of files; those in memory are written by `torch.save`."""
    paths = {}
    for name, content in files.items():
        paths[name] = content if isinstance(content, Path) else home / f"{name}.pt"
        if not isinstance(content, Path):
            torch.save(content, paths[name])
    own = {"client": Spec("fedsgd", {"loss": known.pop("loss")})} if "loss" in known else {}
    lr = None if "gradient" in files else RATE
    capture = Capture(**paths, lr=lr, architecture=Architecture(f"{HERE}:{network}"), **own, **known)
    return check_capture(capture, Look()).cases[0]


def facts(check: Check) -> dict[str, tuple[str, str]]:
    return {fact.name: (fact.value, fact.origin) for fact in check.facts}


def test_tables_are_found_wherever_they_stand(tmp_path: Path) -> None:
    x, y = numbers(50, 2, 7), torch.tensor([0, 3])
    before, after, _ = step(words_last(), x, y)
    said = facts(looked(tmp_path, "words_last", {"before": before, "after": after}, input_shape=(7,)))
    assert int(said["tokens"][0].split()[0]) == len(x.unique())
    row = torch.cat([numbers(12, 4, 1).float(), drawn(4, 2)], 1)
    before, after, _ = step(codes(), row, torch.tensor([0, 1, 2, 1]))
    said = facts(looked(tmp_path, "codes", {"before": before, "after": after}, input_shape=(3,)))
    assert int(said["codes in e"][0].split()[0]) == len(row[:, 0].unique())
    assert "tokens" not in said


@pytest.mark.parametrize("stated", [None, 9])
def test_the_axis_of_the_classes_is_that_of_the_last_layers_rows(tmp_path: Path, stated: int | None) -> None:
    y = numbers(9, 2, 6)
    before, after, _ = step(places(), drawn(2, 6, 16), y, lambda out, t: F.cross_entropy(out.transpose(1, 2), t))
    found = looked(tmp_path, "places", {"before": before, "after": after}, input_shape=(6, 16), num_classes=stated)
    value, origin = facts(found)["classes"]
    assert int(value.split(",")[0]) == 9
    assert origin == ("read" if stated is None else "stated")
    (labels,) = found.exposure.of("labels")
    assert set(labels.evidence["present"]) <= set(y.unique().tolist())


def test_a_number_of_classes_that_the_network_has_not_is_refused(tmp_path: Path) -> None:
    before, after, _ = step(plain(), drawn(3, 20), torch.tensor([0, 2, 4]))
    with pytest.raises(SeepageError, match="--classes"):
        looked(tmp_path, "plain", {"before": before, "after": after}, num_classes=1000)


def test_shared_weights_and_permuted_heads_name_their_labels(tmp_path: Path) -> None:
    y = numbers(40, 1, 10)
    before, after, _ = step(tied(), numbers(40, 1, 10), y)
    (labels,) = looked(tmp_path, "tied", {"before": before, "after": after}, input_shape=(10,)).exposure.of("labels")
    assert labels.evidence["present"]
    assert set(labels.evidence["present"]) <= set(y.unique().tolist())
    y = numbers(9, 2, 6)
    before, after, _ = step(log_softmax(), numbers(50, 2, 6), y, F.nll_loss)
    found = looked(tmp_path, "log_softmax", {"before": before, "after": after}, input_shape=(6,))
    (labels,) = found.exposure.of("labels")
    assert labels.evidence["present"]
    assert set(labels.evidence["present"]) <= set(y.unique().tolist())


def test_a_layer_that_was_written_over_is_not_what_a_norm_reads(tmp_path: Path) -> None:
    before, after, _ = step(inplace(), drawn(6, 30), torch.tensor([0, 1, 2, 3, 0, 1]))
    found = looked(tmp_path, "inplace", {"before": before, "after": after}, input_shape=(30,), batch_size=6)
    assert found.exposure.at_least == 6
    assert not any("rank" in note and "cannot give" in note for note in found.exposure.notes)


def test_dropout_in_the_code_is_seen(tmp_path: Path) -> None:
    before, after, _ = step(dropping(), drawn(3, 30), torch.tensor([0, 1, 2]))
    assert facts(looked(tmp_path, "dropping", {"before": before, "after": after}))["dropout"][1] == "unknown"
    before, after, _ = step(plain(), drawn(3, 20), torch.tensor([0, 2, 4]))
    assert facts(looked(tmp_path, "plain", {"before": before, "after": after}))["dropout"][0].startswith("none")


def test_a_normalization_of_single_channels_is_no_batch_norm(tmp_path: Path) -> None:
    y = torch.tensor([0, 0, 1, 1])
    before, after, _ = step(erasing(), drawn(4, 30), y)
    found = looked(tmp_path, "erasing", {"before": before, "after": after}, batch_size=4)
    assert facts(found)["batch norm"] == ("none in this network", "read")
    # Single values normalize to zero whatever they are, so that rounding is all that reaches the first layer.
    assert [one.evidence["layer"] for one in found.exposure.of("layer")] == ["3"]
    assert not found.exposure.of("noisy-rows")


def test_findings_of_independent_sigmoids_are_named(tmp_path: Path) -> None:
    y = torch.zeros(2, 14)
    y[0, [6, 9]], y[1, 12] = 1, 1
    before, after, _ = step(findings(), drawn(2, 20), y, F.binary_cross_entropy_with_logits)
    found = looked(tmp_path, "findings", {"before": before, "after": after}, loss="bce", batch_size=2)
    present = set(found.exposure.of("labels")[0].evidence["present"])  # one of two examples may cancel the other's
    assert present
    assert present <= {6, 9, 12}
    assert facts(found)["half precision"][1] == "unknown", "sums of sigmoids need not vanish"
    nothing = facts(looked(tmp_path, "findings", {"before": before, "after": after}, batch_size=2))
    assert nothing["labels"] == ("not read, as the loss is not known", "unknown")


# --- files as frameworks write them -------------------------------------------------------------------------------

LABELS = torch.tensor([0, 2, 4])


def options(home: Path, before: Mapping[str, Tensor], after: Mapping[str, Tensor], slopes: list[Tensor]) -> Any:
    """Files of one step, by the form that they come in."""
    arrays = [home / f"round-{t}.npz" for t in (0, 1)]
    for path, state in zip(arrays, (before, after), strict=True):
        np.savez(path, *[t.numpy() for t in state.values()])
    folders = [home / f"hub-{t}" for t in (0, 1)]
    for folder, state in zip(folders, (before, after), strict=True):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        save_file(dict(state), folder / "model.safetensors")
    wrapped = [{"state_dict": state, "hyper_parameters": argparse.Namespace(lr=0.1)} for state in (before, after)]
    unlike = home / "weights.bin"  # its first bytes tell the format
    save_file(dict(after), unlike)
    difference = {name: after[name] - before[name] for name in before}
    return {
        "arrays": {"before": arrays[0], "after": arrays[1]},
        "folders": {"before": folders[0], "after": folders[1]},
        "options beside": {"before": wrapped[0], "after": wrapped[1]},
        "another ending": {"before": before, "after": unlike},
        "difference": {"before": before, "difference": difference},
        "difference as after": {"before": before, "after": difference},
        "list of slopes": {"before": before, "gradient": slopes},
    }


FORMS = ["arrays", "folders", "options beside", "another ending", "difference", "difference as after", "list of slopes"]


@pytest.mark.parametrize("form", FORMS)
def test_files_are_read_in_the_form_they_come_in(tmp_path: Path, form: str) -> None:
    made = options(tmp_path, *step(plain(), drawn(3, 20), LABELS))[form]
    found = looked(tmp_path, "plain", made, batch_size=3)
    assert set(found.exposure.of("labels")[0].evidence["present"]) == set(LABELS.tolist())
    assert found.exposure.at_least == 3
    said = facts(found)
    assert ("arrays" in said) is (form in ("arrays", "list of slopes"))
    assert ("what was sent" in said) is (form == "difference as after")


def test_a_difference_that_is_given_as_a_gradient_is_questioned(tmp_path: Path) -> None:
    before, after, _ = step(plain(), drawn(1, 20), LABELS[:1])
    difference = {name: after[name] - before[name] for name in before}
    with pytest.raises(SeepageError, match="--difference"):
        looked(tmp_path, "plain", {"before": before, "gradient": difference}, batch_size=1)


def test_gradients_of_single_examples_are_recognized(tmp_path: Path) -> None:
    net, x = plain(), drawn(3, 20)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    each = [step(plain(), x[i : i + 1], LABELS[i : i + 1])[2] for i in range(3)]
    stacked = {name: torch.stack([one[k] for one in each]) for k, name in enumerate(before)}
    found = looked(tmp_path, "plain", {"before": before, "gradient": stacked})
    assert found.exposure.batch_size == 3
    assert "what was sent" in facts(found)


def test_what_lies_beside_the_tensors_is_left_out_and_never_run(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    torch.save({"state_dict": {"w": torch.ones(2)}, "trainer": Code()}, tmp_path / "a.ckpt")
    assert list(read_state(tmp_path / "a.ckpt")) == ["w"]
    assert not (tmp_path / "ran").exists()


def test_a_table_that_holds_itself_is_one_sentence(tmp_path: Path) -> None:
    own: dict[str, Any] = {}
    own["state_dict"] = own
    torch.save(own, tmp_path / "cycle.pt")
    with pytest.raises(SeepageError, match="holds no tensors"):
        read_state(tmp_path / "cycle.pt")


def test_statements_are_json(tmp_path: Path) -> None:
    before, after, _ = step(plain(), drawn(3, 20), LABELS)
    table = looked(tmp_path, "plain", {"before": before, "after": after}).table()
    origins = {fact["origin"] for fact in json.loads(json.dumps(table))["facts"]}
    assert origins <= {"stated", "read", "inferred", "assumed", "unknown"}
