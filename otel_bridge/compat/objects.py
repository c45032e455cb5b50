"""Values that programs give to ``wandb.log()``, and the metrics that they define, without wandb."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from otel_bridge.compat.errors import Error
from otel_bridge.emit.encode.histogram import Histogram
from otel_bridge.emit.media.pictures import image_bytes
from otel_bridge.emit.media.values import Audio, Html, Image, Video
from otel_bridge.metric_summaries import NO_SUMMARY, SUMMARY_KINDS

_MAX_IMAGE_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class WandbMetric:
    """Describes a metric that ``define_metric()`` has defined; another definition may name it as its step metric."""

    name: str
    step_metric: str | None = None
    step_sync: bool | None = None
    hidden: bool | None = None
    summary: tuple[str, ...] | None = None
    overwrite: bool | None = None


def wandb_metric(  # noqa: PLR0917  # the order of W&B's arguments
    name: Any,
    step_metric: Any = None,
    step_sync: Any = None,
    hidden: Any = None,
    summary: Any = None,
    overwrite: Any = None,
) -> WandbMetric:
    """Return the metric that ``define_metric()`` defines, by W&B's rules for its arguments.

    Raises:
        Error: W&B refuses an argument.
    """
    if not name:
        raise Error("define_metric() requires non-empty name argument")
    if isinstance(step_metric, WandbMetric):
        step_metric = step_metric.name
    texts = {"name": name, "step_metric": step_metric, "summary": summary}
    flags = {"step_sync": step_sync, "hidden": hidden, "overwrite": overwrite}
    for given, kind in ((texts, str), (flags, bool)):
        for argument, value in given.items():
            if value is not None and not isinstance(value, kind):
                raise Error(f"Unhandled define_metric() arg: {argument} type: {type(value).__name__}")
    if "*" in name[:-1]:
        raise Error(f"Unhandled define_metric() arg: name (glob suffixes only): {name}")
    kinds = tuple(str(summary).lower().split(",")) if summary else None
    if wrong := [kind for kind in kinds or () if kind not in {*SUMMARY_KINDS, NO_SUMMARY, "copy"}]:
        raise Error(f"Unhandled define_metric() arg: summary op: {wrong[0]}")
    sync = step_metric is not None if step_sync is None else step_sync
    return WandbMetric(name, step_metric, sync, hidden, kinds, overwrite)


class WandbTable:
    """Holds rows under named columns; those of prompts and responses become rollouts.

    Args:
        columns: Names of the columns.
        data: Rows: a list of lists, an array, or a pandas ``DataFrame``.
        rows: Other name of *data*.
        dataframe: A pandas ``DataFrame`` in place of both.
        others: Arguments of W&B that change nothing here.

    Raises:
        ValueError: A row has not as many cells as there are columns.
    """

    log_mode = "IMMUTABLE"

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Iterable[Iterable[Any]] | None = None,
        dataframe: Any = None,
        **others: Any,
    ) -> None:
        del others
        given: Any = next((one for one in (dataframe, data, rows) if one is not None), ())
        if hasattr(given, "columns") and hasattr(given, "values"):  # a DataFrame
            columns, given = list(given.columns), given.values.tolist()
        elif hasattr(given, "tolist"):
            given = given.tolist()
        self.columns: list[Any] = list(columns or ("Input", "Output", "Expected"))
        self.data: list[list[Any]] = []
        for row in given:
            self.add_data(*row)

    def add_data(self, *cells: Any) -> None:
        """Append one row.

        Raises:
            ValueError: The row has not as many cells as there are columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"This table expects {len(self.columns)} columns: {self.columns}, found {len(cells)}")
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

    def add_computed_columns(self, fn: Callable[[int, dict[str, Any]], Mapping[str, Any]]) -> None:
        """Append the columns that *fn* returns for each row, given its number and its cells by column."""
        new = [fn(number, dict(zip(self.columns, row, strict=True))) for number, row in self.iterrows()]
        for name in dict.fromkeys(name for one in new for name in one):
            self.add_column(name, [one.get(name) for one in new])

    def cast(self, col_name: str, dtype: Any, optional: bool = False) -> None:
        """Do nothing: a cell keeps its own type."""
        del self, col_name, dtype, optional

    def get_index(self) -> list[int]:
        """Return the numbers of the rows."""
        return list(range(len(self.data)))

    def get_dataframe(self) -> Any:
        """Return the table as a pandas ``DataFrame``."""
        frames: Any = import_module("pandas")  # only for programs that ask
        return frames.DataFrame(self.data, columns=self.columns)

    def iterrows(self) -> Iterable[tuple[int, list[Any]]]:
        """Return the rows with their numbers."""
        return enumerate(self.data)


class WandbHistogram(Histogram):
    """Holds a histogram of numbers, or of counts and edges.

    Args:
        sequence: Numbers.
        np_histogram: Counts and edges in place of them.
        num_bins: Number of the bins that the program reads; the recorded buckets follow the numbers.
    """

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        numbers = sequence if sequence is None or hasattr(sequence, "__len__") else list(sequence)
        super().__init__(numbers, np_histogram=np_histogram)
        object.__setattr__(self, "_num_bins", num_bins)

    @property
    def bins(self) -> list[float]:
        """Return the edges of the bins."""
        return self._counted()[1]

    @property
    def histogram(self) -> list[float]:
        """Return the numbers in each bin."""
        return self._counted()[0]

    def _counted(self) -> tuple[list[float], list[float]]:
        if self.np_histogram is not None:
            counts, edges = self.np_histogram
            return list(counts), list(edges)  # type: ignore[arg-type]  # numbers, by W&B's contract
        numbers = sorted(map(float, _flat(self.values)))
        size: int = self.__dict__["_num_bins"]
        low, high = (numbers[0], numbers[-1]) if numbers else (0.0, 1.0)
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges = [low + (high - low) * place / size for place in range(size)] + [high]
        below = [bisect_left(numbers, edge) for edge in edges[:-1]] + [len(numbers)]
        return [float(after - before) for before, after in pairwise(below)], edges


def _flat(values: Any) -> Iterable[Any]:
    """Return the numbers of an array of any shape, or of a list."""
    return values.ravel().tolist() if hasattr(values, "ravel") else values or ()


class WandbImage(Image):
    """Holds an image; *mode* and the arguments for masks and boxes have no effect."""

    __slots__ = ()

    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **others: Any) -> None:
        del mode, others
        super().__init__(data_or_path, caption)

    @property
    def image(self) -> Any:
        """Return the image as one of PIL's."""
        import PIL.Image  # noqa: PLC0415  # only for programs that ask

        return PIL.Image.open(io.BytesIO(image_bytes(self.value, _MAX_IMAGE_BYTES)[1]))


class WandbAudio(Audio):
    """Holds a sound."""

    __slots__ = ()

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        super().__init__(data_or_path, sample_rate, caption)


class WandbVideo(Video):
    """Holds a film; *format* has no effect."""

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
    """Holds a page: a text, an open file, or the path of a file that ends with ``.html``."""

    __slots__ = ()

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        del inject
        text: Any = data.read() if hasattr(data, "read") else data
        is_path = isinstance(text, Path) or (not data_is_not_path and str(text).endswith((".html", ".htm")))
        super().__init__(Path(text) if is_path else text)


class WandbChart:
    """Replaces a chart, a molecule or a 3D object: counted when it is logged, and not recorded."""

    def __init__(self, *given: Any, **named: Any) -> None:
        del given, named
