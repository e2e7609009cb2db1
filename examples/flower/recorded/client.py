"""The client: plain PyTorch, a defense, and outermost the record of what really leaves it."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from recorded import CLASSES, EXAMPLES, LR, NET, SHAPE, recorder
from seepage import GaussianNoise, build, data
from seepage.recorder.flower_hooks import defense_mod, recording_mod

app = ClientApp(mods=[recording_mod(recorder("client")), defense_mod(GaussianNoise(sigma=0.001))])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One SGD step on this client's digits."""
    digits = data.load("digits", size=SHAPE[1])
    start = int(context.node_config["partition-id"])
    batch = digits.batch(torch.arange(start, len(digits), len(digits) // EXAMPLES)[:EXAMPLES])
    model = build(NET, SHAPE, CLASSES)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": EXAMPLES})}
    return Message(RecordDict(reply), reply_to=message)
