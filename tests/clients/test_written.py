"""Sixteen upstream clients, each written as a user would, record the very update that upstream's own step makes.

Written twice where that is possible: by its own loop, to the bit, and by options of `fedavg`, to rounding.
"""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import upstream_networks as networks
from tests.clients.made import drawn, plain, train
from tests.clients.test_clients import NEEDS
from tests.clients.upstream import CIFAR, CLIENTS
from torch import Tensor, nn

from seepage.base.nn import norm, state_of
from seepage.cli.parts import part_of
from seepage.federation.clients import OwnStep, make_client
from seepage.federation.types import Batch, Tensors


@dataclass(frozen=True)
class Written:
    """One of the sixteen, as a command has it.

    Attributes:
        step: Its loop, of `upstream_steps`, with the options that say how the examples are shared out.
        rule: What `--client` takes for it without any code; empty: its decay of chosen tensors, its noise or its own
            loss of several outputs has no such words.
        precision: What both are compared in. In single precision an error of 1e-7 may switch a ReLU or a pooling, and
            ten steps of batch norm make a third of the update of it: measured with the convolutions of one processor.
    """

    step: str
    rule: str = ""
    precision: torch.dtype = torch.float32


ROUNDING = 1e-5
"""Share of the update up to which it is the same; what was measured is 3e-6 at the most."""
WRITTEN = {
    "flower-quickstart-4": Written("quickstart_pytorch", "fedavg:lr=0.1,momentum=0.9"),
    "nvflare-hello-pt": Written("hello_pt", "fedavg:lr=0.01,momentum=0.9"),
    "flower-huggingface": Written(
        "quickstart_huggingface", "fedavg:lr=5e-5,optimizer=adamw,weight_decay=0.01,dropout=true"
    ),
    "flower-vit-head": Written("flowertune_vit", "fedavg:lr=1e-3,optimizer=adam"),
    "flower-tabular": Written("fl_tabular", "fedavg:lr=1e-3,optimizer=adam,loss='upstream_networks:chance_loss'"),
    "flower-fedbn-10": Written("fedbn:batch_size=30", "fedavg:lr=0.01,batch_size=30", torch.float64),
    "opacus-cifar10": Written("opacus_cifar10:batch_size=64"),
    "examples-mnist": Written(
        "examples_mnist:batch_size=64", "fedavg:lr=1.0,optimizer=adadelta,dropout=true,batch_size=64"
    ),
    "examples-vae": Written("examples_vae:batch_size=128"),
    "examples-imagenet": Written("examples_imagenet", "fedavg:lr=0.1,momentum=0.9,weight_decay=1e-4"),
    "pytorch-cifar": Written("pytorch_cifar", "fedavg:lr=0.1,momentum=0.9,weight_decay=5e-4"),
    "pytorch-cifar-autocast": Written(
        "pytorch_cifar_autocast:batch_size=8",
        "fedavg:lr=0.1,momentum=0.9,weight_decay=5e-4,batch_size=8,accumulate=2,precision=bfloat16",
    ),
    "timm-vit": Written("TimmVit"),
    "peft-lora": Written(
        "peft_lora:batch_size=2",
        "fedavg:lr=5e-3,optimizer=adamw,weight_decay=0.01,batch_size=2,accumulate=4,precision=bfloat16,dropout=true",
    ),
    "pytorch-unet": Written(
        "pytorch_unet",
        "fedavg:lr=1e-3,optimizer=rmsprop,momentum=0.9,weight_decay=1e-8,clip_value=0.1,"
        "loss='upstream_networks:masks_loss'",
    ),
    "examples-siamese": Written(
        "examples_siamese", "fedavg:lr=1.0,optimizer=adadelta,loss='upstream_networks:chance_loss'"
    ),
    "lightning-autoencoder": Written("lightning_autoencoder", "fedavg:lr=1e-3,optimizer=adam,loss=mse,target=input"),
}
SETUPS = set(WRITTEN) - {"pytorch-cifar-autocast"}
"""The sixteen; the fork with autocast is a variant of one."""
SLOW = {"flower-huggingface", "peft-lora", "timm-vit"}


def siamese() -> tuple[Tensors, Tensors, Tensor, Tensor]:
    """pytorch/examples siamese_network: Adadelta at 1, BCELoss of a sigmoid; 8 pairs, one batch."""
    one, two = (drawn(8, (1, 28, 28), 2, seed=seed, use="digits") for seed in (14, 15))
    inputs, labels = torch.stack([one[0], two[0]], 1), (one[1] == two[1]).long()
    step = partial(plain, loss=networks.chance_loss)
    made = train("pairs", lambda net: torch.optim.Adadelta(net.parameters(), lr=1.0), [(inputs, labels)], step)
    return *made, inputs, labels


def autoencoder() -> tuple[Tensors, Tensors, Tensor, Tensor]:
    """Lightning's first example: Adam at 1e-3 on squared errors of pixels; 32 pictures, one batch."""
    inputs, labels = drawn(32, (1, 28, 28), 10, seed=16, use="digits")

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, inputs.flatten(1))

    step = partial(plain, loss=loss)
    made = train("coder", lambda net: torch.optim.Adam(net.parameters(), lr=1e-3), [(inputs, labels)], step)
    return *made, inputs, labels


MORE = {"examples-siamese": ("pairs", siamese), "lightning-autoencoder": ("coder", autoencoder)}
MADE = {client.name: (client.network, client.make) for client in CLIENTS} | MORE


def upstream(name: str) -> tuple[nn.Module, Batch, Tensors]:
    """The network at the weights that were sent out, the examples, and the difference that upstream's step makes."""
    network, make = MADE[name]
    pytest.importorskip(NEEDS.get(network, "torch"))
    before, after, inputs, labels = make()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = getattr(networks, network)()
    before, after = (
        {key.removeprefix("_module."): tensor for key, tensor in state.get("net", state).items()}
        for state in (before, after)
    )
    params = state_of(net)[0]
    assert all(torch.equal(params[key], tensor) for key, tensor in before.items() if key in params)
    return net, Batch(inputs, labels), {key: after[key] - before[key] for key in before if key in params}


def test_all_sixteen_are_written() -> None:
    assert len(SETUPS) == 16
    assert MADE.keys() >= SETUPS
    assert CIFAR == (3, 32, 32)


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in WRITTEN])
def test_a_client_records_what_upstreams_own_step_sends(name: str) -> None:
    net, batch, true = upstream(name)
    params, buffers = state_of(net)
    written = WRITTEN[name]
    use, _, options = written.step.partition(":")
    own = make_client(part_of(f"upstream_steps:{use}:shuffle=false,{options}", "--client"))
    assert isinstance(own, OwnStep)
    found = own(net, params, batch, buffers=buffers).tensors
    for key, tensor in true.items():
        assert torch.equal(found[key], tensor), key
    if written.rule:
        net.to(written.precision)
        batch = Batch(
            *(part.to(written.precision) if part.is_floating_point() else part for part in (batch.inputs, batch.labels))
        )
        params, buffers = state_of(net)
        rule = make_client(part_of(f"{written.rule},shuffle=false", "--client"))
        found, ruled = (client(net, params, batch, buffers=buffers).tensors for client in (own, rule))
        apart = {key: ruled[key] - found[key] for key in true}
        assert float(norm(apart) / norm(found)) < ROUNDING
