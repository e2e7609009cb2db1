"""Every registered attack, and `exposure`, on networks that people use, each at a tiny size.

python experiments/architectures.py [NETWORK ...] [--attack NAME ...]

A case is one network, one attack and one setting. It ends in a score, or in a sentence that says why the attack does
not apply and what to do instead; anything else is a fault of the package, is printed with its traceback, and makes the
command fail. Networks have the layers of their namesakes in few channels and small images, with random weights (batch
norms with statistics of other inputs); searches take one to four steps. So the scores of searches say that they run,
not how well: that is measured elsewhere. One row of results/architectures/matrix.jsonl per network and setting, in
place of the one that is there. Needs timm and transformers.
"""

import itertools
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal

import torch
from common import Row, command, keep
from torch import Tensor, nn

from seepage import ATTACKS, Batch, FedSGD, Transcript, attack, record, score
from seepage.attacks.exposure import exposure
from seepage.base.nn import frozen_randomness, generator
from seepage.base.storage import write_lines
from seepage.errors import SeepageError
from seepage.measure.metrics.text import score_text
from seepage.papers.records import RESULTS, read_file

STUDY = "architectures/matrix"
CLASSES, VOCABULARY, TOKENS = 5, 100, 8
IMAGE = (3, 32, 32)
BRIEF: Mapping[str, Mapping[str, Any]] = {
    **{use: {"steps": 1} for use in ("dlg", "idlg")},
    **{use: {"steps": 3} for use in ("bayes", "sapag", "inverting_gradients", "fedleak", "cpa_fia")},
    **{use: {"steps": 3} for use in ("gradient_matching", "fedleak_guided")},
    "fedleak_released": {"steps": 3, "width": 4},
    "gauss_newton": {"steps": 2, "inner": 10},
    "local_steps": {"steps": 3, "turns": 1},
    "grad_inversion": {"steps": 3, "restarts": 2},
    "spear": {"samples": 256, "starts": 32, "steps": 3},
    "rogs": {"steps": 3, "training": 3, "width": 4},
    "feature_decoder": {"training": 3, "width": 4},
    "ggl": {"steps": 2, "population": 4, "latent": 8, "width": 4, "training": 3},
    "cafe": {"steps": [2, 2, 2], "polish": 1, "corrections": 1},
    "cafe_published": {"iterations": [2, 2, 2]},
}
"""Options that make an attack end within a second; what it does is the same."""

LOOK = "exposure"
"""The name under which `exposure` stands beside the attacks."""


@dataclass(frozen=True)
class Network:
    """A tiny namesake of a public architecture.

    Attributes:
        library: The package that its layers are of.
        make: Builds it.
        shape: Of one example.
        tokens: Whether an example is a sequence of token numbers.
    """

    library: Literal["torch", "torchvision", "timm", "transformers"]
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = IMAGE
    tokens: bool = False


def resnet(layers: tuple[int, ...], channels: tuple[int, ...], kind: str) -> nn.Module:
    from timm.models import resnet

    return resnet.ResNet(getattr(resnet, kind), layers, CLASSES, channels=channels, stem_width=8)


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(*one) for one in ((8, 16, 3), (16, 24, 3), (24, 32, 9), (32, None, 3))]
    return ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=CLASSES)


def efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    stages = (
        *((1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3)),
        *((6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1)),
    )
    return EfficientNet([MBConvConfig(*one, width_mult=0.25) for one in stages], dropout=0.2, num_classes=CLASSES)


def mobilenet() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(width_mult=0.25, num_classes=CLASSES)


def densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return DenseNet(4, (6, 12, 24, 16), num_init_features=8, bn_size=2, num_classes=CLASSES)


def vgg() -> nn.Module:
    from timm.models.vgg import VGG

    layers = [8, 8, "M", 8, 8, "M", 12, 12, 12, "M", *[16, 16, 16, "M"] * 2]
    return VGG(layers, num_classes=CLASSES, mlp_ratio=1 / 128, norm_layer=nn.BatchNorm2d)


def regnet() -> nn.Module:
    from torchvision.models.regnet import BlockParams, RegNet

    blocks = BlockParams.from_init_params(depth=6, w_0=8, w_a=8.0, w_m=2.0, group_width=4, se_ratio=0.25)
    return RegNet(blocks, CLASSES, stem_width=8)


def vit(patch: int, size: int) -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(size, patch, 2, 2, 32, 64, num_classes=CLASSES)
    # torchvision's head is made of zeros, which pass no gradient to the layers in front.
    nn.init.normal_(model.heads.head.weight, std=0.02)
    return model


def deit() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(32, 8, num_classes=CLASSES, embed_dim=48, depth=2, num_heads=3)


def swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 8, [2, 2], [1, 2], [2, 2], stochastic_depth_prob=0.2, num_classes=CLASSES)


def maxvit() -> nn.Module:
    from torchvision.models import MaxVit

    return MaxVit((32, 32), 8, 2, [8, 16], [1, 1], 4, 0.2, num_classes=CLASSES)


def mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(num_classes=CLASSES, img_size=32, patch_size=16, num_blocks=2, embed_dim=32)


def poolformer() -> nn.Module:
    from timm.layers import GroupNorm1
    from timm.models.metaformer import MetaFormer

    options = {"downsample_norm": None, "mlp_act": nn.GELU, "mlp_bias": True, "norm_layers": GroupNorm1}
    scales = {"layer_scale_init_values": 1e-5, "res_scale_init_values": None, "use_mlp_head": False}
    return MetaFormer(num_classes=CLASSES, depths=(2, 2, 2, 2), dims=(8, 16, 24, 32), **options, **scales)


def of_transformers(kind: str, config: str, **options: Any) -> nn.Module:
    import transformers

    return getattr(transformers, kind)(getattr(transformers, config)(num_labels=CLASSES, **options))


WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TEXT = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
HEARD = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 8}
NOT_HEARD = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64, "decoder_start_token_id": 1}
SPEECH = HEARD | NOT_HEARD | {"max_source_positions": 10, "classifier_proj_size": 16}


class T5Classifier(nn.Module):
    """T5's encoder with a fully connected layer on the mean of its tokens, which transformers has no class for."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5EncoderModel

        config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
        self.encoder, self.head = T5EncoderModel(config), nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(ids).last_hidden_state.mean(1))
        return logits


class Recurrent(nn.Module):
    """An LSTM, over vectors or tokens, with a fully connected layer on its last output."""

    def __init__(self, *, tokens: bool) -> None:
        super().__init__()
        self.embed: nn.Module = nn.Embedding(VOCABULARY, 16) if tokens else nn.Identity()
        self.lstm, self.head = nn.LSTM(16, 24, batch_first=True), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(x))[0][:, -1])
        return logits


class Encoder(nn.Module):
    """`nn.TransformerEncoder`, with its dropout, over vectors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, CLASSES)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(self.embed(x)).mean(1))
        return logits


def waveform() -> nn.Module:
    """Convolutions along a waveform (as M5 of Dai et al. 2017)."""
    first = (nn.Conv1d(1, 8, 16, 4), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(4))
    second = (nn.Conv1d(8, 16, 3), nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16, CLASSES))


def text(kind: str, config: str, **options: Any) -> Network:
    return Network("transformers", partial(of_transformers, kind, config, **TEXT, **options), (TOKENS,), tokens=True)


NETWORKS: Mapping[str, Network] = {
    "ResNet-18": Network("timm", partial(resnet, (2, 2, 2, 2), (8, 16, 24, 32), "BasicBlock")),
    "ResNet-50": Network("timm", partial(resnet, (3, 4, 6, 3), (4, 8, 12, 16), "Bottleneck")),
    "VGG-16-BN": Network("timm", vgg),
    "DenseNet-121": Network("torchvision", densenet),
    "MobileNetV3": Network("torchvision", mobilenet),
    "EfficientNet-B0": Network("torchvision", efficientnet),
    "RegNet": Network("torchvision", regnet),
    "ConvNeXt-T": Network("torchvision", convnext),
    "ViT-B/16": Network("torchvision", partial(vit, 16, 32)),
    "ViT-B/32": Network("torchvision", partial(vit, 32, 64), (3, 64, 64)),
    "DeiT-Ti": Network("timm", deit),
    "ViT (transformers)": Network(
        "transformers",
        partial(of_transformers, "ViTForImageClassification", "ViTConfig", image_size=32, patch_size=8, **WIDE),
    ),
    "Swin-T": Network("torchvision", swin),
    "MaxViT": Network("torchvision", maxvit),
    "MLP-Mixer": Network("timm", mixer),
    "PoolFormer": Network("timm", poolformer),
    "GPT-2": text("GPT2ForSequenceClassification", "GPT2Config", n_positions=16, n_embd=32, n_layer=2, n_head=2),
    "BERT": text("BertForSequenceClassification", "BertConfig", max_position_embeddings=16, **WIDE),
    "DistilBERT": text(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=16,
    ),
    "T5 encoder": Network("transformers", T5Classifier, (TOKENS,), tokens=True),
    "Whisper encoder": Network(
        "transformers",
        partial(of_transformers, "WhisperForAudioClassification", "WhisperConfig", **TEXT, **SPEECH),
        (8, 20),
    ),
    "waveform CNN": Network("torch", waveform, (1, 256)),
    "LSTM": Network("torch", partial(Recurrent, tokens=False), (10, 16)),
    "LSTM, tokens": Network("torch", partial(Recurrent, tokens=True), (TOKENS,), tokens=True),
    "TransformerEncoder": Network("torch", Encoder, (6, 6)),
}
SETTINGS: Mapping[str, tuple[Literal["train", "eval"], int]] = {
    "one example, eval mode": ("eval", 1),
    "two examples, train mode": ("train", 2),
}


@dataclass(frozen=True)
class Case:
    """How one attack ended on one network.

    Attributes:
        outcome: `exact`: every example at 40 dB or more, or token by token. `score`: guesses of the examples, scored.
            `features`: inputs of an inner layer. `nothing`: no guess came back. `refused`: a sentence. `raised`: an
            exception.
        psnr: Mean over the examples, where they are guessed.
        words: The refusal's sentence, what `exposure` says, or the traceback.
    """

    outcome: Literal["exact", "score", "features", "nothing", "refused", "raised"]
    psnr: float | None = None
    words: str = ""


def private(network: Network, n: int) -> Batch:
    draw = generator(0, "private")
    values = torch.rand((n, *network.shape), generator=draw)
    inputs = (1 + values * (VOCABULARY - 2)).long() if network.tokens else values
    return Batch(inputs, torch.arange(n) % CLASSES, torch.arange(n))


def transcript(network: Network, setting: str) -> tuple[Transcript, Batch]:
    """Two rounds over the same examples, whose numbers are known, as CAFE and averages over rounds want it."""
    mode, n = SETTINGS[setting]
    with frozen_randomness(0):
        model = network.make()
        _settle(model, network)
    batch = private(network, n)
    seen = record(model, [batch, batch], client=FedSGD(mode=mode), known=["indices"])
    if network.tokens:
        return seen, batch
    own = torch.rand((20, *network.shape), generator=generator(0, "auxiliary"))
    known = replace(seen.knowledge, auxiliary=own, known=frozenset({"auxiliary", "indices"}))
    return replace(seen, knowledge=known), batch


def _settle(model: nn.Module, network: Network) -> None:
    """Give batch norms the statistics of other inputs, as training would; without, features fade layer by layer."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None  # the mean of all batches so far, here of one
    if norms:
        with torch.no_grad():
            model.train()(torch.rand((16, *network.shape)))


def case(seen: Transcript, batch: Batch, use: str) -> Case:
    """Run one attack, or `exposure`, and say how it ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return _ended(seen, batch, use)
    except SeepageError as refused:
        return Case("refused", words=str(refused))
    except Exception:  # what this script is for: nothing else may come out of the package
        return Case("raised", words=traceback.format_exc())


def _ended(seen: Transcript, batch: Batch, use: str) -> Case:
    if use == LOOK:
        return Case("score", words=exposure(seen).line)
    found = attack(seen, use, options=BRIEF.get(use, {}))
    if not len(found):
        return Case("nothing", words=" ".join(found.notes))
    if found.space == "feature":
        return Case("features")
    if not batch.inputs.is_floating_point():
        scores = score_text(found, batch)
        return Case("exact" if scores.exact == 1 else "score", words=f"ROUGE-1 {scores.rouge_1:.2f}")
    scores = score(found, batch)
    return Case("exact" if scores.exact == 1 else "score", scores.psnr)


def cases(name: str, setting: str, uses: Sequence[str]) -> Iterator[tuple[str, Case]]:
    """These cases of a network in a setting."""
    seen, batch = transcript(NETWORKS[name], setting)
    for use in uses:
        yield use, case(seen, batch, use)


def main(
    networks: Annotated[tuple[str, ...], f"all, or some of: {', '.join(NETWORKS)}"] = tuple(NETWORKS),
    *,
    attack: Annotated[tuple[str, ...], "run these alone; other cases of their rows stay"] = (),
) -> None:
    raised = 0
    for name, setting in itertools.product(networks, SETTINGS):
        before = time.process_time()
        found = dict(cases(name, setting, attack or [LOOK, *ATTACKS]))
        for use, one in found.items():
            if one.outcome == "raised":
                print(f"{name}, {setting}, {use}:\n{one.words}", file=sys.stderr)
                raised += 1
        keep_cases(name, setting, found, time.process_time() - before)
    if raised:
        raise SystemExit(f"{raised} cases ended in an exception")


def keep_cases(name: str, setting: str, found: Mapping[str, Case], cpu_s: float) -> None:
    """One row for a network and setting, with the cases of an older one that were not run again."""
    path = RESULTS / f"{STUDY}.jsonl"
    rows = read_file(path)
    older = [one for one in rows if (one.row, one.facts["setting"]) == (name, setting)]
    if older:
        write_lines(path, (one.line() for one in rows if one not in older))
    whole = {use: one for row in older for use, one in row.facts["cases"].items()}
    whole |= {use: _short(one) for use, one in found.items()}
    row: Row = {"setting": setting, "library": NETWORKS[name].library, "cpu_s": cpu_s}
    row |= {"cases": {use: whole[use] for use in (LOOK, *ATTACKS) if use in whole}}
    row |= {"versions": {package: version(package) for package in ("torchvision", "timm", "transformers")}}
    row |= {"raised": sum(one["outcome"] == "raised" for one in whole.values())}
    keep(STUDY, name, "raised", {**row, "command": "python experiments/architectures.py"})


def _short(one: Case) -> dict[str, Any]:
    last = one.words.strip().splitlines()[-1] if one.words else ""
    return {"outcome": one.outcome, "psnr": None if one.psnr is None else round(one.psnr, 1), "words": last}


if __name__ == "__main__":
    torch.set_num_threads(1)
    command(main)
