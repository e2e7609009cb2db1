"""Fill the CAFE table: each command adds JSON lines to results/cafe/, with versions, seeds and the command itself.

python experiments/cafe.py exact --data ../shared/data/cifar10.npz --seeds 3
"""

import argparse

from cafe_rivals import run_against, run_baselines, run_published
from cafe_runs import run_exact, run_fake, run_losses, run_table, run_training
from cafe_scores import PAPER


def _images(parser: argparse.ArgumentParser, out: str, *, samples: int = 800, batch: int = 40) -> None:
    """Options of all commands on images."""
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--out", default=out)
    parser.add_argument("--parties", type=int, default=4)


def _rounds(parser: argparse.ArgumentParser, rounds: int, design: str = "random") -> None:
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--design", choices=["random", "epochs", "partitions"], default=design)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    exact = commands.add_parser("exact", help=run_exact.__doc__)
    _images(exact, "exact")
    _rounds(exact, 820)
    exact.add_argument("--mode", default="auto")
    exact.add_argument("--activation", default="relu")
    exact.add_argument("--double-softmax", action="store_true")
    exact.add_argument("--steps", type=int, nargs="+", default=[30, 250, 350])
    exact.add_argument("--invert", action="store_true")
    exact.add_argument("--some", type=int, default=0, help="step III on so many samples alone")
    exact.add_argument("--paper", choices=sorted(PAPER), help="put this table's number beside")
    exact.set_defaults(go=run_exact)

    fake = commands.add_parser("fake", help=run_fake.__doc__)
    _images(fake, "fake", samples=200, batch=20)
    fake.add_argument("--rounds", type=int, default=1600)
    fake.add_argument("--steps", type=int, nargs="+", default=[30, 250])
    fake.add_argument("--order", default="value")
    fake.add_argument("--entries", default="all")
    fake.add_argument("--candidates", type=int, default=1000)
    fake.add_argument("--tau", type=float)
    fake.add_argument("--some", type=int, default=0, help="step III on so many samples alone")
    fake.set_defaults(go=run_fake)

    training = commands.add_parser("training", help=run_training.__doc__)
    _images(training, "training", samples=100, batch=20)
    _rounds(training, 15, "partitions")
    training.add_argument("--steps", type=int, nargs="+", default=[30, 250])
    training.add_argument("--optimizer", default="sgd")
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--mode", default="auto")
    training.set_defaults(go=run_training)

    losses = commands.add_parser("losses", help=run_losses.__doc__)
    _images(losses, "losses")
    losses.add_argument("--rounds", type=int, default=300)
    losses.add_argument("--every", type=int, default=20)
    losses.add_argument("--lr", type=float, default=0.1)
    losses.add_argument("--channels", type=int, default=8)
    losses.add_argument("--candidates", type=int, default=1000)
    losses.add_argument("--orders", nargs="+", default=["none", "value", "magnitude"])
    losses.set_defaults(go=run_losses)

    table = commands.add_parser("table", help=run_table.__doc__)
    table.add_argument("--table", choices=["breast_cancer", "wine", "iris"], default="breast_cancer")
    table.add_argument("--batch", type=int, default=32)
    _rounds(table, 0)
    table.add_argument("--parties", type=int, default=3)
    table.add_argument("--activation", default="leaky_relu")
    table.add_argument("--seeds", type=int, default=1)
    table.add_argument("--first-seed", type=int, default=1)
    table.set_defaults(go=run_table)

    published = commands.add_parser("published", help=run_published.__doc__)
    _images(published, "published", samples=200, batch=20)
    published.add_argument("--rounds", type=int, default=0, help="different rounds; 0: one for each iteration")
    published.add_argument("--loop", default="nested")
    published.add_argument("--constants", default="mnist")
    published.add_argument("--iterations", type=int, nargs="+", default=[8000, 8000, 8000])
    published.add_argument("--thresholds", type=float, nargs="*", default=[1e-9, 5e-9])
    published.add_argument("--alpha", type=float, default=0.0)
    published.add_argument("--legacy", action="store_true")
    published.add_argument("--without", nargs="+", choices=["", "alpha", "beta", "gamma", "xi"])
    published.set_defaults(go=run_published)

    against = commands.add_parser("against", help=run_against.__doc__)
    _images(against, "published", samples=200, batch=20)
    _rounds(against, 210)
    against.add_argument("--steps", type=int, nargs="+", default=[15])
    against.add_argument("--polish", type=int, default=6)
    against.set_defaults(go=run_against)

    baselines = commands.add_parser("baselines", help=run_baselines.__doc__)
    _images(baselines, "baselines")
    baselines.add_argument("--steps", type=int, default=200)
    baselines.add_argument("--attacks", nargs="+", default=["dlg", "cosine", "sapag"])
    baselines.set_defaults(go=run_baselines)

    args = parser.parse_args()
    args.go(args)


if __name__ == "__main__":
    main()
