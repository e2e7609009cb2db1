"""The set of tokens: right sets under every optimizer, and nothing named where nothing is to be known."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from tests.helpers.rows import parts_of, violations
from torch import Tensor, nn, optim

from seepage import Architecture, Batch, GaussianNoise, Inapplicable, Transcript, Update, build, observe, record
from seepage.attacks.exposure.text import code_findings
from seepage.attacks.text import TokenSet
from seepage.attacks.text.moved_rows import moved_rows
from seepage.audit.capture import Capture
from seepage.audit.gate import parse_condition
from seepage.audit.observe import observe_files
from seepage.audit.recorded import AttackRequest, attack_only
from seepage.audit.row import Case, Outcome, Row
from seepage.audit.verdict import verdict
from seepage.base.nn import frozen_randomness
from seepage.base.registry import Spec
from seepage.cli.options import SimulationOptions, tables_of
from seepage.federation.clients import FedAvg
from seepage.federation.defenses.compose import Compose
from seepage.federation.defenses.dp_sgd import DPSGD
from seepage.federation.defenses.fake_gradients import FakeGradients
from seepage.federation.defenses.quantize import Quantize
from seepage.federation.defenses.sparsify import Sparsify
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.types import Reconstruction
from seepage.measure.metrics.text import score_token_set
from seepage.report.table import RowTexts

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd with decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "adam": lambda p: optim.Adam(p, lr=1e-3),
    "adamw": lambda p: optim.AdamW(p, lr=5e-5, weight_decay=0.01),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
    "adadelta": lambda p: optim.Adadelta(p, lr=1.0),
}
VOCABULARY = 300


def table(seed: int, rows: int = VOCABULARY, width: int = 32) -> Tensor:
    """A table as trained ones are: rows of very different length, and one of zeros for padding."""
    draw = torch.Generator().manual_seed(seed)
    found = 0.02 * torch.randn(rows, width, generator=draw) * torch.randn(rows, 1, generator=draw).exp()
    found[0] = 0
    return found


def client_of_texts(made: Callable[[Any], optim.Optimizer], steps: int) -> tuple[Transcript, set[int]]:
    """A network that trains on texts for some steps with PyTorch's own optimizer, and the tokens of the texts."""
    model = build(Architecture("text_encoder", {"vocabulary": VOCABULARY, "width": 32, "depth": 1}), (8,), 3, seed=0)
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (steps, 8, 8), generator=draw)
    ids[0, 0, 5:] = -1
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = made(model.parameters())
    for one in ids:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(one), torch.arange(8) % 3).backward()
        optimizer.step()
    update = Update.from_states(before, {name: p.detach().clone() for name, p in model.named_parameters()})
    model.load_state_dict(before)
    return observe(model, update, (8,), lr=1e-3), set(ids[ids >= 0].tolist())


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_names_just_the_tokens_that_were_used(name: str, steps: int) -> None:
    seen, held = client_of_texts(OPTIMIZERS[name], steps)
    found = TokenSet()(seen, seed=0)
    assert set(found.inputs.flatten().tolist()) == held
    assert found.certified.all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    share=st.sampled_from([0.0, 5e-8, 5e-7, 1e-5, 1e-3, 4e-3]),
    steps=st.sampled_from([1, 3, 20]),
    kind=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    sent=st.sampled_from([None, torch.bfloat16, torch.float16]),
)
def test_no_row_that_only_shrank_and_was_rounded_is_named(
    seed: int, share: float, steps: int, kind: torch.dtype, sent: torch.dtype | None
) -> None:
    before = table(seed, 200, 16).to(kind)
    after = before.clone()
    for _ in range(steps):
        after *= 1 - share
    after = after if sent is None else after.to(sent).to(kind)
    moved = torch.arange(0, 200, 20)
    after[moved] += 0.3 * torch.randn(10, 16, generator=torch.Generator().manual_seed(seed)).to(kind)
    found = moved_rows(after - before, before)
    assert found.moved.nonzero().flatten().tolist() == moved.tolist()


@pytest.mark.parametrize("steps", [1, 20, 100])
@pytest.mark.parametrize("rate", [1e-4, 1e-3, 1e-2])
def test_decay_that_an_adaptive_step_divides_names_nothing_wrong(steps: int, rate: float) -> None:
    before, used = table(3), torch.arange(1, 60)
    weight = nn.Parameter(before.clone())
    optimizer, draw = optim.Adam([weight], lr=rate, weight_decay=1e-2), torch.Generator().manual_seed(0)
    for _ in range(steps):
        weight.grad = torch.zeros_like(before)
        weight.grad[used] = 1e-3 * torch.randn(59, 32, generator=draw)
        optimizer.step()
    for kind in (torch.float32, torch.bfloat16):
        found = moved_rows(weight.detach().to(kind).float() - before, before)
        assert found is None or not found.moved[60:].any()


def encoder(defense: Any = None, client: Any = None) -> tuple[Transcript, set[int]]:
    model = build(Architecture("text_encoder", {"vocabulary": VOCABULARY, "width": 32, "depth": 1}), (8,), 3, seed=0)
    ids = torch.randint(VOCABULARY, (6, 8), generator=torch.Generator().manual_seed(2))
    seen = record(model, Batch(ids, torch.arange(6) % 3), client=client, defense=defense)
    return seen, set(ids.flatten().tolist())


@pytest.mark.parametrize("client", [None, FedAvg(lr=0.05, steps=3)], ids=["gradient", "delta"])
@pytest.mark.parametrize("defense", [GaussianNoise(sigma=1e-7), GaussianNoise(sigma=1e-2), Quantize(bits=1)])
def test_noise_on_every_row_is_refused(defense: Any, client: Any) -> None:
    with refusal("every_row_moved"):
        TokenSet()(encoder(defense, client)[0], seed=0)


@pytest.mark.parametrize("client", [None, FedAvg(lr=0.05, steps=3)], ids=["gradient", "delta"])
@pytest.mark.parametrize("defense", [Quantize(bits=4), Quantize(bits=8)])
def test_few_bits_name_no_other_token(defense: Any, client: Any) -> None:
    seen, held = encoder(defense, client)
    found = TokenSet()(seen, seed=0)
    assert set(found.inputs.flatten().tolist()) <= held
    assert len(found) > 0.9 * len(held)


@pytest.mark.parametrize("keep", [0.02, 0.1, 0.5])
def test_noise_behind_a_compression_is_not_certified(keep: float) -> None:
    seen, held = encoder(Compose((GaussianNoise(sigma=0.05), Sparsify(keep=keep))))
    try:
        found = TokenSet()(seen, seed=0)
    except Inapplicable:
        return  # no row is left that stood still
    assert found.certified is not None
    assert set(found.inputs[found.certified].flatten().tolist()) <= held


def test_fake_gradients_and_single_numbers_of_noise_are_not_certified() -> None:
    seen, held = encoder(FakeGradients(candidates=5))
    found = TokenSet()(seen, seed=0)
    assert found.certified is not None
    assert set(found.inputs[found.certified].flatten().tolist()) <= held
    change = torch.zeros(100, 16)
    change.view(-1)[torch.randperm(1600, generator=torch.Generator().manual_seed(0))[:200]] = torch.randn(
        200, generator=torch.Generator().manual_seed(1)
    )
    rows = moved_rows(change)
    assert not rows.sure.any()


def test_clipped_examples_without_noise_are_read_and_with_it_refused() -> None:
    quiet, loud = DPSGD(clip=0.01, sigma=0.0), DPSGD(clip=0.01, sigma=1.0)
    seen, held = encoder(quiet)
    assert set(TokenSet()(seen, seed=0).inputs.flatten().tolist()) == held
    with refusal("every_row_moved"):
        TokenSet()(encoder(loud)[0], seed=0)


def test_a_shared_embedding_is_refused() -> None:
    model = build(Architecture("gpt", {"width": 32}), (6,), 90)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]])
    seen = record(
        model, Batch(ids, torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)), client=FedAvg(lr=1e-3, steps=2)
    )
    with refusal("every_row_moved"):
        TokenSet()(seen, seed=0)


def test_padding_is_never_named_and_said() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8, padding_idx=0), nn.Flatten(), nn.Linear(32, 2))
    ids = torch.tensor([[4, 9, 0, 0], [7, 9, 3, 0]])
    found = TokenSet()(record(model, Batch(ids, torch.tensor([0, 1]))), seed=0)
    assert found.inputs.flatten().tolist() == [3, 4, 7, 9]
    assert any(note.startswith("row 0 is padding") for note in found.notes)


def test_the_mean_of_several_clients_names_the_tokens_of_all() -> None:
    before = table(0)
    after = []
    for client in range(3):
        weight = nn.Parameter(before.clone())
        optimizer = optim.AdamW([weight], lr=5e-5, weight_decay=0.01)
        for step in range(3):
            weight.grad = torch.zeros_like(before)
            weight.grad[10 * client : 10 * client + 5 + step] = 1e-4 * torch.randn(5 + step, 32)
            optimizer.step()
        after.append(weight.detach())
    found = moved_rows(torch.stack(after).mean(0) - before, before)
    assert found.moved.nonzero().flatten().tolist() == [*range(7), *range(10, 17), *range(20, 27)]


def test_scores_are_counts_with_the_interval_of_clopper_and_pearson() -> None:
    text = Batch(torch.tensor([[1, 2, 3, 0, -1]]), torch.tensor([0]))
    guess = Reconstruction(torch.tensor([[1], [2], [8]]), space="token", certified=torch.tensor([True, False, True]))
    scores, beside, wrong = score_token_set([guess], [text], vocabulary=30, padding=0)
    recall = scores["token_recall"]
    assert (recall.mean, recall.n) == (2 / 3, 3)
    assert (round(recall.low or 0, 4), round(recall.high or 0, 4)) == (0.0943, 0.9916)  # R: binom.test(2, 3)
    assert scores["token_precision"].mean == 2 / 3
    assert beside["all"]["token_precision"] == 0.1
    assert wrong == 1


SHARE = {"mean": 0.99, "low": 0.95, "high": 0.998, "n": 200}
NAMED = Row(
    case="a", attack="token_set", outcome=Outcome.TOKENS_IDENTIFIED, space="token", returned=198, examples=4,
    certified={"n": 190, "wrong": 0}, scores={"token_recall": SHARE, "token_precision": SHARE | {"mean": 1.0}},
)  # fmt: skip
CASE = Case(name="a", title="net", kind="texts")


def test_named_tokens_enter_verdict_side_table_and_gate_and_are_no_examples() -> None:
    refused = Row(case="a", attack="token_sequences", outcome=Outcome.INAPPLICABLE, status="inapplicable", reason="no")
    level, words = verdict([refused, NAMED], [CASE])
    assert level == "partial"
    assert words.startswith("TOKENS IDENTIFIED. 198 of 200 tokens identified, none wrong, by token_set on net.")
    (part, *_) = parts_of([refused, NAMED], [CASE])
    assert part.words == "198 of 200 tokens identified, none wrong, by token_set on net"
    nothing = Row(case="b", attack="dlg", outcome="nothing_recovered", scores={"rouge_1": {"mean": 0.1}}, examples=4)
    level, words = verdict([NAMED, nothing], [CASE, Case(name="b", title="other", kind="texts", defense="noise")])
    assert (level, "no proof of safety" in words, "INCONCLUSIVE: In 1 audited case (other)" in words) == (
        "partial", True, True,
    )  # fmt: skip
    assert RowTexts(NAMED).outcome == "198 of 200 tokens identified, none wrong"
    assert [one.name for one in violations([refused, NAMED], parse_condition("token_recall>0.5"))] == ["token_set"]
    assert [one.name for one in violations([refused, NAMED], parse_condition("tokens_identified>0"))] == ["token_set"]
    assert not NAMED.certified_examples
    assert not NAMED.scored
    assert Row.model_validate(NAMED.model_dump(mode="json")) == NAMED


def test_without_a_truth_what_is_certified_is_said() -> None:
    bare = NAMED.model_copy(update={"scores": {}})
    level, words = verdict([bare], [CASE])
    assert level == "partial"
    assert "198 tokens identified, 190 of them certified" in words
    assert RowTexts(bare).outcome == "198 tokens identified, 190 of them certified"


def test_text_has_attacks_of_its_own_where_none_are_named(tmp_path: Path) -> None:
    architecture = Architecture("text_encoder", {"vocabulary": 60, "width": 32, "depth": 1})
    ids = torch.randint(60, (2, 6), generator=torch.Generator().manual_seed(0))
    seen = record(build(architecture, (6,), 2), Batch(ids, torch.tensor([0, 1])), architecture=architecture)
    save_transcript(seen, tmp_path / "observed")
    request = AttackRequest(attacks=[{"use": "linear"}], default=True, out=tmp_path / "run", jobs=1, all_attacks=True)
    result = attack_only(tmp_path / "observed", request).result
    assert [row.attack for row in result.rows] == ["token_sequences", "token_set"]
    assert result.rows[1].identified_tokens == len(set(ids.flatten().tolist()))
    for options in (
        {"data": "python_reference"},
        {"data": "notes.txt"},
        {"data": "notes.csv", "model": "causal_lm:gpt2"},
    ):
        assert [one["use"] for one in tables_of(None, SimulationOptions(**options))["attack"]] == [
            "token_sequences",
            "token_set",
        ]
    assert "linear" in [one["use"] for one in tables_of(None, SimulationOptions(data="notes.csv"))["attack"]]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_all_rows_of_a_narrow_table_that_moved_are_seen(width: int) -> None:
    """Of two numbers every second row moves one way, which says nothing."""
    draw = torch.Generator().manual_seed(width)
    for _ in range(50):
        before, change = torch.randn((12, width), generator=draw), torch.zeros(12, width)
        own = torch.randperm(12, generator=draw)[:3]
        change[own] = 1e-3 * torch.randn((3, width), generator=draw)
        found = moved_rows(change, before)
        assert found is not None
        assert found.moved.nonzero().flatten().tolist() == sorted(own.tolist())


@pytest.mark.parametrize("stated", [True, False])
def test_rows_that_an_inverted_step_of_adamw_left_alone_are_not_named(tmp_path: Path, *, stated: bool) -> None:
    """A row that decay and rounding alone moved has a gradient of a few errors, which is not zero."""
    options = {"vocabulary": VOCABULARY, "width": 32, "depth": 1}
    model = build(Architecture("text_encoder", options), (8,), 3, seed=0)
    ids = torch.randint(VOCABULARY, (8, 8), generator=torch.Generator().manual_seed(1))
    torch.save(model.state_dict(), tmp_path / "before.pt")
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    nn.functional.cross_entropy(model(ids), torch.arange(8) % 3).backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    client = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "steps": 1}
    capture = Capture(
        before=tmp_path / "before.pt",
        after=tmp_path / "after.pt",
        architecture=Architecture("text_encoder", options),
        client=Spec("fedavg", client) if stated else Spec("fedsgd"),
        input_shape=(8,),
        batch_size=8,
    )
    observe_files(capture, tmp_path / "observed")
    seen = open_transcript(tmp_path / "observed")
    assert seen[0].update.step is not None
    found = TokenSet()(seen, seed=0)
    assert found.certified is not None
    assert set(found.inputs[found.certified].flatten().tolist()) <= set(ids.flatten().tolist())
    assert set(found.inputs.flatten().tolist()) == set(ids.flatten().tolist())


class Columns(nn.Module):
    """Two columns of codes, the first of two alone."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(width, 8) for width in (2, 40))
        self.body = nn.Linear(16, 3)

    def forward(self, codes: Tensor) -> Tensor:
        return self.body(torch.cat([table(codes[:, place]) for place, table in enumerate(self.columns)], 1))


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("first", [[0], [0, 1]])
def test_a_table_of_which_all_rows_moved_is_read_by_what_another_tells(
    kind: Any, decay: float, first: list[int]
) -> None:
    """Of a table whose rows were all looked up, or all but one, none moved like another."""
    with frozen_randomness(0):
        model = Columns()
    codes = torch.tensor([[first[row % len(first)], 3 * row] for row in range(4)])
    own = copy.deepcopy(model)
    optimizer = kind(own.parameters(), lr=0.01, weight_decay=decay)
    nn.functional.cross_entropy(own(codes), torch.tensor([0, 1, 2, 0])).backward()
    optimizer.step()
    before, after = (dict(one.named_parameters()) for one in (model, own))
    seen = observe(model, Update.from_states(before, after), (2,), lr=0.01)
    found = {one.evidence["table"]: one.evidence["rows"] for one in code_findings(seen.knowledge, seen[0], None)}
    assert found == {"columns.0": first, "columns.1": [0, 3, 6, 9]}


def test_steps_of_two_clients_that_cancel_hide_no_row_of_another() -> None:
    """AdamW's first steps have one size: of a row that two clients moved, half of the numbers may stand still."""
    draw = torch.Generator().manual_seed(0)
    before = torch.randn(40, 8, generator=draw)
    steps = 1e-3 * torch.randn(2, 4, 8, generator=draw).sign()  # of two clients, on four rows and on three
    clients = [before * (1 - 1e-5), before * (1 - 1e-5)]
    clients[0][:4] += steps[0]
    clients[1][7:10] += steps[1, :3]
    clients[1][3] = before[3] * (1 - 1e-5) - steps[0, 3] * torch.tensor([1.0] * 5 + [-1.0] * 3)
    found = moved_rows(torch.stack(clients).mean(0).double() - before.double(), before)
    assert found is not None
    assert found.moved.nonzero().flatten().tolist() == [0, 1, 2, 7, 8, 9]
    assert found.still == 33
