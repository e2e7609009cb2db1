"""An adapter is audited from a recipe like any model."""

from pathlib import Path

import pytest
import torch
from small_adapter import network
from tests.cli.conftest import Cli

RECIPE = """
[data]
use = "digits"
[model]
use = "fc2"
hidden = 64
adapter = { rank = 8, targets = ["2"] }
[training]
steps = 5
[[attack]]
use = "lora"
"""


@pytest.mark.slow
def test_a_recipe_with_an_adapter_is_audited(cli: Cli, home: Path) -> None:
    pytest.importorskip("peft")
    (home / "mine.toml").write_text(RECIPE)
    found = cli("audit", "mine.toml", "--jobs=1", "--out=run", "--json")
    assert found.json["rows"][0]["scores"]["exact"]["mean"] == 1.0
    assert "sent: 2 of 6 tensors" in (home / "run" / "report.html").read_text()


def test_the_plain_command_reads_an_adapter(cli: Cli, home: Path) -> None:
    """It tried seven attacks and not the one on adapters, which reads the example exactly."""
    torch.manual_seed(0)
    model, trained = network((1, 8, 8), 10), ".lora_"
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.save(before, home / "before.pt")
    torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([3])).backward()
    torch.optim.SGD([p for name, p in model.named_parameters() if trained in name], lr=0.1).step()
    torch.save(dict(model.named_parameters()), home / "after.pt")
    found = cli(
        "attack", "before.pt", "after.pt", "--model", "small_adapter:network", "--shape", "1,8,8",
        "--classes", "10", "--lr", "0.1", "--batch-size", "1", "--out", "run", "--json", "--allow-inconclusive",
    )  # fmt: skip
    rows = {row["attack"]: row for row in found.json["rows"]}
    assert rows["lora"]["certified"]["n"] == 1
