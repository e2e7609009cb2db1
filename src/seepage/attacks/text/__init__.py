"""Text of language models: the tokens, their order and their labels, from the spans of gradients."""

from seepage.attacks.text.token_sequences import TokenGradients, TokenSequences

__all__ = ["TokenGradients", "TokenSequences"]
