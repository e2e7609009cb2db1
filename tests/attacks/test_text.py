"""Text: data, scores, and what a language model's update says of it."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, SeepageError, attack, build, record
from seepage.attacks.text import TokenSequences
from seepage.attacks.text.sequences import LayerCheck, deepest
from seepage.attacks.text.span import GradientSpan, noise_of
from seepage.audit.run import record_only
from seepage.base.nn import next_tokens, vocabulary_of
from seepage.federation.clients import FedAvg
from seepage.federation.data import TextDataset, load
from seepage.federation.data.tokens import WordTokenizer
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.types import Reconstruction, Transcript, Update
from seepage.measure.metrics.text import frequent, rouge, score_text

TINY = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 96}
GPT = Architecture("gpt", {"width": 64, "heads": 2})


def texts(n: int, tokens: int, vocabulary: int, seed: int = 0) -> Batch:
    ids = torch.randint(vocabulary, (n, tokens), generator=torch.Generator().manual_seed(seed))
    return Batch(ids, next_tokens(ids))


def rounded(transcript: Transcript, kind: torch.dtype) -> Transcript:
    first = transcript[0]
    update = Update({name: t.to(kind).float() for name, t in first.update.tensors.items()}, first.update.kind)
    return replace(transcript, make_round=lambda t: replace(first, update=update))  # type: ignore[type-var]


def as_set(ids: Tensor) -> Counter[tuple[int, ...]]:
    return Counter(tuple(row) for row in ids.tolist())


class TestData:
    def test_no_text_is_lost(self) -> None:
        tokenizer = WordTokenizer.of(["the cat  sat,\n on the mat", "naïve\tcafé"], 262)
        for text in ("the cat  sat", "a dog's \t bone — 漢字", " leading and trailing "):
            plain = bytes(
                byte
                for token in tokenizer.encode(text)
                for byte in ([token - 1] if token <= 256 else tokenizer.pieces[token].encode())
            )
            assert plain.decode() == text

    def test_words_of_private_texts_have_no_token_of_their_own(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("\n".join(f"patient{i:03d} was seen today" for i in range(20)))
        data = load(str(tmp_path / "notes.txt"))
        private = {f"patient{int(i):03d}" for i in data.private}
        assert isinstance(data, TextDataset)
        assert not private & {piece.strip() for piece in data.pieces}

    def test_files_of_three_kinds_hold_the_same_texts(self, tmp_path: Path) -> None:
        lines = ["one two three", "four, five", "six seven eight nine"]
        (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n")
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"note": line, "y": "x"}) for line in lines))
        (tmp_path / "a.csv").write_text("note,y\n" + "\n".join(f'"{line}",x' for line in lines))
        plain = load(str(tmp_path / "a.txt"), tokens=6)
        for name in ("a.jsonl", "a.csv"):
            data = load(str(tmp_path / name), tokens=6, column="note", label_column="y")
            assert torch.equal(data.batch(torch.arange(3)).inputs, plain.batch(torch.arange(3)).inputs)
            assert data.classes == ("x",)

    @pytest.mark.parametrize(
        ("name", "content", "options", "words"),
        [
            ("a.txt", b"\xff\xfe\x00", {}, "UTF-8"),
            ("a.csv", b"title,y\nhello there,1\n", {}, "is a table: name the column of the class"),
            ("a.jsonl", b"[1, 2]\n", {}, "no JSON objects"),
            ("a.jsonl", b"{broken\n", {}, "cannot be read as jsonl"),
            ("a.jsonl", b'{"text": "half \\ud800 a word"}\n', {}, "half a character"),
            ("a.txt", b"word\n", {}, "two words or more"),
            ("a.txt", b"two words\nmore words\n", {"tokens": 1}, "data.tokens"),
            ("a.txt", b"two words\nmore words\n", {"tokenizer": "nowhere.json"}, "no tokenizer"),
            ("a.txt", b"two words\nmore words\n", {"size": 8}, "is text"),
        ],
    )
    def test_bad_input_is_told_in_one_sentence(
        self, tmp_path: Path, name: str, content: bytes, options: dict[str, object], words: str
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SeepageError, match=words):
            load(str(tmp_path / name), **options)  # type: ignore[arg-type]


class TestScores:
    def test_rouge_is_what_it_is_defined_as(self) -> None:
        # By hand: bigrams (1 2)(2 1)(1 2) and (1 2)(2 3); one in common.
        assert rouge([1, 2, 1, 2], [1, 2, 3], 2) == pytest.approx(2 * 1 / 5)
        assert rouge([1, 1, 1], [1, 2], 1) == pytest.approx(2 * 1 / 5)

    def test_equals_the_library(self) -> None:
        scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rouge1", "rouge2"])
        draw = torch.Generator().manual_seed(0)
        for _ in range(20):
            a, b = (torch.randint(6, (9,), generator=draw).tolist() for _ in range(2))
            found = scorer.score(*(" ".join(f"w{token}" for token in row) for row in (a, b)))
            assert rouge(a, b, 1) == pytest.approx(found["rouge1"].fmeasure)
            assert rouge(a, b, 2) == pytest.approx(found["rouge2"].fmeasure)

    def test_one_guess_counts_once(self) -> None:
        truth = Batch(torch.tensor([[1, 2, 3], [1, 2, 3], [4, 5, 6]]), torch.zeros(3).long())
        found = score_text(Reconstruction(torch.tensor([[1, 2, 3], [4, 5, 6]])), truth)
        assert found.exact == pytest.approx(2 / 3)
        assert found.matched.tolist().count(True) == 2

    def test_the_baseline_is_the_public_mode(self) -> None:
        public = torch.tensor([[7, 7, 8], [7, 8, -1]])
        assert frequent(torch.tensor([[1, 2, -1]]), public).tolist() == [[7, 8, -1]]


class TestSpan:
    def test_only_what_was_read_lies_inside(self) -> None:
        draw = torch.Generator().manual_seed(0)
        x, d = torch.randn(20, 64, generator=draw), torch.randn(20, 96, generator=draw)
        span = GradientSpan.of(x.T @ d)
        assert span.rank == 20
        assert span.inside(x).all()
        assert not span.inside(torch.randn(500, 64, generator=draw)).any()

    def test_what_is_faint_stays_inside_though_signal_has_gaps(self) -> None:
        draw = torch.Generator().manual_seed(0)
        x, d = torch.randn(20, 64, generator=draw), torch.randn(20, 96, generator=draw)
        d[2:] *= 1e-4  # a wide gap after two singular values, which is no noise
        span = GradientSpan.of(x.T @ d)
        assert span.rank == 20
        assert span.inside(x).all()

    def test_a_gradient_of_full_rank_tells_nothing(self) -> None:
        draw = torch.Generator().manual_seed(0)
        x, d = torch.randn(40, 64, generator=draw), torch.randn(40, 32, generator=draw)
        assert not GradientSpan.of(x.T @ d).informative  # of 40 vectors, 32 mixtures
        assert GradientSpan.of(x[:20].T @ d[:20]).informative

    def test_noise_of_half_precision_is_known(self) -> None:
        draw = torch.Generator().manual_seed(0)
        exact = torch.randn(10, 64, generator=draw).T @ torch.randn(10, 96, generator=draw)
        half = exact.half().float()
        true = torch.linalg.svdvals((half - exact).double())[0]
        assert noise_of(half, torch.linalg.svdvals(half.double())) == pytest.approx(float(true), rel=0.2)


class TestAttack:
    def test_tokens_of_different_lengths(self) -> None:
        batch = texts(4, 10, 200)
        for row, length in zip(batch.inputs, (10, 4, 7, 9), strict=True):
            row[length:] = -1
        batch = Batch(batch.inputs, next_tokens(batch.inputs))
        found = attack(record(build(GPT, (10,), 200), batch), "token_sequences")
        assert as_set(found.inputs) == as_set(batch.inputs)
        assert found.certified.all()

    @pytest.mark.parametrize("steps", [1])
    def test_local_steps(self, steps: int) -> None:
        batch = texts(3, 8, 200)
        seen = record(build(GPT, (8,), 200), batch, client=FedAvg(lr=1e-3, steps=steps))
        found = TokenSequences()(seen, seed=0)
        assert as_set(found.inputs) == as_set(batch.inputs)

    def test_an_encoder_whose_texts_share_tokens(self) -> None:
        batch = texts(3, 8, 200)
        batch.inputs[:, 0], batch.inputs[:2, 3] = 5, 9
        labels = torch.tensor([1, 0, 3])
        model = build(Architecture("text_encoder", {"vocabulary": 200, "width": 64}), (8,), 4)
        found = TokenSequences()(record(model, Batch(batch.inputs, labels)), seed=0)
        pairs = Counter((tuple(row), int(y)) for row, y in zip(batch.inputs.tolist(), labels, strict=True))
        assert found.labels is not None
        assert Counter((tuple(r), int(y)) for r, y in zip(found.inputs.tolist(), found.labels, strict=True)) == pairs

    def test_no_certificate_for_another_text(self) -> None:
        model, batch = build(GPT, (8,), 200), texts(3, 8, 200)
        right = record(model, batch)
        other = Batch(batch.inputs.clone(), batch.labels)
        other.inputs[0, 7] = (other.inputs[0, 7] + 1) % 200  # the last token alone, which no layer reads
        wrong = record(model, Batch(other.inputs, next_tokens(other.inputs)))
        layers = {n: t for n, t in right[0].update.tensors.items() if not n.startswith("blocks.1.down")}
        mixed = Update({**wrong[0].update.tensors, **layers})
        first = replace(right[0], update=mixed)
        found = TokenSequences()(replace(right, make_round=lambda t: first), seed=0)
        assert not found.certified.any()

    def test_too_many_tokens_are_told(self) -> None:
        with refusal("full_span"):
            TokenSequences()(record(build(GPT, (16,), 300), texts(40, 16, 300)), seed=0)

    def test_half_precision_gives_most_tokens(self) -> None:
        batch = texts(2, 6, 100)
        seen = rounded(record(build(GPT, (6,), 100), batch), torch.float16)
        found = TokenSequences()(seen, seed=0)
        assert score_text(found, batch).rouge_1 >= 0.8


class Attention(nn.Module):
    """A transformer of PyTorch's own layers, whose query, key and value are one matrix and which take no padding."""

    def __init__(self, classes: int = 0, *, tied: bool = False, batch_first: bool = True, norm_first: bool = False):
        super().__init__()
        self.classes, self.batch_first = classes, batch_first
        self.words, self.places = nn.Embedding(150, 32), nn.Embedding(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 48, 0.0, batch_first=batch_first, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, classes or 150, bias=not tied)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        h = h if self.batch_first else h.transpose(0, 1)
        mask = None if self.classes else nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.body(h, mask=mask, is_causal=mask is not None)
        h = h if self.batch_first else h.transpose(0, 1)
        out: Tensor = self.head(h.mean(1)) if self.classes else self.head(h).transpose(1, 2)
        return out


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(("batch_first", "norm_first"), [(True, False), (False, True)])
def test_decoders_of_pytorchs_own_layers_are_read_to_the_last_token(
    tied: bool, batch_first: bool, norm_first: bool
) -> None:
    torch.manual_seed(0)
    batch = texts(2, 8, 150)
    found = TokenSequences()(
        record(Attention(tied=tied, batch_first=batch_first, norm_first=norm_first), batch), seed=0
    )
    assert as_set(found.inputs) == as_set(batch.inputs)
    assert found.certified.all()


@pytest.mark.parametrize("batch_first", [True, False])
def test_encoders_of_pytorchs_own_layers_are_read_with_their_labels(batch_first: bool) -> None:
    torch.manual_seed(0)
    batch = Batch(texts(2, 8, 150).inputs, torch.tensor([4, 1]))
    found = TokenSequences()(record(Attention(5, batch_first=batch_first), batch), seed=0)
    assert as_set(found.inputs) == as_set(batch.inputs)
    assert found.certified.all()


class Early(Attention):
    """A decoder that names a class from the token before the last, which nothing of it reads."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: Tensor = self.head(self.body(h, mask=mask, is_causal=True)[:, -2:][:, 0])
        return out


def test_a_token_that_no_class_rests_on_is_not_made_up() -> None:
    torch.manual_seed(0)
    found = TokenSequences()(record(Early(5), Batch(texts(1, 8, 150).inputs, torch.tensor([4]))), seed=0)
    assert not len(found.inputs)


class TestTransformers:
    @pytest.mark.parametrize(
        ("use", "options"),
        [
            ("causal_lm:gpt2", {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 8}),
            ("causal_lm:llama", {**TINY, "num_key_value_heads": 2}),
            ("text_classifier:bert", {**TINY, "vocab_size": 200}),
        ],
    )
    def test_networks_of_the_library(self, use: str, options: dict[str, int]) -> None:
        pytest.importorskip("transformers")
        batch, classes = texts(3, 8, 199), 200
        batch = Batch(batch.inputs + 1, next_tokens(batch.inputs + 1))  # BERT masks token 0
        if use.startswith("text_classifier"):
            batch, classes = Batch(batch.inputs, torch.tensor([0, 2, 1])), 3
        model = build(Architecture(use, options), (8,), classes)
        assert vocabulary_of(model) == 200
        found = TokenSequences()(record(model, batch), seed=0)
        assert as_set(found.inputs) == as_set(batch.inputs)
        assert found.certified.all()

    def test_a_model_of_classes_without_any_is_told_so(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("\n".join(f"abc {i} def {i * i} g" for i in range(80)))
        tables = {"data": {"use": str(tmp_path / "notes.txt"), "tokens": 8}, "model": {"use": "text_encoder"},
                  "attack": [{"use": "token_sequences"}]}  # fmt: skip
        with pytest.raises(SeepageError, match="--set"):
            record_only(tables, out=tmp_path / "run")

    def test_next_tokens_that_are_told_are_read_again(self, tmp_path: Path) -> None:
        batch = texts(2, 6, 200)
        save_transcript(record(build(GPT, (6,), 200), batch, known=["labels"], architecture=GPT), tmp_path)
        again = open_transcript(tmp_path)[0].labels
        assert again is not None
        assert torch.equal(again, batch.labels)

    def test_wrong_options_are_told(self) -> None:
        pytest.importorskip("transformers")
        for use, options, words in (
            ("causal_lm:gpt9", {}, "gpt9"),
            ("causal_lm:gpt2", {"depth": 3}, "depth"),
            ("causal_lm:gpt2", {"n_positions": 4}, "positions for 4"),
            ("causal_lm:gpt2", {"folder": "nowhere"}, "config.json"),
        ):
            with pytest.raises(SeepageError, match=words):
                build(Architecture(use, options), (8,), 50)


def test_of_too_many_sequences_those_deepest_in_the_spans_are_kept() -> None:
    """A network that reads a token as its number, and a span that no number but 0 lies in."""
    reader = SimpleNamespace(read=lambda modules, ids: {name: ids.double()[..., None] for name in modules})
    span = SimpleNamespace(width=1, excess=lambda vectors: vectors[:, 0] / 10)
    found = [torch.tensor(row) for row in ([9, 9], [0, 1], [4, 6], [2, 1])]
    kept = deepest(cast(Any, reader), [LayerCheck("first", cast(Any, span))], found, 2)
    assert [row.tolist() for row in kept] == [[0, 1], [2, 1]]
