"""OTLP messages and frames for tests of translation; fixed times and ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge.records import Record
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import SegmentInfo, Translator
from support.otlp.memory_state import MemoryState

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
RUN = "run0000000000001"
METRICS, TRACES, LOGS = 1, 2, 3
SCOPE = InstrumentationScope(name="otel_bridge")


def any_value(value: object) -> AnyValue:
    if value is None:
        return AnyValue()
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, Mapping):
        return AnyValue(kvlist_value=KeyValueList(values=pairs(value)))
    if isinstance(value, list):
        return AnyValue(
            array_value=ArrayValue(values=[any_value(item) for item in value])
        )
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    return AnyValue(string_value=str(value))


def pairs(attributes: Mapping[str, object]) -> list[KeyValue]:
    return [
        KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()
    ]


def resource(attributes: Mapping[str, object]) -> Resource:
    return Resource(attributes=pairs(attributes))


def who(
    instance: str = "i1", role: str | None = "trainer", **more: object
) -> dict[str, object]:
    """Resource attributes of an otel-bridge process; ``rl_rank=1`` is ``rl.rank``."""
    named = {"rl.role": role} if role else {}
    extra = {key.replace("_", "."): value for key, value in more.items()}
    return {
        "rl.run.id": RUN, "rl.project": "gsm8k", "rl.run.name": "ppo", **named, "rl.instance.id": instance, **extra,
    }  # fmt: skip


def source(
    instance: str = "i1",
    role: str | None = "trainer",
    kind: str = "process",
    **more: object,
) -> SegmentInfo:
    return SegmentInfo(
        instance, kind, resource(who(instance, role, **more)).SerializeToString(), role
    )


RECEIVER = SegmentInfo("receiver-1", "receiver", b"")
BRIDGE = SegmentInfo("bridge-1", "bridge", b"")


def gauge(
    name: str, value: float, time_ns: int, attributes: Mapping[str, object]
) -> pb.Metric:
    point = pb.NumberDataPoint(attributes=pairs(attributes), time_unix_nano=time_ns)
    if isinstance(value, int):
        point.as_int = value
    else:
        point.as_double = value
    return pb.Metric(name=name, gauge=pb.Gauge(data_points=[point]))


def row(
    seq: int,
    values: Mapping[str, float],
    *,
    step: int | None = None,
    time_ns: int | None = None,
    role: str | None = None,
) -> pb.ScopeMetrics:
    """One row as emission sends it; by default step and time follow the number."""
    step = seq if step is None else step
    time_ns = T0 + seq if time_ns is None else time_ns
    where: dict[str, object] = {"rl.step": step, **({"rl.role": role} if role else {})}
    metrics = [gauge(name, value, time_ns, where) for name, value in values.items()]
    metrics.append(gauge("rl.row", len(values), time_ns, {**where, "rl.seq": seq}))
    return pb.ScopeMetrics(scope=SCOPE, metrics=metrics)


def metrics_request(
    *parts: tuple[Mapping[str, object], Iterable[pb.ScopeMetrics]],
) -> bytes:
    """One export request: resource attributes and scopes, several times."""
    return ExportMetricsServiceRequest(
        resource_metrics=[
            pb.ResourceMetrics(
                resource=resource(attributes), scope_metrics=list(scopes)
            )
            for attributes, scopes in parts
        ]
    ).SerializeToString()


def third_party(*metrics: pb.Metric, scope: str = "app") -> pb.ScopeMetrics:
    return pb.ScopeMetrics(
        scope=InstrumentationScope(name=scope), metrics=list(metrics)
    )


def event(
    name: str,
    seq: int | None = None,
    body: object = None,
    time_ns: int = T0,
    **attributes: object,
) -> LogRecord:
    """One event of otel-bridge; ``rl_seq=3`` is ``rl.seq``."""
    named = {key.replace("_", "."): value for key, value in attributes.items()}
    numbered = {} if seq is None else {"rl.event.seq": seq}
    record = LogRecord(
        time_unix_nano=time_ns,
        observed_time_unix_nano=time_ns,
        event_name=name,
        attributes=pairs({**named, **numbered}),
    )
    if body is not None:
        record.body.CopyFrom(any_value(body))
    return record


def end(
    status: str,
    seq: int | None = None,
    *,
    last_row: int | None = None,
    time_ns: int = T0,
) -> LogRecord:
    rows = {} if last_row is None else {"rl_seq": last_row}
    return event("rl.run.end", seq, None, time_ns, rl_run_status=status, **rows)


def logs(*records: LogRecord) -> bytes:
    return ScopeLogs(scope=SCOPE, log_records=list(records)).SerializeToString()


def logs_request(*parts: tuple[Mapping[str, object], Iterable[LogRecord]]) -> bytes:
    return ExportLogsServiceRequest(
        resource_logs=[
            ResourceLogs(
                resource=resource(attributes),
                scope_logs=[ScopeLogs(scope=SCOPE, log_records=list(records))],
            )
            for attributes, records in parts
        ]
    ).SerializeToString()


@dataclass
class Bench:
    """A translator with its state, and what it has given out."""

    options: TranslationOptions = field(
        default_factory=lambda: TranslationOptions(run_id=RUN)
    )
    state: MemoryState = field(default_factory=MemoryState)
    now_ns: int = T0
    records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.translator = Translator(self.state, self.options)

    def restart(self, *, away_s: float | None = None) -> None:
        """As after a kill: what was flushed is all there is. With *away_s* nobody listened meanwhile."""
        self.translator.flush()
        self.state = MemoryState(self.state.snapshot())
        self.now_ns += int((away_s or 0) * S)
        opened_ns = 0 if away_s is None else self.now_ns
        self.translator = Translator(self.state, self.options, opened_unix_ns=opened_ns)

    def open(self, *sources: SegmentInfo) -> None:
        for each in sources:
            self.translator.opened(each, self.now_ns)

    def metrics(self, sender: SegmentInfo, *scopes: pb.ScopeMetrics) -> list[Record]:
        """Frames of one process's segment."""
        return self._all(
            self._frame(sender, METRICS, scope.SerializeToString(), whole=False)
            for scope in scopes
        )

    def logs(self, sender: SegmentInfo, *records: LogRecord) -> list[Record]:
        return self._all([self._frame(sender, LOGS, logs(*records), whole=False)])

    def request(
        self, payload: bytes, signal: int = METRICS, sender: SegmentInfo = RECEIVER
    ) -> list[Record]:
        """A whole export request, as the receiver appends it."""
        return self._all([self._frame(sender, signal, payload, whole=True)])

    def tick(self, seconds: float = 0) -> list[Record]:
        self.now_ns += int(seconds * S)
        return self._all([self.translator.tick(self.now_ns)])

    def close(self) -> list[Record]:
        return self._all([self.translator.close(self.now_ns)])

    def counts(self) -> dict[str, int]:
        """What was dropped, by reason."""
        self.translator.flush()
        return {
            key.removeprefix("drop/"): value for key, value in self.state.items("drop/")
        }  # type: ignore[misc]

    def _frame(
        self, sender: SegmentInfo, signal: int, payload: bytes, *, whole: bool
    ) -> list[Record]:
        return self.translator.frame(
            sender, signal, payload, whole, self.now_ns, self.now_ns
        )

    def _all(self, batches: Iterable[list[Record]]) -> list[Record]:
        records = [record for batch in batches for record in batch]
        self.records += records
        return records
