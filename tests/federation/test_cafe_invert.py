"""CAFE's step III, the whole attack on planted images, the published loops and the adaptive attacker."""

import copy

import pytest
import torch
from refusals import refusal
from scripts import script

from seepage.attacks.base import Checkpoint, Silent
from seepage.attacks.cafe import Cafe, InversionSettings
from seepage.attacks.cafe.invert import gauss_newton, invert, reads_input, residual
from seepage.attacks.cafe.published import PublishedCafe, PublishedRun, RowAdam
from seepage.attacks.cafe.steps import identifiable
from seepage.attacks.cafe.table_9 import TABLE_9, TABLE_9_TILE
from seepage.base.nn import frozen_randomness, state_of
from seepage.federation.clients import FedSGD
from seepage.federation.data import load
from seepage.federation.defenses.fake_gradients import FakeGradients
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import RandomDraws
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Knowledge

cafe_rivals = script("cafe_rivals")


def digits(samples, rounds, size, *, seed=0, defense=None, **options):
    """Parties that share packaged digits."""
    album = load("digits")
    data = album.batch(album.private[:samples])
    shape = tuple(data.inputs.shape[1:])
    with frozen_randomness(seed):
        model = vertical(shape, 10, **({"hidden": 32, "channels": 16} | options))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, 10, known=frozenset({"indices"}))
    design = RandomDraws(samples=samples, batch_size=size, seed=seed)
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, defense)


def psnr(guess, true):
    return -10 * (guess - true).pow(2).flatten(1).mean(1).clamp(min=1e-15).log10()


@pytest.mark.slow
def test_planted_digits_come_back_exactly():
    victim = digits(16, 24, 4, parties=2)
    result = Cafe(steps=(30, 150))(victim.transcript(), seed=0)
    true = victim.data.inputs[result.indices]
    assert len(result) == 16
    certain = result.objective < 1e-4
    assert certain.float().mean() > 0.8
    assert psnr(result.inputs, true)[certain].min() > 50  # the residual tells, without the truth
    assert torch.equal(result.labels, victim.data.labels[result.indices])


def test_gauss_newton_solves_a_linear_map_at_once():
    draw = torch.Generator().manual_seed(0)
    matrix = torch.randn(30, 12, generator=draw)
    x = torch.rand(5, 12, generator=draw)
    found = gauss_newton(
        lambda z: z @ matrix.T, x @ matrix.T, torch.full((5, 12), 0.5), (0.0, 1.0), InversionSettings(inner=20)
    )
    assert torch.allclose(found, x, atol=1e-4)


def test_the_search_never_leaves_the_value_range_and_residuals_are_its_own():
    draw = torch.Generator().manual_seed(1)
    matrix = torch.randn(20, 6, generator=draw)
    targets = torch.randn(3, 20, generator=draw)  # nothing maps there
    search = InversionSettings(steps=(10, 10))
    x, left = invert(lambda z: z @ matrix.T, targets, torch.zeros(1, 6), (-1.0, 2.0), search, seed=0)
    assert x.min() >= -1
    assert x.max() <= 2
    assert torch.allclose(left, residual(lambda z: z @ matrix.T, targets, x))
    assert left.min() > 0.1


def test_fresh_starts_never_make_a_residual_larger():
    draw = torch.Generator().manual_seed(3)
    matrix = torch.randn(12, 10, generator=draw)

    def features(z):
        return (z @ matrix.T).relu()

    targets = features(torch.rand(12, 10, generator=draw))
    one, more = (
        invert(features, targets, torch.zeros(1, 10), (0.0, 1.0), InversionSettings(steps=steps, noise=0.3), seed=0)[1]
        for steps in ((3,), (3, 5, 5))
    )
    assert (more <= one).all()
    assert (more < one).any()


def test_features_that_are_the_input_need_no_search():
    assert reads_input(lambda z: z.flatten(1), torch.zeros(1, 2, 3))
    assert not reads_input(lambda z: 2 * z.flatten(1), torch.zeros(1, 2, 3))


def test_an_interrupted_search_goes_on_where_it_was():
    victim = digits(6, 10, 2, parties=2)

    class Kept(Silent):
        def __init__(self):
            self.saved: list[Checkpoint] = []

        def save(self, checkpoint):
            self.saved.append(checkpoint)

        def load(self):
            return self.saved[0] if self.saved else None

    attack, kept = Cafe(steps=(5,)), Kept()
    whole = attack(victim.transcript(), seed=0, progress=kept)
    assert len(kept.saved) == 2
    again = attack(victim.transcript(), seed=0, progress=kept)
    assert torch.equal(whole.inputs, again.inputs)


def test_row_adam_equals_torchs_adam_where_every_row_moves():
    draw = torch.Generator().manual_seed(0)
    mine, theirs = torch.rand(4, 3, generator=draw), torch.nn.Parameter(torch.zeros(4, 3))
    theirs.data.copy_(mine)
    ours, other = RowAdam(mine, 0.1), torch.optim.Adam([theirs], lr=0.1, eps=1e-7)
    for _ in range(5):
        gradient = torch.randn(4, 3, generator=draw)
        ours.step(torch.arange(4), gradient)
        theirs.grad = gradient
        other.step()
    assert torch.allclose(mine, theirs.detach(), atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"iterations": (300, 300, 500)},
        {"loop": "single_loop", "iterations": (500,), "thresholds": ()},
        {"loop": "single_loop", "iterations": (600,), "thresholds": (1e-3, 1e-1)},
    ],
)
def test_published_loops_get_closer_to_the_truth(options):
    victim = digits(6, 60, 2, parties=2, channels=4)
    attack = PublishedCafe(alpha=0.0, **options)
    result = attack(victim.transcript(), seed=0)
    true = victim.data.inputs[result.indices]
    assert psnr(result.inputs, true).mean() > psnr(torch.full_like(true, 0.5), true).mean() + 0.5
    assert result.status == "exhausted"
    assert result.cost["rounds"] == sum(options["iterations"])


@pytest.mark.parametrize(
    ("together", "counts"), [(True, "V by 6, H by 5 and x by 4"), (False, "V by 1, H by 1 and x by 4")]
)
def test_a_step_of_the_single_loop_goes_on_beside_the_next_or_ends(together, counts):
    """Thresholds that every objective is below open one step in each iteration."""
    victim = digits(6, 10, 2, parties=2, channels=2)
    attack = PublishedCafe(loop="single_loop", iterations=(6,), thresholds=(1e9, 1e9), together=together, alpha=0.0)
    assert counts in attack(victim.transcript(), seed=0).notes[0]


def test_published_equation_nine_with_gradients_runs_and_guesses_labels():
    victim = digits(4, 8, 2, parties=2, channels=2)
    result = PublishedCafe(iterations=(3, 3, 3))(victim.transcript(), seed=0)
    assert result.labels.shape == (4,)
    assert torch.isfinite(result.inputs).all()


def test_a_rate_that_diverges_is_refused():
    victim = digits(30, 8, 20, parties=2, channels=2)
    with refusal("step_diverges", 0.06):
        PublishedCafe(lr_one=0.06).check(victim.transcript())


@pytest.mark.slow
def test_fake_gradients_stop_the_naive_attacker_and_not_the_one_who_knows():
    defense = FakeGradients(candidates=2)
    victim = digits(8, 250, 2, parties=2, defense=defense, hidden=96, channels=4)
    naive = Cafe().recover(victim.transcript())
    aware = Cafe(entries="unforged").recover(victim.transcript())
    clean = Cafe().recover(IndexedVictim(**_fields(victim, defense=None)).transcript())

    def error(found):
        read, true = (torch.cat([one.h[common] for one in each], dim=1) for each in (found, clean))
        return float(((read - true).norm(dim=1) / true.norm(dim=1)).median())

    common = torch.stack([identifiable(found) for found in (naive, aware, clean)]).all(0)
    assert common.sum() >= 4
    assert error(naive) > 1
    assert error(aware) < 0.1


def _fields(victim, **changed):
    names = ("knowledge", "params", "data", "design", "rounds", "buffers", "defense", "seed", "server")
    return {name: getattr(victim, name) for name in names} | changed


@pytest.mark.full
def test_attacking_while_training_follows_the_weights():
    still = digits(12, 30, 4, parties=2, hidden=64)
    victim = IndexedVictim(**_fields(still, server=ServerStep(optimizer="sgd", lr=3e-3)))
    results = [Cafe(corrections=n, steps=(30, 150))(victim.transcript(), seed=0) for n in (0, 4)]
    guesses = [psnr(result.inputs, victim.data.inputs[result.indices]) for result in results]
    assert guesses[1].median() > guesses[0].median() + 20
    assert bool((guesses[1][results[1].objective < 1e-4] > 50).all())
    assert any("the weights move" in note for note in results[1].notes)


def test_batches_are_told_to_the_attack_and_nothing_else():
    victim = digits(6, 8, 2)
    observed = victim.transcript()[0]
    assert observed.labels is None
    assert isinstance(victim.batch(0), Batch)


def test_constants_are_brought_to_another_batch_size_and_tile():
    """Step I contracts as much at any batch size, and total variation is left alone at the same mean over values."""
    for name, row in TABLE_9.items():
        for batch, values in ((40, TABLE_9_TILE[name]), (5, 8 * 8), (2, 4 * 4 * 3)):
            found = PublishedCafe(constants=name, scaled=True).constants_at(batch, values)
            assert found["lr_one"] * batch == pytest.approx(row["lr_one"] * 40)
            assert found["xi"] / values == pytest.approx(row["xi"] / TABLE_9_TILE[name])
            assert (found["lr_two"], found["lr_three"]) == (row["lr_two"], row["lr_three"])
    given = PublishedCafe(scaled=True, lr_one=0.01, xi=0.0).constants_at(5, 64.0)
    assert (given["lr_one"], given["xi"]) == (0.01, 0.0), "what is given stays"
    assert PublishedCafe().constants_at(5, 64.0) == TABLE_9["mnist"]


def test_a_run_scales_by_its_own_batches_and_tiles():
    victim = digits(4, 8, 2, parties=2, channels=2)
    tile, batch = victim.data.inputs[0].numel() / 2, len(victim.design.indices(0))
    options = {"iterations": (5, 5, 20), "alpha": 0.0}
    own = PublishedCafe(constants="yale32", scaled=True, **options)
    found = own.constants_at(batch, tile)
    typed = PublishedCafe(constants="yale32", lr_one=found["lr_one"], xi=found["xi"], **options)
    one, other = (attack(victim.transcript(), seed=0).inputs for attack in (own, typed))
    assert torch.equal(one, other)


# --- equation 9 with the gradients' distance -------------------------------------------------------------------------


def written_out(victim, place, tiles, logits, h, weights):
    """Equation 9 in plain tensor code: forward and backward by hand, party by party; the activation is a sigmoid."""
    alpha, beta, gamma, xi = weights
    chosen = victim.design.indices(place)
    true = victim.transcript()[place].update.tensors
    p, n, m = victim.params, len(chosen), len(tiles)
    states, joined = [], []
    for party, tile in enumerate(tiles):
        w = {name.removeprefix(f"parties.{party}."): q for name, q in p.items() if f"parties.{party}." in name}
        x = tile.flatten(1)  # no convolution in front: the layer's input is the tile itself
        one = torch.sigmoid(x @ w["first.weight"].T + w["first.bias"])
        two = torch.sigmoid(one @ w["rest.1.weight"].T + w["rest.1.bias"])
        out = torch.sigmoid(two @ w["rest.3.weight"].T + w["rest.3.bias"])
        states.append((w, x, one, two, out))
        joined.append(out)
    together = torch.cat(joined, 1)
    outputs = together @ p["head.weight"].T + p["head.bias"]
    # The mean cross-entropy's gradient in the outputs is (softmax - label) / n.
    push = (outputs.softmax(1) - logits.softmax(1)) / n
    made = {"head.weight": push.T @ together, "head.bias": push.sum(0)}
    back = (push @ p["head.weight"]).chunk(m, 1)
    for party, ((w, x, one, two, out), down) in enumerate(zip(states, back, strict=True)):
        for name, before, after in (("rest.3", two, out), ("rest.1", one, two), ("first", x, one)):
            slope = down * after * (1 - after)
            made[f"parties.{party}.{name}.weight"] = slope.T @ before
            made[f"parties.{party}.{name}.bias"] = slope.sum(0)
            down = slope @ w[f"{name}.weight"]
    assert made.keys() == true.keys()
    objective = alpha * sum((made[name] - true[name]).pow(2).sum() for name in true)
    objective = objective + gamma * sum((x - rows).pow(2).sum() for (_, x, *_), rows in zip(states, h, strict=True))
    variation = torch.stack(
        [((t[..., 1:, :] - t[..., :-1, :]).abs().sum() + (t[..., 1:] - t[..., :-1]).abs().sum()) / n for t in tiles]
    )
    return objective + beta * variation.sum() if variation.mean() > xi else objective


@pytest.mark.parametrize(("loop", "xi"), [("nested", 0.0), ("single_loop", 1e9)])
def test_equation_nine_with_gradients_steps_as_written_out(loop, xi):
    """Three iterations of step III with alpha > 0 are torch's Adam on the objective by hand, in images and labels."""
    victim = digits(6, 4, 6 - 1, parties=4, hidden=8, activation="sigmoid", body="flat")
    options = {"iterations": (0, 0, 3)} if loop == "nested" else {"iterations": (3,), "thresholds": (), "lr_one": 1e-9}
    attack = PublishedCafe(loop=loop, xi=xi, alpha=0.5, beta=1e-2, gamma=1e-1, lr_two=1e-9, lr_three=0.05, **options)
    seen = attack.prepare(victim.transcript())
    run = PublishedRun(attack, seen, 0, Silent())
    start = [[x.clone() for x in table] for table in (run.tables.x, run.tables.h)] + [[run.tables.y.clone()]]
    run.loop()
    tiles, h, logits = start[0], start[1], start[2][0]
    for table in (*tiles, logits):
        table.requires_grad_()
    adams = {}  # a row's moments and count are its own, so each sample has an optimizer
    for n in range(6):
        rows = [torch.nn.Parameter(table[n].detach().clone()) for table in (*tiles, logits)]
        adams[n] = (rows, torch.optim.Adam(rows, lr=0.05, eps=1e-7))
    for t in range(3):
        chosen = victim.design.indices(t).tolist()
        *now, labels = [torch.stack([adams[n][0][part] for n in chosen]) for part in range(5)]
        objective = written_out(victim, t, now, labels, [one[chosen] for one in h], (0.5, 1e-2, 1e-1, xi))
        for n in chosen:
            adams[n][1].zero_grad()
        objective.backward()
        for n in chosen:
            adams[n][1].step()
    for n in range(6):
        for mine, theirs in zip((*run.tables.x, run.tables.y), adams[n][0], strict=True):
            assert torch.allclose(mine[n], theirs, atol=2e-5)
    moved = torch.cat([(a - b.detach()).flatten() for a, b in zip(run.tables.x, tiles, strict=True)])
    assert moved.abs().max() > 0.04  # three steps of 0.05 move what they touch


# --- the rivals in the same loop -------------------------------------------------------------------------------------


def test_dlg_in_the_loop_steps_as_written_out():
    """One iteration of `objective = "dlg"` is Adam on the squared distance by hand: equation 9's first term alone."""
    victim = digits(6, 4, 5, parties=4, hidden=8, activation="sigmoid", body="flat")
    attack = cafe_rivals.RivalCafe(objective="dlg", iterations=(1,), lr_three=0.05)
    run = attack.begun(attack.prepare(victim.transcript()), 0, Silent())
    chosen = victim.design.indices(0)
    own = [table[chosen].clone().requires_grad_() for table in (*run.tables.x, run.tables.y)]
    rest = [index for index in range(6) if index not in chosen.tolist()]
    before = [table[rest].clone() for table in run.tables.x]
    adam = torch.optim.Adam(own, lr=0.05, eps=1e-12)
    written_out(victim, 0, own[:4], own[4], [x.flatten(1).detach() for x in own[:4]], (1.0, 0.0, 0.0, 1e9)).backward()
    adam.step()
    run.loop()
    for mine, theirs in zip((*run.tables.x, run.tables.y), own, strict=True):
        assert torch.allclose(mine[chosen], theirs, atol=1e-4)
    for table, left in zip(run.tables.x, before, strict=True):
        assert torch.equal(table[rest], left), "rows outside the batch stay"


def test_the_rivals_objectives_are_their_formulas():
    """Each from the two gradients as flat vectors, by its formula, with the regularizers computed by hand."""
    victim = digits(4, 4, 2, parties=2, hidden=6, channels=2, batch_norm=True)
    seen, rule, model = victim.transcript(), FedSGD(), victim.knowledge.model
    draw = torch.Generator().manual_seed(0)
    guesses = [
        Batch(
            torch.rand(2, *victim.data.inputs.shape[1:], generator=draw), torch.rand(2, 10, generator=draw).softmax(1)
        )
        for _ in range(2)
    ]
    sent = seen[0].update.tensors
    made = [rule(model, victim.params, batch, buffers=victim.buffers).tensors for batch in guesses]
    flat = [torch.cat([tensors[name].flatten() for name in sent]) for tensors in (sent, *made)]

    def value(objective, count=1):
        return float(cafe_rivals.rival_objective(objective, 0.5, seen, 0, guesses[:count]).detach())

    square = [float((one - flat[0]).square().sum()) for one in flat[1:]]
    assert value("dlg") == pytest.approx(square[0], rel=1e-4)
    x = guesses[0].inputs
    variation = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
    cosine = 1 - torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0)
    assert value("cosine") == pytest.approx(float(cosine + 4e-4 * variation), rel=1e-4)
    kernel = sum(
        1 - torch.exp(-(made[0][name] - g).square().sum() / (g.numel() * g.var(unbiased=False)))
        for name, g in sent.items()
    )
    assert value("sapag") == pytest.approx(float(kernel), rel=1e-3)
    # Two guesses moved by nothing: the mean of both is half-way, so each is half their distance from it.
    apart = (guesses[0].inputs - guesses[1].inputs).abs()
    group = value("group", 2) - 0.5 * sum(square)
    assert 0 < group <= float(2 * 0.01 * 16 * (apart / 2).square().mean()) * 1.001
    statistics = 0.0
    for party, block in zip(model.parties, model.blocks, strict=True):
        convolved = party.features[0](x[(slice(None), *block)])
        mean, variance = convolved.mean((0, 2, 3)), convolved.var((0, 2, 3), unbiased=False)
        pooled = party.features[3](
            torch.relu((convolved - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt())
        )
        again = party.features[4](pooled)
        for one in (convolved, again):
            far = one.mean((0, 2, 3)).norm() + (one.var((0, 2, 3), unbiased=False) - 1).norm()
            statistics += float(far.detach())
    assert value("batch_norm") == pytest.approx(0.5 * square[0] + 0.1 * statistics, rel=1e-3)


def test_a_rival_that_does_not_apply_is_refused():
    victim = digits(6, 8, 2, parties=2, channels=2)
    with refusal("no_batch_norm"):
        cafe_rivals.RivalCafe(objective="batch_norm").check(victim.transcript())
    with refusal("no_objective", "'best'"):
        cafe_rivals.RivalCafe(objective="best").check(victim.transcript())


def test_group_brings_its_guesses_together():
    victim = digits(4, 8, 2, parties=2, channels=2, hidden=8)
    options = {"objective": "group", "guesses": 3, "iterations": (4,)}
    one = cafe_rivals.RivalCafe(**options)(victim.transcript(), seed=0)
    assert one.inputs.shape == victim.data.inputs.shape
    assert torch.equal(one.inputs, cafe_rivals.RivalCafe(**options)(victim.transcript(), seed=0).inputs)
    assert not torch.equal(
        one.inputs, cafe_rivals.RivalCafe(**(options | {"objective": "dlg"}))(victim.transcript(), seed=0).inputs
    )


# --- weights that move -----------------------------------------------------------------------------------------------


def test_step_three_compares_features_at_the_weights_of_the_round():
    """While the server trains, equation 9's last term is at round t's weights; off, at the first round's."""
    still = digits(6, 12, 3, parties=2, hidden=8, channels=2)
    victim = IndexedVictim(**_fields(still, server=ServerStep(optimizer="sgd", lr=0.5)))
    for follow, at in ((True, 5), (False, 0)):
        attack = PublishedCafe(alpha=0.0, beta=0.0, gamma=1.0, follow=follow)
        run = PublishedRun(attack, attack.prepare(victim.transcript()), 0, Silent())
        chosen = victim.design.indices(5)
        network = copy.deepcopy(victim.knowledge.model)
        network.load_state_dict(victim.params_at(at))
        expected = sum(
            float((party.features(x[chosen]) - h[chosen]).square().sum().detach())
            for party, x, h in zip(network.parties, run.tables.x, run.tables.h, strict=True)
        )
        assert run.step_three(5) == pytest.approx(expected, rel=1e-4)
