"""Rows -> MLflow metrics, in batches as large as MLflow accepts.

MLflow's key of a metric is (key, timestamp, step, value), so that a redelivered row changes
nothing. Times become milliseconds. NaN stays, and MLflow itself turns an infinity into ±1.797e308.
A distribution becomes ``<key>/{mean,min,max,p50,p95}``. A row without a step gets a running count.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from otel_bridge.errors import ExporterError, PermanentError
from otel_bridge.exporter import RunningSteps, WriterMemory
from otel_bridge.otlp.json_text import number_or_name
from otel_bridge.otlp.request_size import RequestSize, refused_items
from otel_bridge.records import Distribution, Json, Row, Value
from otel_bridge_mlflow.connection import LOG_BATCH, Connection
from otel_bridge_mlflow.errors import Refused, as_bridge_errors, is_held
from otel_bridge_mlflow.keys import Names

# MLflow's column is BIGINT, and one step beyond it would make the whole batch fail.
_STEP_MIN = -(1 << 63)
_STEP_MAX = (1 << 63) - 1


class MetricValue(NamedTuple):
    """Holds one metric: index of its row in the call, name, value, step, and time in Unix milliseconds."""

    row: int
    key: str
    value: float
    timestamp_ms: int
    step: int

    def as_json(self) -> dict[str, Json]:
        """Return the metric as a request has it."""
        return {
            "key": self.key,
            # In protobuf's JSON a bare NaN becomes 0 (measured); the names are correct.
            "value": number_or_name(self.value),
            "timestamp": self.timestamp_ms,
            "step": self.step,
        }


class MetricWriter:
    """Writes rows to one MLflow run.

    Args:
        connection: The store.
        run_id: MLflow's run id.
        names: Names of the keys.
        memory: Memory that keeps running counts and the size of a batch.
    """

    def __init__(
        self, connection: Connection, run_id: str, names: Names, memory: WriterMemory
    ) -> None:
        self._connection = connection
        self._run_id = run_id
        self._names = names
        self._steps = RunningSteps(memory)
        self._all_series = connection.settings.all_series
        self._size = RequestSize(
            connection.rules.metrics, memory=memory, key="request_size/metrics"
        )
        self._send: Callable[[Sequence[MetricValue]], None] = self._log
        if connection.settings.remote:
            self._send = self._post

    def write(self, rows: Sequence[Row]) -> None:
        """Write *rows*.

        The good values of a row with a bad value are written before the row is refused.

        Raises:
            PermanentError: A row holds a value or step that MLflow does not accept.
            RetryableError: As `Connection.request`.
            BlockedError: As `Connection.request`.
        """
        points, reasons = self._encoded(rows)
        first_bad = min(reasons, default=len(rows))
        # Also the good values of the first bad row: only its bad ones are lost.
        points = [point for point in points if point.row <= first_bad]
        start = 0
        while start < len(points):
            batch = points[start : start + self._size.now]
            start += len(batch)
            position = rows[batch[0].row].position
            try:
                refused = self._first_refused(batch)
                if refused is not None:
                    bad, _ = refused
                    position = rows[bad.row].position
                    # The bridge goes on behind this row, so that the rest of it is written now.
                    rest = points[points.index(bad) + 1 :]
                    rest = [point for point in rest if point.row == bad.row]
                    if rest:
                        list(refused_items(rest, self._write_batch, Refused))
            except ExporterError as exc:
                exc.position = position
                raise
            if refused is not None:
                raise PermanentError(refused[1], position=position)
        if reasons:
            row = rows[first_bad]
            reason = "; ".join(reasons[first_bad])
            raise PermanentError(f"row {row.id}: {reason}", position=row.position)

    def name_of(self, key: str) -> str:
        """Return the name of *key* in MLflow; the key itself as long as it has none."""
        return self._names.known(key) or key

    def _first_refused(
        self, batch: Sequence[MetricValue]
    ) -> tuple[MetricValue, str] | None:
        """Write *batch* up to the first point that MLflow refuses; return that point and why.

        ``None`` when all are written. Other errors than a refusal pass.
        """
        for point, exc in refused_items(batch, self._write_batch, Refused):
            # Held: this very point is stored, and MLflow up to 3.15 refuses a NaN that comes again.
            if not is_held(exc):
                return point, str(exc)
        return None

    def _write_batch(self, batch: Sequence[MetricValue]) -> None:
        with self._size.request(len(batch)):
            self._send(batch)

    def _log(self, batch: Sequence[MetricValue]) -> None:
        """Write *batch* to a database; raises as `as_bridge_errors`."""
        make = self._connection.entities.Metric
        metrics: list[Any] = []
        for _, key, value, timestamp_ms, step in batch:
            metrics.append(make(key, value, timestamp_ms, step))
        with as_bridge_errors(
            f"logging {len(batch)} metrics to {self._connection.shown}"
        ):
            self._connection.client.log_batch(
                self._run_id, metrics=metrics, synchronous=True
            )

    def _post(self, batch: Sequence[MetricValue]) -> None:
        """Write *batch* to a server; raises as `Connection.request`.

        Not by MLflow's client, whose JSON turns NaN into 0.
        """
        metrics = [point.as_json() for point in batch]
        self._connection.request(
            "POST", LOG_BATCH, json={"run_id": self._run_id, "metrics": metrics}
        )

    def _encoded(
        self, rows: Sequence[Row]
    ) -> tuple[list[MetricValue], dict[int, list[str]]]:
        """Return the points of *rows*, and why values of them are refused, by index of the row.

        A row whose step does not fit has no points; of other rows only the bad values are missing.
        """
        points: list[MetricValue] = []
        refused: dict[int, list[str]] = {}
        # Before anything is sent: after a kill in between, a row must not get another step.
        running_steps = self._steps.of([row for row in rows if row.step is None])
        for index, row in enumerate(rows):
            if row.step is not None and not _STEP_MIN <= row.step <= _STEP_MAX:
                refused[index] = [f"step {row.step} does not fit into 64 bits"]
                continue
            timestamp_ms = max(row.time_unix_ns // 1_000_000, 0)
            step = row.step
            if step is None:
                step = running_steps[row.position]
            numbers: dict[str, float] = {}
            distributions: dict[str, Distribution] = {}
            for key, value in self._values_of(row).items():
                if isinstance(value, Distribution):
                    distributions[key] = value
                    continue
                number = _number(value)
                if number is None:
                    reason = f"{key!r} is {type(value).__name__}, not a number a double holds"
                    refused.setdefault(index, []).append(reason)
                else:
                    numbers[key] = number
            values_by_name = self._by_name(numbers, distributions)
            for name, number in values_by_name.items():
                points.append(MetricValue(index, name, number, timestamp_ms, step))
        # Before anything is sent: after a kill in between, a key must not get another name.
        self._names.store()
        return points, refused

    def _values_of(self, row: Row) -> Mapping[str, Value]:
        """Return the values of *row* that become points: without the numbers of rollouts, unless they are wanted."""
        if self._all_series:
            return row.values
        return row.charted_values

    def _by_name(
        self, numbers: Mapping[str, float], distributions: Mapping[str, Distribution]
    ) -> dict[str, float]:
        """Return the numbers of a row, and the parts of its distributions, by their names in MLflow.

        Of a distribution without counts nothing is known, so that it has no part.
        """
        # All plain keys first, so that the part of a distribution does not take the name of one.
        self._names.add_keys(numbers)
        values_by_name: dict[str, float] = {}
        for key, number in numbers.items():
            values_by_name[self._names.name(key)] = number
        for key, distribution in distributions.items():
            for part, number in parts(distribution):
                values_by_name[self._names.part(key, part)] = number
        return values_by_name


def parts(distribution: Distribution) -> Iterator[tuple[str, float]]:
    """Yield the numbers that represent a distribution; unknown numbers are left out."""
    numbers = {
        "mean": distribution.mean,
        "min": distribution.min,
        "max": distribution.max,
        "p50": distribution.quantile(0.5),
        "p95": distribution.quantile(0.95),
    }
    for part, number in numbers.items():
        # NaN here means unknown, for instance of a distribution without a minimum.
        if not math.isnan(number):
            yield part, number


def stored_number(value: float) -> float:
    """Return *value* as MLflow returns it once it is stored: an infinity as the largest double."""
    number = float(value)
    if math.isinf(number):
        return math.copysign(sys.float_info.max, number)
    return number


def _number(value: object) -> float | None:
    """Return *value* as a double, ``None`` when it is not a number or beyond a double."""
    if isinstance(value, float):
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            # An integer beyond 1.8e308: the value is refused, the others of its row are written.
            return None
    return None
