"""Two checkpoints of somebody's training, before and after one step: what do they give away?"""

import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from seepage import Architecture, attack, build, exposure, open_transcript
from seepage.audit.capture import Capture
from seepage.audit.observe import observe_files


def look(before: Path, after: Path, lr: float, out: Path) -> None:
    """Write an observed/ folder, say what it gives away, attack it."""
    network = Architecture("fc2", {"hidden": 32})
    capture = Capture(before=before, after=after, lr=lr, architecture=network, input_shape=(1, 8, 8), batch_size=1)
    for remark in observe_files(capture, out):
        print(remark)
    print(exposure(out).line)
    print(attack(open_transcript(out), "linear").notes[0])


if len(sys.argv) == 5:
    look(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
else:  # no files at hand: make some
    model, place = build(Architecture("fc2", {"hidden": 32}), (1, 8, 8), 10), Path(tempfile.mkdtemp())
    save_file(model.state_dict(), place / "before.safetensors")
    torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([4])).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    save_file(model.state_dict(), place / "after.safetensors")
    look(place / "before.safetensors", place / "after.safetensors", 0.1, place / "observed")
