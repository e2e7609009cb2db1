"""Untrusted text in Markdown: it stays text, whatever a builder of pages makes of the rest."""

from seepage.errors import printable

_SIGNS = str.maketrans({sign: f"&#{ord(sign)};" for sign in "<>&`[]{}\\"})
"""Signs that make tags, entities, code, links, pictures, attributes (`attr_list`) or another sign's escape."""

LONGEST = 300
"""Letters that are shown."""


def as_words(text: str) -> str:
    r"""A text that shows as it is: every sign that could begin something is written as a number.

    Line ends and control characters are spelled out, so that no block begins, and what is beyond `LONGEST` is cut.

    >>> as_words("<script>a()</script> [x](y) `z`")
    '&#60;script&#62;a()&#60;/script&#62; &#91;x&#93;(y) &#96;z&#96;'
    >>> as_words("faces_yale_32.npz"), as_words("a" + chr(10) + "# b")
    ('faces_yale_32.npz', 'a&#92;n# b')
    """
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return printable(cut).translate(_SIGNS)


def as_code(text: str) -> str:
    r"""A text as code; as plain words where it holds signs that could end the code.

    >>> as_code("seepage reproduce cafe/table-2"), as_code("a`<b>")
    ('`seepage reproduce cafe/table-2`', 'a&#96;&#60;b&#62;')
    """
    words = as_words(text)
    plain = words == text and text.strip() == text != ""
    return f"`{words}`" if plain else words
