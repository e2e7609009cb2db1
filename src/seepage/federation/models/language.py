"""Language models of `transformers` (extra `text`), by their architecture's name. Nothing is downloaded.

Inputs are `[n, tokens]` int64 token numbers, with -1 behind the end of a shorter sequence: the attention mask follows
from them.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seepage.base.nn import vocabulary_of
from seepage.base.registry import models
from seepage.errors import SeepageError, not_installed, unknown


class LanguageModel(nn.Module):
    """A network of `transformers` as a function of token numbers alone.

    Args:
        network: A causal language model or a classifier of sequences.
        padding: The token that stands behind the end of a sequence; it is masked.
        length: Most tokens that the network has positions for; None: no limit.
        every_token: Whether each token has logits, which then are `[n, vocabulary, tokens]`; else `[n, classes]`.
    """

    def __init__(self, network: nn.Module, padding: int, length: int | None, *, every_token: bool) -> None:
        super().__init__()
        self.network, self.padding, self.length, self.every_token = network, padding, length, every_token

    def forward(self, ids: Tensor) -> Tensor:
        there = ids >= 0
        found = self.network(ids.masked_fill(~there, self.padding), attention_mask=there.long())
        logits: Tensor = found.logits
        return logits.transpose(1, 2) if self.every_token else logits


@models.register("causal_lm:NAME")
def causal_lm(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
    """A causal language model of transformers, such as `causal_lm:gpt2`, of random weights or from a local `folder`."""
    settings = {"vocab_size": num_classes, **options}
    return _build("causal_lm", "AutoModelForCausalLM", name, input_shape, settings, every_token=True)


@models.register("text_classifier:NAME")
def text_classifier(name: str, input_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
    """A classifier of texts of transformers, such as `text_classifier:bert`, of random weights or from a `folder`."""
    settings = {"num_labels": num_classes, **options}
    return _build("text_classifier", "AutoModelForSequenceClassification", name, input_shape, settings)


def _build(
    kind: str,
    auto: str,
    name: str,
    input_shape: tuple[int, ...],
    settings: dict[str, Any],
    *,
    every_token: bool = False,
) -> nn.Module:
    """Make the network from its configuration, or read it from a folder on this machine."""
    use = f"{kind}:{name}"
    if len(input_shape) != 1:
        raise SeepageError(
            f"{use} takes sequences of tokens and the data have shape {input_shape}; use text, such as --data file.txt"
        )
    try:
        import transformers
    except ImportError as error:
        raise not_installed("transformers", "text") from error
    folder = settings.pop("folder", None)
    try:
        config = _config(transformers, use, name, folder, settings)
        _check_sizes(config, use, folder)
        if not every_token and config.pad_token_id is None:
            # The last token is the last that is no padding, so padding needs a number of its own.
            config.pad_token_id = config.vocab_size
            config.vocab_size += 1
        factory = getattr(transformers, auto)
        if folder is None:
            network = factory.from_config(config)
        else:
            network = factory.from_pretrained(
                folder, config=config, local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
    except (TypeError, ValueError, KeyError, OSError, AttributeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SeepageError(f"{use} refuses the options {settings} ({reason}); correct the recipe's [model]") from error
    length = getattr(config, "max_position_embeddings", None)
    if length is not None and input_shape[0] > length:
        raise SeepageError(
            f"the data's sequences have {input_shape[0]} tokens and {use} has positions for {length}; "
            f"lower data.tokens, or raise the model's own option for it"
        )
    made = LanguageModel(network, config.pad_token_id or 0, length, every_token=every_token)
    if vocabulary_of(made) is None:
        raise SeepageError(f"{use} does not begin with an embedding of tokens; use a text architecture such as gpt2")
    return made


LARGEST_SIZES = {"num_hidden_layers": 256, "num_attention_heads": 1024, "hidden_size": 2**15, "vocab_size": 2**21,
                 "intermediate_size": 2**18, "max_position_embeddings": 2**22}  # fmt: skip
"""Of a configuration, which may be anybody's: each is memory or time before any weight is read."""
LARGEST_NUMBER = 2**24
"""Of any other whole number in it."""
FEWEST_BYTES = 0.1
"""Bytes of a folder's files for each number of its network: weights that are shared or packed to bits take few."""


def _check_sizes(config: Any, use: str, folder: str | None) -> None:
    """Raise for a configuration whose network cannot be built within bounds, or that its folder's files cannot fill.

    Raises:
        SeepageError: Before anything is built.
    """
    found = {name: getattr(config, name, None) for name in LARGEST_SIZES}
    numbers = {name: value for name, value in config.to_dict().items() if name not in found}
    for name, value in {**numbers, **found}.items():
        most = LARGEST_SIZES.get(name, 256 if "layer" in name else LARGEST_NUMBER)
        if isinstance(value, int) and value > most:
            raise SeepageError(f"{use} is configured with {name} = {value:,}, and {most:,} is the most; correct it")
    if folder is None:
        return
    layers, width, words = (found[name] or 0 for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    files = [path for path in Path(folder).iterdir() if path.suffix in (".safetensors", ".bin")]
    held = sum(path.stat().st_size for path in files)
    least = FEWEST_BYTES * width * (words + 4 * layers * width)  # query, key, value and output at the least
    if files and isinstance(least, float) and least > held:
        raise SeepageError(
            f"the network of {folder} has {int(least / FEWEST_BYTES):,} numbers by its config.json and its files "
            f"{held:,} bytes; copy the folder again"
        )


def _config(transformers: Any, use: str, name: str, folder: str | None, settings: dict[str, Any]) -> Any:
    """The configuration of an architecture by its name, or of a folder's `config.json`, with options set."""
    if folder is not None:
        if not (Path(folder) / "config.json").is_file():
            raise SeepageError(f"{folder} has no config.json; name a folder that transformers' save_pretrained wrote")
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if name not in transformers.CONFIG_MAPPING:
        raise unknown("architecture of transformers", name, list(transformers.CONFIG_MAPPING.keys()))
    fields = transformers.CONFIG_MAPPING[name]()
    wrong = [key for key in settings if not hasattr(fields, key)]
    if wrong:
        raise SeepageError(f"{use} has no option {wrong[0]!r}; see the configuration of {name} in transformers")
    return transformers.AutoConfig.for_model(name, **settings)
