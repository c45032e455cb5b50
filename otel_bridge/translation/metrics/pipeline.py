"""Metrics of frames -> rows: native ones in order, those of third-party producers, those of engines. Pure.

The rows of all ranks of a role become one. What cannot be used is counted and never raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from otel_bridge.records import Record
from otel_bridge.translation.decode.rows import ScopedMetric
from otel_bridge.translation.engines.pipeline import EnginePipeline
from otel_bridge.translation.engines.points import engine_of, is_of_engine
from otel_bridge.translation.frame_decoder import (
    DecodedFrame,
    ResourceMetricsInput,
)
from otel_bridge.translation.metrics.assembler import RowAssembler
from otel_bridge.translation.metrics.third_party_points import (
    ReceivedMetrics,
    ThirdPartyPoints,
)
from otel_bridge.translation.processes.lifecycle import RunLifecycle
from otel_bridge.translation.processes.process import Process
from otel_bridge.translation.ranks import RankMerge
from otel_bridge.translation.run_context import RunContext


class MetricsPipeline:
    """Makes the rows of one run.

    Args:
        run: The run.
        lifecycle: Processes of the run.
        points: Rows of third-party producers.

    Attributes:
        rows: Native rows, joined and in order.
        ranks: Rows of several ranks, merged into one.
        engines: Rows of the run's inference engines.
    """

    def __init__(
        self, run: RunContext, lifecycle: RunLifecycle, points: ThirdPartyPoints
    ) -> None:
        self._receive_clock = run.receive_clock
        self._lifecycle = lifecycle
        self._points = points
        self.rows = RowAssembler(run)
        self.ranks = RankMerge(run)
        self.engines = EnginePipeline(run)

    def take(
        self, frame: DecodedFrame, inputs: Sequence[ResourceMetricsInput]
    ) -> list[Record]:
        """Return the rows that the metrics of one frame complete, and records about engines.

        Measurements of the machine (`Producer.system`) neither open nor keep alive the process that
        they accompany.
        """
        if frame.from_receiver:
            self._receive_clock.receive(frame.now_unix_ns)
        records: list[Record] = []
        for batch in inputs:
            if batch.context.producer.system:
                continue  # not data of the process itself
            self._lifecycle.on_frame(batch.context.process, frame.now_unix_ns)
            records += self._native_rows(frame, batch)
        return [*records, *self._third_party_rows(frame, inputs)]

    def tick(self, now_unix_ns: int) -> list[Record]:
        """Return the rows that are due.

        Rows of engines are due only while the run has not ended: an engine outlives the jobs that
        use it.
        """
        # Rows first: what they release may pass a step of the ranks, which is checked next.
        records = self.ranks.merge(self.rows.tick(now_unix_ns), now_unix_ns)
        records += self.ranks.tick(now_unix_ns)
        if self.engines.active and not self._lifecycle.ended:
            records += self.engines.tick(now_unix_ns)
        return records

    def close(self, now_unix_ns: int) -> list[Record]:
        """Return everything that waits, since no more data are expected."""
        records = self.ranks.merge(self.rows.close(), now_unix_ns)
        records += self.ranks.close(now_unix_ns)
        return [*records, *self.engines.rows(), *self.engines.close()]

    def forget(self, process: Process, now_unix_ns: int) -> list[Record]:
        """Forget a process; return its rows that wait."""
        records = self.ranks.merge(self.rows.forget(process), now_unix_ns)
        self.ranks.forget(process.instance)
        return records

    def flush(self) -> None:
        """Write the facts in memory to the state."""
        self.rows.flush()
        self._points.flush()
        self.ranks.flush()
        self.engines.flush()

    def _native_rows(
        self, frame: DecodedFrame, batch: ResourceMetricsInput
    ) -> list[Record]:
        """Return the rows that the fragments of one native process complete.

        Only a new row or fragment keeps its process and the run open.
        """
        process = batch.context.process
        records: list[Record] = []
        for fragment in batch.fragments:
            # A redelivered row must not reopen its process or the run.
            redelivered = self.rows.redelivered
            rows = self.rows.take(
                process,
                fragment,
                frame.now_unix_ns,
                waits_for_earlier=frame.from_receiver,
            )
            records += self.ranks.merge(rows, frame.now_unix_ns)
            if self.rows.redelivered == redelivered:
                self._lifecycle.on_row(process, frame.now_unix_ns)
        return records

    def _third_party_rows(
        self, frame: DecodedFrame, inputs: Iterable[ResourceMetricsInput]
    ) -> list[Record]:
        """Return the records of metrics that are not native rows; the engines take theirs.

        All resources of the frame together, since the points of one request with one step make one
        row.
        """
        received: list[ReceivedMetrics] = []
        records: list[Record] = []
        for batch in inputs:
            producer = batch.context.producer
            process = batch.context.process
            # A measurement taken while a process ended must not reopen the process or the run.
            if producer.system and process.status is not None:
                continue
            metrics: list[ScopedMetric] = []
            engine_metrics: list[Metric] = []
            for scope, metric in batch.metrics:
                if is_of_engine(metric):
                    engine_metrics.append(metric)
                else:
                    metrics.append((scope, metric))
            if engine_metrics:
                records += self.engines.take(
                    engine_of(producer.attributes),
                    engine_metrics,
                    now_unix_ns=frame.now_unix_ns,
                    ended=self._lifecycle.ended,
                )
            received.append((producer, process, metrics))
        rows = self._points.rows(received, frame.append_unix_ns)
        if rows:
            for producer, process, _ in received:
                if not producer.system:
                    self._lifecycle.on_record(process, frame.now_unix_ns)
        return [*records, *rows]
