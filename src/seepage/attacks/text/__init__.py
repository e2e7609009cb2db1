"""Text of language models: the tokens, their order and their labels, from spans of gradients and from moved rows."""

from seepage.attacks.text.token_sequences import TokenSequences
from seepage.attacks.text.token_set import TokenSet

__all__ = ["TokenSequences", "TokenSet"]
