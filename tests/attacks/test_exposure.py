"""The exposure check on planted updates: what it says against what is known here of batch, client and defense."""

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage import (
    Architecture,
    Batch,
    Defense,
    FedAvg,
    FedSGD,
    GaussianNoise,
    SeepageError,
    Sparsify,
    Update,
    build,
    exposure,
    observe,
    record,
)
from seepage.attacks.exposure import Exposure, fingerprint, fingerprints
from seepage.attacks.exposure.fingerprints import clipped, noise_of
from seepage.attacks.exposure.layers import closed_form, read_alone
from seepage.attacks.exposure.running_statistics import batch_statistics, two_row_errors
from seepage.attacks.reading.rows import MeasuredRows
from seepage.base.nn import next_tokens
from seepage.federation.defenses import Quantize

SHAPE, CLASSES = (1, 12, 12), 10


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def private(n: int, seed: int = 0) -> Batch:
    return Batch(torch.rand(n, *SHAPE, generator=draw(seed)), torch.arange(n) * 7 % CLASSES)


def model(use: str = "fc2", **options: object) -> nn.Module:
    return build(Architecture(use, options or {"hidden": 48}), SHAPE, CLASSES)


def look(n: int, net: nn.Module | None = None, defense: Defense | None = None, seed: int = 0) -> Exposure:
    return exposure(record(net or model(), private(n, seed), defense=defense))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 12])
@pytest.mark.parametrize(("size_known", "neurons"), [(True, 1), (False, 3)])
def test_the_examples_found_are_those_that_alone_reach_neurons(n: int, size_known: bool, neurons: int) -> None:
    """One such neuron is enough where the batch size is known, so that the model can be asked; else three agree."""
    net = model("fc2", hidden=96)
    batch = private(n, seed=n)
    active = net[:3](batch.inputs) > 0  # [n, 96]: whether an example reaches a neuron
    alone = active & (active.sum(0) == 1)
    expected = int((alone.sum(1) >= neurons).sum())
    seen = record(net, batch)
    found = exposure(seen if size_known else observe(net, seen[0].update, SHAPE))
    assert found.examples == expected
    assert found.at_least == n
    assert any("private example" in (says.gives or "") for says in found.tensors)


@pytest.mark.parametrize("loss", ["cross_entropy", "binary"])
def test_two_classes_give_away_what_alone_reaches_a_neuron(loss: str) -> None:
    """Slopes of two classes are multiples of one another, so that the model is asked about each row."""
    owned = known = 0
    for seed in range(12):
        net = build(Architecture("fc2", {"hidden": 64}), SHAPE, 1 if loss == "binary" else 2, seed=seed)
        batch = Batch(torch.rand(4, *SHAPE, generator=draw(seed)), torch.randint(2, (4,), generator=draw(seed)))
        active = net[:3](batch.inputs) > 0  # [n, 64]: whether an example reaches a neuron
        alone = int((active & (active.sum(0) == 1)).any(1).sum())
        found = exposure(record(net, batch, client=FedSGD(loss=loss))).examples
        assert found <= alone
        owned, known = owned + alone, known + found
    assert owned > 24
    assert known >= 0.9 * owned


def test_one_example_is_given_away_whole() -> None:
    found = look(1)
    assert (found.examples, found.batch_size, found.at_least) == (1, 1, 1)
    assert found.of("labels")[0].evidence["present"] == (0,)
    assert found.of("features")
    assert all(says.withhold for says in found.tensors)


def test_a_batch_wider_than_the_layer_is_a_mixture() -> None:
    found = look(80, model("fc2", hidden=16))
    first = found.of("layer")[0].evidence
    assert (first["reads"], first["neurons"], first["full"]) == ("input", 16, True)
    assert not found.of("span")
    assert found.tensors[0].gives is None


def test_two_classes_prove_no_row() -> None:
    """A network without a bend has rows that are all multiples of one mixture, whatever the batch."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 2))
    batch = Batch(private(6).inputs, torch.arange(6) % 2)
    found = exposure(record(net, batch))
    assert found.of("layer")[0].evidence["rank"] == 1
    assert found.vectors == 0


def test_uniform_outputs_prove_no_row_of_the_last_layer() -> None:
    """At a head of zeros all absent classes share one mixture of the features."""
    net = model()
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    assert look(4, net).vectors == 0


def test_labels_are_read_off_the_last_bias() -> None:
    net = model()
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)  # so that the outputs are uniform, and the counts exact
    batch = Batch(torch.rand(5, *SHAPE, generator=draw(1)), torch.tensor([3, 3, 3, 7, 0]))
    (labels,) = exposure(record(net, batch)).of("labels")
    assert labels.tensors
    assert labels.evidence["sound"]
    assert labels.evidence["counts"] == (1, 0, 0, 3, 0, 0, 0, 1, 0, 0)
    assert labels.evidence["present"] == (0, 3, 7)
    assert labels.evidence["off_whole"] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(("mode", "word"), [(True, "train"), (False, "eval")])
def test_the_mode_of_batch_norm_is_told(mode: bool, word: str) -> None:
    from seepage import FedSGD

    net = model("convnet", width=8, batch_norm=True)
    found = exposure(record(net, private(4), client=FedSGD(mode="train" if mode else "eval")))
    assert {norm.evidence["mode"] for norm in found.of("batch-variance")} == {word}
    assert any(norm.tensors for norm in found.of("batch-variance")) == mode


@pytest.mark.parametrize(
    ("defense", "word"),
    [
        (None, None),
        (GaussianNoise(sigma=0.02), "looks noised"),
        (GaussianNoise(sigma=0.004), "looks noised"),
        (Quantize(bits=6), "looks quantized: every entry lies on evenly spaced levels of 6 bits"),
        (Quantize(bits=1), "looks quantized: every entry lies on evenly spaced levels of 1 bit"),
        (Sparsify(keep=0.2), "looks sparsified"),
        (GaussianNoise(sigma=0.0, clip=0.25), "looks clipped: the norm of the update is 0.25"),
    ],
)
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.parametrize("use", ["fc2", "convnet"])
def test_defenses_are_told_apart(defense: Defense | None, word: str | None, n: int, use: str) -> None:
    net = model() if use == "fc2" else model("convnet", width=24)
    found = look(n, net, defense, seed=n)
    if word is None:
        assert found.looks_like == ()
    else:
        assert len(found.looks_like) == 1
        assert found.looks_like[0].startswith(word)
        (finding,) = found.defenses
        assert finding.message.startswith(f"looks {finding.name}")
        assert finding.evidence
        assert finding.limit
    assert found.examples == 0 or defense is None or "clipped" in str(word)


@given(st.integers(24, 80), st.integers(120, 300), st.integers(0, 8), st.integers(0, 10**6))
def test_noise_is_measured(m: int, d: int, signals: int, seed: int) -> None:
    generator = draw(seed)
    signal = 0.5 * torch.randn(m, signals, generator=generator) @ torch.randn(signals, d, generator=generator)
    found = noise_of(signal + 0.1 * torch.randn(m, d, generator=generator))
    if min(m, d // 2) - signals >= 40:
        assert found == pytest.approx(0.1, rel=0.15)
    assert noise_of(signal) is None


@given(st.integers(2, 5), st.integers(0, 10**6))
def test_mixtures_are_no_inputs(n: int, seed: int) -> None:
    generator = draw(seed)
    slopes, inputs = torch.randn(30, n, generator=generator).double(), torch.rand(n, 20, generator=generator).double()
    assert closed_form(slopes @ inputs, slopes.sum(1)) == 0
    slopes[:3, 1:] = 0
    assert closed_form(slopes @ inputs, slopes.sum(1)) == 1


@pytest.mark.parametrize("values", [(1.0,), (0.0, 1.0), (-1.0, 1.0)], ids=["color", "black and white", "signs"])
@pytest.mark.parametrize("measured", [False, True])
def test_rows_of_one_size_are_signs_and_no_input(values: tuple[float, ...], measured: bool) -> None:
    """Three steps of LAMB behind dropout left rows of 1.09, and 1.09 was called an example."""
    generator = draw(3)
    x = torch.tensor(values).double()[torch.randint(len(values), (20,), generator=generator)]
    signs = torch.tensor([1.0, -1, 1, 1, -1, 1, 1, 1]).double()

    def found(slopes: Tensor) -> int:
        rows, bias = slopes[:, None] * x, slopes
        if not measured:
            return closed_form(rows, bias)
        whole = torch.cat([rows, bias[:, None]], 1)
        return read_alone(MeasuredRows.of(whole, torch.full_like(whole, 1e-5)))

    assert found(1e-1 * signs) == 0
    assert found(torch.rand(8, generator=generator).double() + 0.1) == (len(values) > 1)  # an input of black and white


def test_chance_seldom_makes_a_round_norm() -> None:
    """A norm of 0.95 was one that somebody clipped to."""
    norms = (10 ** (5 * torch.rand(200_000, generator=draw(0), dtype=torch.float64) - 3)).tolist()
    assert sum(clipped(norm) is not None for norm in norms) < 12
    for norm in (0.001, 0.5, 1.0, 1.5, 2.5, 10.0):
        for before in (1.001 * norm, 2 * norm, 100 * norm):
            found = clipped(before * norm / (before + 1e-6))
            assert (found is not None and found.evidence["norm"] == pytest.approx(norm)) or norm < 0.1
    assert clipped(0.95) is None


def test_number_formats_are_told() -> None:
    values = torch.randn(64, 8, generator=draw(0))
    assert fingerprint("w", values).half is None
    assert fingerprint("w", values.half().float()).half == "float16"
    assert fingerprint("w", values.bfloat16().float()).half == "bfloat16"
    assert fingerprint("w", values).distinct == len(set(values.flatten().tolist()))
    assert fingerprint("w", torch.zeros(5)).zeros == 1


@given(st.integers(0, 10**6), st.integers(1, 900), st.sampled_from([0.0, 0.3, 0.9]), st.sampled_from([None, 3, 6, 9]))
def test_marks_taken_in_parts_are_those_of_the_whole(seed: int, n: int, zeros: float, bits: int | None) -> None:
    """Against the obvious way, which sorts, copies and compares the whole tensor."""
    values = torch.randn(n, generator=draw(seed)) * (torch.rand(n, generator=draw(seed + 1)) >= zeros)
    if bits is not None:
        step = values.abs().max() / (2 ** (bits - 1) - 1)
        values = torch.where(step > 0, (values / step).round() * step, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints, "CHUNK_ENTRIES", 37)
        patch.setattr(fingerprints, "GLANCE", 101)
        found = fingerprint("w", values)
        pruned = fingerprint("w", values[: n // 2 * 2].reshape(2, n // 2)).pruned
        length = fingerprints.euclidean_norm({"a": values[: n // 2], "b": values[n // 2 :]})
    live = values[values != 0]
    assert length == pytest.approx(float(values.double().norm()), rel=1e-12)
    assert found.zeros == 1 - len(live) / n
    assert found.distinct == len(values[:101].unique())
    assert not found.pruned  # zeros of a vector are those of dead neurons, too
    table = values[: n // 2 * 2].reshape(2, n // 2)
    table = table[table.any(1)][:, table.any(0)]
    sizes = table[table != 0].abs()
    many = 200 <= len(sizes) < 0.95 * table.numel()
    sharp = many and float((sizes <= 1.1 * sizes.min()).double().mean()) >= 0.02
    assert pruned == (sharp and float(sizes.min() / sizes.median()) > 0.1)
    assert found.bits == (fewest_bits(live) if len(live) >= 32 else None)


def fewest_bits(live: torch.Tensor) -> int | None:
    largest, first = float(live.abs().max()), live[:101].double()
    for bits in range(1, 17):
        levels = torch.arange(0 if bits > 1 else 1, 2 ** (bits - 1) if bits > 1 else 2) / max(1, 2 ** (bits - 1) - 1)
        gaps = (first.abs()[:, None] / largest - levels.double()).abs().min(1).values
        if bool((gaps * max(1, 2 ** (bits - 1) - 1) < (1e-2 if bits > 1 else 1e-6)).all()):
            return bits
    return None


@pytest.mark.parametrize("part", [("4.bias",), ("4.weight",), ("2.weight",), ("2.bias",)])
def test_a_model_trained_in_part_is_looked_at_in_part(part: tuple[str, ...]) -> None:
    net = model()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name in part)
    found = exposure(record(net, private(1)))
    assert [says.name for says in found.tensors] == list(part)
    assert bool(found.of("labels")) == (part == ("4.bias",))
    assert found.examples == 0


def test_local_steps_of_an_unknown_number_give_a_direction() -> None:
    net = model()
    update = record(net, private(3), client=FedAvg(lr=0.01, batch_size=3))[0].update
    found = exposure(observe(net, update, SHAPE, client=FedAvg(lr=0.01, batch_size=3)))
    assert found.batch_size is None
    assert found.at_least == 3
    (labels,) = found.of("labels")
    assert set(labels.evidence["present"]) <= {0, 7, 4}
    assert labels.evidence["counts"] is None
    assert "up to a factor" in found.notes[0]


def test_two_steps_of_adam_have_no_closed_form() -> None:
    found = exposure(record(model(), private(1), client=FedAvg(optimizer="adam", steps=2)))
    assert (found.examples, found.of("layer")) == (0, [])
    assert "divides each entry" in found.notes[0]


def test_a_noisy_single_example_is_not_called_exact() -> None:
    found = look(1, defense=GaussianNoise(sigma=0.001))
    assert found.examples == 0
    assert found.of("noisy-rows")[0].tensors
    assert "but for noise" in (found.tensors[0].gives or "")


def test_positions_are_told_from_examples() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each, self.head = nn.Linear(12, 20), nn.Linear(20, CLASSES)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.each(inputs.squeeze(1)).relu().mean(1))

    found = look(2, Tokens())
    assert [layer.evidence["reads"] for layer in found.of("layer")] == ["positions", "features"]
    assert found.of("layer")[0].evidence["found"] == 0
    assert found.at_least == 2


def test_an_update_of_zeros_gives_nothing_away() -> None:
    net = model()
    still = Update({name: torch.zeros_like(p) for name, p in net.named_parameters()})
    found = exposure(observe(net, still, SHAPE, batch_size=1))
    assert (found.examples, found.at_least, found.of("labels"), found.looks_like) == (0, None, [], ())


def test_a_round_that_is_not_there_is_refused() -> None:
    with pytest.raises(SeepageError, match="no round 3"):
        exposure(record(model(), private(1)), t=3)


def test_the_keys_of_its_json_stay() -> None:
    table = look(2).table()
    assert table["schema"] == 1
    assert set(table) >= {
        "examples", "vectors", "t", "kind", "norm", "batch_size", "at_least", "at_once", "findings", "defenses",
        "marks", "looks_like", "tensors", "notes", "stated",
    }  # fmt: skip
    assert set(table["tensors"][0]) == {"name", "gives", "withhold"}
    assert {"name", "message", "evidence", "limit", "tensors", "examples", "lines"} <= set(table["findings"][0])
    said = {one["name"]: one for one in json.loads(json.dumps(table, allow_nan=False))["findings"]}
    assert said["labels"]["evidence"]["present"] == [0, 7]
    assert said["layer"]["evidence"]["reads"] == "features"
    assert said["features"]["evidence"] == {"examples": 2, "width": 48}


def test_every_finding_says_what_it_does_not_show() -> None:
    found = look(2)
    assert {finding.name for finding in found.findings} >= {"exact-rows", "span", "labels"}
    assert all(finding.evidence and finding.limit for finding in found.findings if finding.tensors)


def test_it_says_the_same_twice_and_leaves_the_model_alone() -> None:
    net = model("convnet", width=8, batch_norm=True).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert look(3, net).table() == look(3, net).table()
    assert net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_two_rows_behind_a_norm_are_as_near_as_is_said(scale: float, momentum: float | None) -> None:
    rows = scale * torch.randn(2, 30, generator=draw(5)) + scale
    norm = nn.BatchNorm1d(30, momentum=momentum)
    sent, after = norm.state_dict(), copy.deepcopy(norm)
    after(rows)
    (found,) = batch_statistics(norm, sent, after.state_dict())
    root = (found.variance.clamp(min=0) / 2).sqrt()
    off = (torch.stack([found.mean - root, found.mean + root]) - rows.sort(0).values).abs()
    said = two_row_errors(norm, found)
    assert bool((off <= said).all())
    assert float(said.max()) < 1e-2 * max(1.0, scale)


@pytest.mark.parametrize(("dropped", "mode"), [(True, "train"), (True, "eval"), (False, "train")])
def test_what_is_said_of_texts_rests_on_no_dropout_where_a_pass_draws(dropped: bool, mode: str) -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])
    model = build(Architecture("gpt", {"width": 32}), (5,), 90)
    if dropped:
        table = next(module for module in model.modules() if isinstance(module, nn.Embedding))
        table.register_forward_hook(lambda layer, _, made: nn.functional.dropout(made, 0.1, layer.training))
    seen = record(model, Batch(ids, next_tokens(ids)), client=FedSGD(mode=mode))  # type: ignore[arg-type]
    (found,) = exposure(seen).of("text")
    assert bool(found.evidence["condition"]) == (dropped and mode == "train")
