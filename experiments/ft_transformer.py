"""A network on rows of a table after FT-Transformer (Gorishniy et al., NeurIPS 2021): a token for each column."""

import torch
from torch import Tensor, nn


class FTTransformer(nn.Module):
    """A token for each column, `x_j W_j + b_j` (of words a row of a table), behind a class token; its output is read.

    Args:
        widths: Places of each column, which add up to those of a row.
        classes: Outputs.
        size: Numbers of a token.
        depth: Layers.
        heads: Of the attention.
    """

    def __init__(self, widths: tuple[int, ...], classes: int, *, size: int = 32, depth: int = 2, heads: int = 4):
        super().__init__()
        self.widths = widths
        self.tokens = nn.ModuleList(nn.Linear(width, size) for width in widths)
        self.first = nn.Parameter(torch.randn(size) / size**0.5)
        layer = nn.TransformerEncoderLayer(size, heads, 2 * size, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, classes)

    def forward(self, rows: Tensor) -> Tensor:
        parts = rows.split(self.widths, 1)
        columns = [token(part) for token, part in zip(self.tokens, parts, strict=True)]
        tokens = torch.stack([self.first.expand(len(rows), -1), *columns], 1)  # [n, 1 + columns, size]
        return self.head(self.norm(self.encoder(tokens)[:, 0]))
