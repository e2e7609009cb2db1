"""Tensors of a stranger's file: lone numbers, none at all, kinds of numbers that nothing is computed with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import ARCHITECTURE, SHAPE, small_batch, small_model, write_observed
from torch import Tensor

from seepage import SeepageError, exposure, open_transcript, record
from seepage.audit.attempt import Attempt, open_attempt, save_attempt
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files
from seepage.base.storage import read_tensors
from seepage.federation.models.weights import load_weights, read_state
from seepage.federation.transcript.truth import misfit, open_truth, save_truth
from seepage.federation.types import Reconstruction

Spoil = Callable[[Tensor], Tensor]


def change(path: Path, **spoiled: Tensor) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    path.unlink()
    save_file(tensors | {name.replace("__", "/"): tensor for name, tensor in spoiled.items()}, path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.uint16])
def test_kinds_of_numbers_that_nothing_is_computed_with_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    model = small_model()
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "x.safetensors")
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(SeepageError, match="float32"):
        read_tensors(tmp_path / "x.safetensors")
    with pytest.raises(SeepageError, match="float32"):
        load_weights(model, read_state(tmp_path / "x.pt"), 3, "x")


@pytest.mark.parametrize(
    "known", [torch.tensor(3), torch.zeros(0, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64)]
)
@pytest.mark.parametrize("what", ["labels", "indices"])
def test_what_is_told_of_no_example_is_refused(tmp_path: Path, what: str, known: Tensor) -> None:
    write_observed(tmp_path)
    facts = json.loads((tmp_path / "knowledge.json").read_text())
    (tmp_path / "knowledge.json").write_text(json.dumps(facts | {"known": [what]}))
    change(tmp_path / "rounds" / "000000.safetensors", **{what: known})
    with pytest.raises(SeepageError, match=f"does not tell {what} as one whole number per example"):
        exposure(open_transcript(tmp_path))


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("000000__inputs", torch.tensor(1.0), "got a lone number"),
        ("000000__labels", torch.tensor(1), "got a lone number"),
        ("000000__indices", torch.tensor([0.5, 1.0]), "does not give indices"),
        ("000000__indices", torch.tensor([[1], [2]]), "does not give indices"),
    ],
)
def test_a_truth_of_lone_numbers_is_refused(tmp_path: Path, name: str, tensor: Tensor, words: str) -> None:
    save_truth([small_batch()], tmp_path)
    change(tmp_path / "truth.safetensors", **{name: tensor})
    with pytest.raises(SeepageError, match=words):
        open_truth(tmp_path)


@pytest.mark.parametrize(
    ("name", "change_it", "words"),
    [
        ("000000__inputs", lambda t: t.half(), "expected"),
        ("000000__inputs", lambda t: t.double(), "expected"),
        ("000000__labels", lambda t: t[:, None], "labels"),
    ],
)
def test_a_truth_that_the_model_does_not_take_is_another_recordings(
    tmp_path: Path, name: str, change_it: Spoil, words: str
) -> None:
    model, batch = small_model(), small_batch()
    save_truth([batch], tmp_path)
    tensors = load_file(tmp_path / "truth.safetensors")
    change(tmp_path / "truth.safetensors", **{name: change_it(tensors[name.replace("__", "/")].clone())})
    problem = misfit(open_truth(tmp_path), 1, [2], record(model, batch, architecture=ARCHITECTURE).knowledge)
    assert problem is not None
    assert words in problem


FOUND = Reconstruction(torch.rand(2, *SHAPE), labels=torch.tensor([0, 2]), cost={"steps": 1}, notes=("a note",))


@pytest.mark.parametrize(
    "spoiled",
    [
        {"status": "finished"},
        {"space": "fc2"},
        {"cost": {"steps": [1]}},
        {"cost": {"steps": "{{ 7 * 7 }}"}},
        {"seconds": "1"},
        {"seconds": 10**400},
        {"notes": [["a"]]},
        {"history": [[1.0]]},
        {"ambiguity": ["shape"]},
        {"reason": 3},
    ],
)
def test_a_strange_outcome_is_one_sentence(tmp_path: Path, spoiled: dict[str, Any]) -> None:
    save_attempt(Attempt("ok", "Attack()", FOUND), tmp_path / "000000")
    facts = json.loads((tmp_path / "000000.json").read_text())
    (tmp_path / "000000.json").write_text(json.dumps(facts | spoiled))
    with pytest.raises(SeepageError, match=r"is damaged|cannot be those of guesses|has more than 19 digits"):
        open_attempt(tmp_path / "000000")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("inputs", torch.tensor(1.0)),
        ("labels", torch.tensor(1)),
        ("labels", torch.tensor([0.5, 1.0, 2.0])),
        ("labels", torch.tensor([True, False])),
        ("objective", torch.tensor([1, 2], dtype=torch.int16)),
        ("certified", torch.tensor([0.5, 1.0])),
        ("certified", torch.tensor([True])),
        ("indices", torch.tensor([[1], [2]])),
        ("inner__x", torch.ones(3, 2)),
    ],
)
def test_tensors_that_are_not_those_of_guesses_are_one_sentence(tmp_path: Path, name: str, tensor: Tensor) -> None:
    save_attempt(Attempt("ok", "Attack()", FOUND), tmp_path / "000000")
    change(tmp_path / "000000.safetensors", **{name: tensor})
    with pytest.raises(SeepageError, match="cannot be those of guesses"):
        open_attempt(tmp_path / "000000")


@pytest.mark.parametrize("size", [0, -5, 10**12, 10**30])
def test_a_batch_size_that_cannot_be_is_refused(tmp_path: Path, size: int) -> None:
    model, batch = small_model(), small_batch()
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / "before.safetensors")
    save_file(dict(record(model, batch)[0].update.tensors), tmp_path / "gradient.safetensors")
    capture = Capture(
        before=tmp_path / "before.safetensors", gradient=tmp_path / "gradient.safetensors",
        architecture=ARCHITECTURE, input_shape=SHAPE, batch_size=size,
    )  # fmt: skip
    with pytest.raises(SeepageError, match="batch size"):
        observe_files(capture, tmp_path / "o")
