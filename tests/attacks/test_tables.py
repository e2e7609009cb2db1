"""Tables whose words are one-hot blocks: searches that know the blocks, and what they give back."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Architecture, Batch, Reconstruction, SeepageError, attack, build, record, score
from seepage.attacks import Attack, inverting_gradients
from seepage.attacks.search import engine
from seepage.base.blocks import check_blocks, one_hot, relaxed, settled, words_at
from seepage.base.nn import frozen_randomness
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.measure.metrics import Yardstick

BLOCKS = ((2, 3), (5, 4), (9, 1))
WIDTH = 10


def rows(n: int, seed: int) -> Batch:
    """Two numbers, two columns of words and a mark."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.rand(n, 2, generator=draw)
    words = [F.one_hot(torch.randint(width, (n,), generator=draw), width).float() for width in (3, 4)]
    mark = torch.randint(2, (n, 1), generator=draw).float()
    return Batch(torch.cat([numbers, *words, mark], 1), torch.randint(3, (n,), generator=draw))


def victim(batch: Batch, blocks: tuple[tuple[int, int], ...] = BLOCKS, seed: int = 0) -> SimulatedTranscript:
    with frozen_randomness(seed):
        model = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
    return record(model, batch, blocks=blocks, known=["labels"])


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_table_comes_back_whole(seed: int) -> None:
    batch = rows(2, seed)
    found = attack(victim(batch, seed=seed), inverting_gradients(steps=400))
    by = Yardstick(blocks=BLOCKS)
    assert score(found, batch, by).summaries["exact_rows"].mean == 1.0
    assert torch.equal(found.inputs, one_hot(found.inputs, BLOCKS))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [10, 60])
def test_words_that_are_set_never_explain_worse(seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is returned is no worse than what the search had found before."""
    seen, it, before = victim(rows(4, seed), seed=seed), inverting_gradients(steps=steps), list[Reconstruction]()
    own = engine.GradientMatching._with_words

    def watched(self: engine.GradientMatching, objective, found: Reconstruction, seed: int) -> Reconstruction:  # type: ignore[no-untyped-def]
        before.append(found)
        return own(self, objective, found, seed)

    monkeypatch.setattr(engine.GradientMatching, "_with_words", watched)
    after = it(seen, seed=0)
    assert len(before) == 1
    assert after.labels is not None
    worst = it.objective_at(seen, before[0].inputs, after.labels)
    assert it.objective_at(seen, after.inputs, after.labels) <= worst * (1 + 1e-6) + 1e-7
    assert float(after.inputs.min()) >= 0
    assert float(after.inputs.max()) <= 1


def test_the_same_seed_gives_the_same_bits() -> None:
    seen = victim(rows(2, 0))
    first, second = (attack(seen, inverting_gradients(steps=30), seed=5) for _ in range(2))
    assert torch.equal(first.inputs, second.inputs)


def test_without_blocks_a_search_is_as_it_was() -> None:
    found = attack(victim(rows(2, 0), ()), inverting_gradients(steps=30))
    assert found.cost == {"steps": 30, "evaluations": 30}


class Given(Attack):
    """Returns what it is given."""

    def __init__(self, inputs: Tensor) -> None:
        self.inputs = inputs

    def run(self, seen: object, /, *, seed: int, progress: object) -> Reconstruction:  # type: ignore[override]
        return Reconstruction(self.inputs)


def test_a_closed_form_is_rounded_where_that_changes_nothing_else() -> None:
    batch = rows(2, 1)
    off = batch.inputs + torch.tensor([[0.004], [0.2]])
    found = Given(off)(victim(batch), seed=0).inputs
    assert torch.equal(found[0, 2:], batch.inputs[0, 2:])
    assert torch.equal(found[:, :2], off[:, :2])
    assert torch.equal(found[1], off[1])


def test_blocks_are_softmaxed_and_set_each_by_itself() -> None:
    values = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))
    shares, hard = relaxed(values, BLOCKS), one_hot(values, BLOCKS)
    for first, width in BLOCKS[:2]:
        part = slice(first, first + width)
        assert torch.allclose(shares[:, part].sum(1), torch.ones(5))
        assert torch.equal(hard[:, part].argmax(1), values[:, part].argmax(1))
        assert torch.equal(hard[:, part].sum(1), torch.ones(5))
    assert torch.equal(hard[:, 9], (values[:, 9] > 0.5).float())
    assert torch.equal(hard[:, ~words_at(BLOCKS, WIDTH)], values[:, :2])
    assert torch.equal(settled(hard, BLOCKS), hard)


@pytest.mark.parametrize("blocks", [((2, 0),), ((8, 3),), ((2, 3), (4, 2)), ((-1, 2),)])
def test_blocks_that_cannot_be_are_refused(blocks: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(SeepageError, match="block of"):
        check_blocks(blocks, (WIDTH,))
    with pytest.raises(SeepageError, match="block of"):
        victim(rows(1, 0), blocks)


def test_blocks_are_of_rows() -> None:
    with pytest.raises(SeepageError, match="shape"):
        check_blocks(((0, 2),), (1, 8, 8))


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-3.0, 3.0)])
def test_scores_of_rows(ends: tuple[float, float]) -> None:
    """Whole rows, words and numbers, in whatever range; what has no guess is right in nothing."""
    batch = rows(4, 3)
    guess = batch.inputs.clone()
    guess[0, :2] += 0.004 * (ends[1] - ends[0])  # within 1 % of the range
    guess[1, 0] += 0.02 * (ends[1] - ends[0])
    guess[2, 2:5] = guess[2, 2:5].roll(1)
    found = score(Reconstruction(guess[:3]), batch, Yardstick(blocks=BLOCKS, value_range=ends, typical=batch.inputs[3]))
    assert found.matched.tolist() == [True, True, True, False]
    assert found.values["exact_rows"].tolist() == [1, 0, 0, 0]
    assert found.values["category_recall"].tolist() == pytest.approx([1, 1, 2 / 3, 0])
    assert found.values["number_recall"].tolist() == [1, 0.5, 1, 0]
    assert found.summaries["exact_rows"].mean == 0.25
    assert found.baseline_values["typical"]["exact_rows"].tolist() == [0, 0, 0, 1]
    plain = score(Reconstruction(guess[:3]), batch, Yardstick(value_range=ends))
    assert torch.equal(plain.values["psnr"], found.values["psnr"])
    assert "exact_rows" not in plain.values


def test_a_table_of_words_alone_has_no_recall_of_numbers() -> None:
    batch = Batch(torch.eye(3), torch.zeros(3, dtype=torch.int64))
    found = score(Reconstruction(batch.inputs), batch, Yardstick(blocks=((0, 3),)))
    assert found.summaries["category_recall"].mean == 1.0
    assert "number_recall" not in found.summaries


def test_a_recording_keeps_the_blocks(tmp_path: Path) -> None:
    model = build(Architecture("fc2"), (WIDTH,), 3)
    made = record(model, rows(2, 0), blocks=BLOCKS, architecture=Architecture("fc2"))
    save_transcript(made, tmp_path / "observed")
    assert open_transcript(tmp_path / "observed").knowledge.blocks == BLOCKS
    assert replace(made.knowledge, blocks=()).blocks == ()
