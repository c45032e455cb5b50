"""Media as a program logs them: ``run.log({"samples": Image(pixels, caption="step 3")})``.

Imports nothing heavy.

The objects hold what they are given and read it when they are logged. They raise nothing; what
cannot be encoded is dropped then, counted and printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast


class Media:
    """Marks everything that `Run.log` takes beside numbers.

    Attributes:
        kind: Kind of the medium, e.g. ``image``.
        value: What was given.
        caption: Text shown beside it.
    """

    __slots__ = ("caption", "value")
    kind = ""

    def __init__(self, value: object, caption: object = None) -> None:
        self.value = value
        self.caption = "" if caption is None else caption

    def __repr__(self) -> str:
        """Return kind and type, without the content."""
        return f"<{type(self).__name__} of {type(self.value).__name__}>"


class Image(Media):
    """Holds an image to be logged.

    Args:
        value: Pixels (numpy or torch; height by width, 1 to 4 channels last, for torch first;
            uint8, or floats from 0 to 1), a PIL image, a matplotlib figure, the bytes of a PNG,
            JPEG, GIF or WebP file, or the path of such a file.
        caption: Text shown beside it.
    """

    __slots__ = ()
    kind = "image"


class Text(Media):
    """Holds plain text to be logged.

    Args:
        value: The text.
        caption: Text shown beside it.
    """

    __slots__ = ()
    kind = "text"


class Markdown(Media):
    """Holds text in Markdown to be logged.

    Args:
        value: The text.
        caption: Text shown beside it.
    """

    __slots__ = ()
    kind = "markdown"


class Html(Media):
    """Holds HTML to be logged.

    Args:
        value: The text, or the `pathlib.Path` of a file.
        caption: Text shown beside it.
    """

    __slots__ = ()
    kind = "html"


class Audio(Media):
    """Holds sound to be logged.

    Args:
        value: Samples (numpy or torch; one number for each, or one row for each with a number for
            each channel; 16 bit, or floats from -1 to 1), the bytes of a WAV, MP3, Ogg or FLAC
            file, or the path of such a file.
        sample_rate: Samples in a second; needed for samples.
        caption: Text shown beside it.
    """

    __slots__ = ("sample_rate",)
    kind = "audio"

    def __init__(
        self, value: object, sample_rate: object = None, caption: object = None
    ) -> None:
        super().__init__(value, caption)
        self.sample_rate = sample_rate


class Video(Media):
    """Holds a film to be logged.

    Args:
        value: The bytes of an MP4, WebM, Ogg or GIF file, the path of such a file, or pixels (numpy
            or torch; frames by height by width with 1, 3 or 4 channels last, or before height),
            which pillow must be there to encode.
        caption: Text shown beside it.
        fps: Frames in a second; for pixels.
    """

    __slots__ = ("fps",)
    kind = "video"

    def __init__(
        self, value: object, caption: object = None, fps: object = None
    ) -> None:
        super().__init__(value, caption)
        self.fps = fps


class Table(Media):
    """Holds a table to be logged.

    A cell is a number, a text, ``None``, or an `Image`, `Audio` or `Video`; anything else becomes
    text.

    Args:
        columns: Names of the columns; ``None`` for those of *dataframe*, or for the names in the
            first row.
        rows: Rows, each a sequence of cells or a mapping from column to cell.
        caption: Text shown beside it.
        data: Other name of *rows*.
        dataframe: A pandas data frame, in place of columns and rows.
    """

    __slots__ = ("columns",)
    kind = "table"

    def __init__(
        self,
        columns: Iterable[object] | None = None,
        rows: Iterable[object] | None = None,
        caption: object = None,
        *,
        data: Iterable[object] | None = None,
        dataframe: Any = None,
    ) -> None:
        value: object = []
        for candidate in (data, rows, dataframe):
            if candidate is not None:
                value = candidate
        super().__init__(value, caption)
        self.columns: object = columns

    def add_data(self, *row: object) -> None:
        """Add one row, as in W&B.

        Of a table that was given something else than a list of rows, nothing changes.

        Args:
            row: The cells, in the order of the columns.
        """
        if isinstance(self.value, list):
            self.value.append(row)  # pyright: ignore[reportUnknownMemberType]  # rows of anything


def media_in(value: object) -> Sequence[object] | None:
    """Return the media that *value* is or holds as a list, ``None`` when it is anything else.

    The first entry decides; the others are checked when they are encoded, which counts those that
    are not media, and those beyond the limit of a step.
    """
    if isinstance(value, Media):
        return (value,)
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Media):
        # A copy: a queued row is encoded later, when the program may have changed its list.
        return tuple(cast("Sequence[object]", value))
    return None
