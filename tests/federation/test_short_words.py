"""What a session holds is shown in one line."""

import torch
from torch import nn

from seepage import Batch, attack, record, score


def test_what_a_session_holds_is_shown_in_a_line_without_a_value() -> None:
    """A prompt prints the last result, and private examples with it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    batch = Batch(torch.rand(1, 3, 2, 2), torch.tensor([3]))
    transcript = record(model, batch)
    guess = attack(transcript, "linear")
    for shown, word in (
        (transcript, "1 round of Sequential"),
        (transcript[0], "batch size 1"),
        (transcript[0].update, "gradient of 4 tensors"),
        (batch, "[1, 3, 2, 2]"),
        (guess, "[1, 3, 2, 2]"),
        (score(guess, batch), "recovered 1, exact 1, psnr"),
    ):
        words = repr(shown)
        assert word in words
        assert len(words) < 120
        assert "tensor(" not in words
