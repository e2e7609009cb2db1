"""Training loops of upstream examples, pasted: what changes is the line of `def`, and what a batch is called."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from upstream_networks import decayed_groups

Loader = Iterable[tuple[Tensor, Tensor]]


def quickstart_pytorch(net: nn.Module, trainloader: Loader) -> None:
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net.train()
    for images, labels in trainloader:
        optimizer.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        optimizer.step()


def hello_pt(model: nn.Module, train_loader: Loader) -> None:
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), nn.CrossEntropyLoss()
    for batch in train_loader:
        images, labels = batch[0], batch[1]
        optimizer.zero_grad()
        predictions = model(images)
        cost = loss(predictions, labels)
        cost.backward()
        optimizer.step()


def quickstart_huggingface(net: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-5)
    net.train()
    outputs = net(input_ids=batch[0], labels=batch[1])
    loss = outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def flowertune_vit(net: Any, batch: tuple[Tensor, Tensor]) -> None:
    optimizer, criterion = torch.optim.Adam(net.heads.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    images, labels = batch
    optimizer.zero_grad()
    loss = criterion(net(images), labels)
    loss.backward()
    optimizer.step()


def fl_tabular(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    criterion, optimizer = nn.BCELoss(), torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    x_batch, y_batch = batch[0], batch[1].float()[:, None]
    optimizer.zero_grad()
    outputs = model(x_batch)
    loss = criterion(outputs, y_batch)
    loss.backward()
    optimizer.step()


def fedbn(model: nn.Module) -> Callable[[Tensor, Tensor], None]:
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()

    def step(data: Tensor, labels: Tensor) -> None:
        optimizer.zero_grad()
        criterion(model(data), labels).backward()
        optimizer.step()

    return step


def opacus_cifar10(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """Opacus' hooks, by `torch.func`: each example's gradient clipped to 10, noise of 1.5 times that on the sum."""
    (images, target), named = batch, dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, params, (x[None],)), y[None])

    start = {name: p.detach() for name, p in named.items()}
    rows = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(start, images, target)
    factors = (10 / sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()).clamp(max=1)
    for name, p in named.items():
        total = torch.einsum("n...,n->...", rows[name], factors)
        p.grad = (total + 1.5 * 10 * torch.randn_like(total)) / len(images)
    optimizer.step()


def examples_mnist(model: nn.Module, train_loader: Loader) -> None:
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def examples_vae(model: nn.Module, data: Tensor, _: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    recon_batch, mu, logvar = model(data)
    bce = F.binary_cross_entropy(recon_batch, data.view(-1, 784), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    (bce + kld).backward()
    optimizer.step()


def examples_imagenet(model: nn.Module, train_loader: Loader) -> None:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    model.train()
    for images, target in train_loader:
        output = model(images)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def pytorch_cifar(net: nn.Module, trainloader: Loader) -> None:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    net.train()
    for inputs, targets in trainloader:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()


def pytorch_cifar_autocast(net: nn.Module, trainloader: Loader) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for inputs, targets in trainloader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(inputs), targets)
        (loss / 2).backward()
    optimizer.step()


class TimmVit:
    """timm's train_one_epoch has its optimizer, its loss and what it updates from outside."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.loss_fn = model, nn.CrossEntropyLoss(label_smoothing=0.1)
        groups = decayed_groups(model, 2e-5)
        self.optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> None:
        x, target = batch
        self.optimizer.zero_grad()
        self.loss_fn(self.model(x), target).backward()
        self.optimizer.step()


def peft_lora(model: nn.Module, train_loader: Loader) -> None:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=5e-3)
    for images, labels in train_loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images).logits, labels)
        (loss / 4).backward()
    optimizer.step()


def pytorch_unet(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    images, true_masks = batch
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9)
    masks_pred = model(images)
    chances, own = F.softmax(masks_pred, dim=1)[:, 1], (true_masks == 1).float()
    loss = nn.CrossEntropyLoss()(masks_pred, true_masks)
    loss += 1 - 2 * (chances * own).sum() / (chances + own).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()


def examples_siamese(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    optimizer, criterion = torch.optim.Adadelta(model.parameters(), lr=1.0), nn.BCELoss()
    images, targets = batch
    optimizer.zero_grad()
    outputs = model(images).squeeze()
    loss = criterion(outputs, targets.float())
    loss.backward()
    optimizer.step()


def lightning_autoencoder(model: Any, batch: tuple[Tensor, Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, _ = batch
    x = x.view(x.size(0), -1)
    z = model.encoder(x)
    x_hat = model.decoder(z)
    loss = F.mse_loss(x_hat, x)
    loss.backward()
    optimizer.step()
