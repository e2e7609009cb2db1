"""How every page is made of its template: escaped, and with no name that is not given."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from seepage.base.words import for_page

if TYPE_CHECKING:
    import jinja2


@cache  # the environment keeps compiled templates, and compiling one takes longer than filling it
def page_environment(*rooms: str, filters: tuple[Callable[..., str], ...] = ()) -> "jinja2.Environment":
    """An environment in which whatever is put into a page is escaped; a stranger's words are words there.

    Args:
        rooms: Packages below `seepage` that hold templates, those of the first before those of the next.
        filters: Functions that a template may name.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("seepage", room) for room in rooms]),
        autoescape=True,
        finalize=for_page,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update({filter_.__name__: filter_ for filter_ in filters})
    return environment
