"""Three federated rounds of two clients with Opacus: epsilon beside what each update gives away, in one line."""

import tempfile
from pathlib import Path

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from seepage import Architecture, FedAvg, build, data
from seepage.recorder.opacus import Ledger
from seepage.recorder.recorder import Recorder

NET, SHAPE, LR, EXAMPLES = Architecture("fc2", {"hidden": 32}), (1, 8, 8), 0.1, 64
digits, place = data.load("digits", size=8), Path(tempfile.mkdtemp())
ledger = Ledger(place, delta=1 / (10 * EXAMPLES))
recorder = Recorder(
    place, architecture=NET, input_shape=SHAPE, num_classes=10, client=FedAvg(lr=LR, batch_size=16), audit="inline"
)
weights = build(NET, SHAPE, 10).state_dict()
for t in range(3):
    replies = []
    for client in range(2):
        mine = digits.batch(torch.arange(client * EXAMPLES, (client + 1) * EXAMPLES))
        model = build(NET, SHAPE, 10)
        model.load_state_dict(weights)
        engine, plain = PrivacyEngine(accountant="rdp"), torch.optim.SGD(model.parameters(), lr=LR)
        loader = DataLoader(TensorDataset(mine.inputs, mine.labels), batch_size=16)
        private, optimizer, batches = engine.make_private(
            module=model, optimizer=plain, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
        )
        ledger.resume(engine, client=client)  # this engine is new: earlier rounds count too
        for inputs, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(private(inputs), labels).backward()
            optimizer.step()
        seen = recorder.record(weights, private.state_dict(), t=t, client=client, examples=EXAMPLES)
        print(t, client, ledger.record(engine, optimizer, t=t, client=client, seen=seen).line, "|", seen.exposure.line)
        replies.append({name.removeprefix("_module."): tensor for name, tensor in private.state_dict().items()})
    weights = {name: torch.stack([reply[name] for reply in replies]).mean(0) for name in weights}
