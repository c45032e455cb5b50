"""Media objects of W&B and of Trackio -> those of otel-bridge, with the files or values that they hold.

W&B's objects have written their file by the time they are logged; Trackio's hold what they were
given. Neither package is imported: objects are recognised by the names of their classes. Boxes and
masks of an image are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from otel_bridge.emit.media.values import (
    Audio,
    Html,
    Image,
    Markdown,
    Media,
    Table,
    Video,
)
from otel_bridge.errors import any_error_but_signals

_WANDB = "wandb."
_PICTURES = ("PIL", "matplotlib")
_FRAME = "DataFrame"
_TRACKIO = "TYPE"
"""Attribute with the type of each of Trackio's objects."""


def media_of(value: Any) -> Media | list[Media] | None:
    """Return what *value*, an object of W&B or Trackio or a list of them, shows.

    ``None`` when that is not known.

    ``None`` also for an empty list, a list with anything else in it, and an object that raises,
    e.g. one of another version of its package: the caller counts it.
    """
    try:
        if type(value) not in {list, tuple}:
            return _medium_of(value)
        if not value or _medium_of(value[0]) is None:
            return None
        media_or_none = [_medium_of(entry) for entry in value]
    except any_error_but_signals():  # objects of another version
        return None
    media = [medium for medium in media_or_none if medium is not None]
    if len(media) == len(media_or_none):
        return media
    return None


def _medium_of(value: Any) -> Media | None:
    """Return our medium of one object; ``None`` for an object of another kind.

    A file that the object names is read later, when the row is recorded. Raises what its attributes
    raise, e.g. `AttributeError` where a version of its package lacks one.
    """
    kind = cast("type[object]", type(value))
    if isinstance(value, Media):
        return value
    # By the bases: classes of pillow's plugins lie in other packages.
    if any(base.__module__.partition(".")[0] in _PICTURES for base in kind.__mro__):
        return Image(value)
    if kind.__name__ == _FRAME:
        return Table(dataframe=value)
    of_trackio: object = getattr(value, _TRACKIO, None)
    if isinstance(of_trackio, str):
        make = _OF_TRACKIO.get(of_trackio)
        return None if make is None else make(value)
    for base in kind.__mro__:
        if base.__module__.startswith(_WANDB) and base.__name__ in _OF_WANDB:
            return _OF_WANDB[base.__name__](value)
    return None


def table_of(columns: Iterable[Any], rows: Iterable[Iterable[Any]]) -> Table:
    """Return a table whose cells are media where they show any.

    Raises what a medium in a cell raises, see `_medium_of`.
    """
    return Table([*columns], [[_cell(cell) for cell in row] for row in rows])


def _cell(value: Any) -> object:
    """Return what a cell shows, else the cell itself. A row of a table may hold both."""
    medium = _medium_of(value)
    return value if medium is None else medium


def _trackio_table(table: Any) -> Table:
    """Return a table of all columns, with ``None`` in the cells that a row lacks.

    Trackio's rows are dicts, each of which may lack some of them.
    """
    names = dict.fromkeys(name for row in table.data for name in row)
    return table_of(names, [[row.get(name) for name in names] for row in table.data])


_OF_WANDB: Mapping[str, Callable[[Any], Media]] = {
    "Image": lambda value: Image(value._path, value._caption),
    "Audio": lambda value: Audio(value._path, caption=value._caption),
    "Video": lambda value: Video(value._path, value._caption),
    "Html": lambda value: Html(value.html),
    "Table": lambda value: table_of(value.columns, value.data),
}
"""Name of a class of W&B to what makes our object of one."""
_OF_TRACKIO: Mapping[str, Callable[[Any], Media]] = {
    "trackio.image": lambda value: Image(value._value, value.caption),
    "trackio.audio": lambda value: Audio(
        value._value, value._sample_rate, value.caption
    ),
    "trackio.video": lambda value: Video(value._value, value.caption, value._fps),
    "trackio.html": lambda value: Html(value._html),
    "trackio.markdown": lambda value: Markdown(value.text),
    "trackio.table": _trackio_table,
}
"""Type of an object of Trackio to what makes our object of one."""
