"""Values that programs give to ``wandb.log()``, without wandb: tables and histograms are recorded, media are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from otel_bridge.emit.encode.histogram import Histogram as CountedHistogram


class Table:
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


class Histogram(CountedHistogram):
    """A histogram of numbers, or of counts and edges.

    Args:
        sequence: Numbers.
        np_histogram: Counts and edges in place of them.
        num_bins: No effect: the buckets follow the numbers.
    """

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        del num_bins
        super().__init__(sequence, np_histogram=np_histogram)


class Media:
    """Stands for an image, video, audio or page, which is not recorded: each is counted when it is logged."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named


class Image(Media):
    """An image, which is counted and not recorded."""


class Video(Media):
    """A video, which is counted and not recorded."""


class Audio(Media):
    """Audio, which is counted and not recorded."""


class Html(Media):
    """A page, which is counted and not recorded."""


class Plotly(Media):
    """A chart, which is counted and not recorded."""


class Object3D(Media):
    """A 3D object, which is counted and not recorded."""


class Molecule(Media):
    """A molecule, which is counted and not recorded."""


class Config(dict[str, Any]):
    """The hyperparameters of a run; each change is recorded once the run has begun."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(given or {})
        object.__setattr__(self, "record", None)

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    __setattr__ = __setitem__

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
