"""Small transformers for text: a decoder that predicts next tokens, and an encoder that classifies sequences.

Inputs are `[n, tokens]` int64 token numbers, with -1 behind the end of a shorter sequence. For networks of the usual
sizes and codes see `causal_lm:NAME` and `text_classifier:NAME`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage.base.registry import models
from seepage.errors import SeepageError

START_STD = 0.02
"""Standard deviation of the fresh embeddings and weights (Radford et al. 2019)."""


class TransformerBlock(nn.Module):
    """Attention and two fully connected layers, each behind a layer norm and added to the tokens.

    Args:
        width: Numbers of a token.
        heads: Heads of attention.
        causal: Whether a token sees only those before it.
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        """`[n, tokens, width]` to the same; `there` `[n, tokens]` says where there is a token."""
        x = self.norm1(tokens)
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (layer(x).reshape(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [n, heads, tokens, tokens]
        # A token sees itself even where there is none, so that no row of the softmax is empty.
        seen = there[:, None, None, :] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        if self.causal:
            seen = seen & torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        tokens = tokens + self.out(mixed.transpose(1, 2).reshape_as(x))
        grown: Tensor = self.down(F.gelu(self.up(self.norm2(tokens))))
        return tokens + grown


class TextTransformer(nn.Module):
    """A transformer over token numbers.

    Args:
        length: Most tokens of a sequence.
        vocabulary: Number of tokens there are.
        classes: Classes of a sequence; None: the next token is predicted, with the embedding as last layer.
        width: Numbers of a token.
        depth: Blocks.
        heads: Heads of attention in each.
    """

    def __init__(
        self, length: int, vocabulary: int, classes: int | None, *, width: int, depth: int, heads: int
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, causal=classes is None) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = None if classes is None else nn.Linear(width, classes)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=START_STD)

    def forward(self, ids: Tensor) -> Tensor:
        """`[n, vocabulary, tokens]` logits of each token's next one, or `[n, classes]`."""
        there = ids >= 0
        tokens = self.token(ids.clamp(min=0)) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            tokens = block(tokens, there)
        tokens = self.norm(tokens)
        if self.head is None:
            scores: Tensor = tokens @ self.token.weight.T
            return scores.transpose(1, 2)
        weights = there.to(tokens) / there.sum(1, keepdim=True).clamp(min=1)
        logits: Tensor = self.head((weights[..., None] * tokens).sum(1))
        return logits


@models.register("gpt")
def gpt(
    input_shape: tuple[int, ...], num_classes: int, *, width: int = 64, depth: int = 2, heads: int = 4
) -> TextTransformer:
    """A small decoder that predicts each next token, like GPT-2: layer norms in front, embeddings tied.

    Args:
        input_shape: `[tokens]`.
        num_classes: Number of tokens there are: the data's task is `next_token`.
        width: Numbers of a token.
        depth: Blocks.
        heads: Heads of attention; they divide the width.
    """
    _check(input_shape, width, heads)
    return TextTransformer(input_shape[0], num_classes, None, width=width, depth=depth, heads=heads)


@models.register("text_encoder")
def text_encoder(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    vocabulary: int = 4096,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
) -> TextTransformer:
    """A small encoder that classifies sequences by the mean of their tokens.

    Args:
        input_shape: `[tokens]`.
        num_classes: Outputs.
        vocabulary: Number of tokens there are, at least the data's.
        width: Numbers of a token.
        depth: Blocks.
        heads: Heads of attention; they divide the width.
    """
    _check(input_shape, width, heads)
    return TextTransformer(input_shape[0], vocabulary, num_classes, width=width, depth=depth, heads=heads)


def _check(input_shape: tuple[int, ...], width: int, heads: int) -> None:
    if len(input_shape) != 1 or width % heads:
        raise SeepageError(
            f"a text transformer takes sequences [tokens], and heads that divide the width; got inputs {input_shape}, "
            f"width {width} and heads {heads}; use text as data (--data python_reference) and correct the recipe"
        )
