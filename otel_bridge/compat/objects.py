"""Values that programs give to ``wandb.log()``, and the config of a run, without wandb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_bridge.capture.wandb.recording import AttributeDict
from otel_bridge.emit.encode.histogram import Histogram
from otel_bridge.emit.media.values import Audio, Html, Image, Video


class WandbTable:
    """Rows under named columns; those of prompts and responses become rollouts.

    Args:
        columns: Names of the columns.
        data: Rows.
        rows: Other name of *data*.
        dataframe: A pandas ``DataFrame`` in place of both.
        others: Arguments of W&B that change nothing here.
    """

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Iterable[Iterable[Any]] | None = None,
        rows: Iterable[Iterable[Any]] | None = None,
        dataframe: Any = None,
        **others: Any,
    ) -> None:
        del others
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.values.tolist()
        self.columns: list[Any] = list(columns or ("Input", "Output", "Expected"))
        self.data: list[list[Any]] = [list(row) for row in data or rows or ()]

    def add_data(self, *cells: Any) -> None:
        """Append one row.

        Raises:
            ValueError: The row has not as many cells as there are columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"add_data(): {len(cells)} cells, expected {len(self.columns)}: {self.columns}")
        self.data.append(list(cells))

    def add_row(self, *row: Any) -> None:
        """Append one row, as `add_data`."""
        self.add_data(*row)

    def add_column(self, name: str, data: Iterable[Any]) -> None:
        """Append one column."""
        cells = list(data)
        rows = self.data or [[] for _ in cells]
        self.data = [[*row, cell] for row, cell in zip(rows, cells, strict=True)]
        self.columns.append(name)

    def get_column(self, name: str) -> list[Any]:
        """Return the cells of one column."""
        return [row[self.columns.index(name)] for row in self.data]

    def iterrows(self) -> Iterable[tuple[int, list[Any]]]:
        """Return the rows with their numbers."""
        return enumerate(self.data)


class WandbHistogram(Histogram):
    """A histogram of numbers, or of counts and edges.

    Args:
        sequence: Numbers.
        np_histogram: Counts and edges in place of them.
        num_bins: No effect: the buckets follow the numbers.
    """

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        del num_bins
        super().__init__(sequence, np_histogram=np_histogram)


class WandbImage(Image):
    """An image; *mode* and the arguments for masks and boxes have no effect."""

    __slots__ = ()

    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **others: Any) -> None:
        del mode, others
        super().__init__(data_or_path, caption)


class WandbAudio(Audio):
    """Sound."""

    __slots__ = ()

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(data_or_path, sample_rate, caption)


class WandbVideo(Video):
    """A film; *format* has no effect."""

    __slots__ = ()

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002
    ) -> None:
        del format
        super().__init__(data_or_path, caption, fps)


class WandbHtml(Html):
    """A page: a text, an open file, or the path of a file that ends with ``.html``."""

    __slots__ = ()

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        del inject
        text: Any = data.read() if hasattr(data, "read") else data
        is_path = isinstance(text, Path) or (not data_is_not_path and str(text).endswith((".html", ".htm")))
        super().__init__(Path(text) if is_path else text)


class WandbChart:
    """Stands for a chart, a molecule or a 3D object: counted when it is logged, and not recorded."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named


class WandbConfig(AttributeDict):
    """The hyperparameters of a run; each change is recorded once the run has begun."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(given or {})
        object.__setattr__(self, "record", None)

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *given: Any, allow_val_change: Any = None, **named: Any) -> None:
        """Set and record entries, given as a mapping or a namespace."""
        del allow_val_change
        first: Any = given[0] if given else {}
        new: dict[str, Any] = {**(first if isinstance(first, Mapping) else vars(first)), **named}
        super().update(new)
        if self.record is not None:
            self.record(new)

    def setdefaults(self, given: Mapping[str, Any]) -> None:
        """Set and record the entries that are not set."""
        self.update({key: value for key, value in given.items() if key not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return the entries."""
        return dict(self)
