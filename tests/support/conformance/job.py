"""The recorded job: what several producers sent for one run, as it lies in the segments of its run folder.

Equal arguments give equal bytes. In it are:

* a trainer that is killed, and starts again three steps behind; an explorer whose rows come through a receiver cut,
  merged, out of order and twice; an evaluator that sends for a judge too, with steps that repeat and go back;
* a process without a role; keys of all shapes; one row of 10,000 keys; numbers at the edge of what a double holds;
* distributions, rollouts of two splits, evaluations, configs with secrets, ends that come twice;
* producers that know nothing of us: every metric type, with steps and without, sent again at each collection.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge import semconv
from otel_bridge.records import Json, Status, Value, run_id_of
from otel_bridge.testing.samples import ODD_KEYS, START_UNIX_NS
from support.conformance import messages
from support.conformance.truth import ExpectedRun

METRICS, TRACES, LOGS = 1, 2, 3
"""Signals, as frames number them."""
WIDE_KEYS = 10_000
TICK_NS = 20_000_000
"""Between two words of anybody: each has a millisecond of its own."""
REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class JobFrame:
    """Holds one append: a ``Scope…`` message, or, when *whole*, an export request with resources of its own."""

    signal: int
    payload: bytes
    append_unix_ns: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Holds what one process wrote; *kind* is ``process`` or ``receiver``."""

    instance_id: str
    kind: str
    role: str | None
    resource: bytes
    frames: tuple[JobFrame, ...]


@dataclass(frozen=True, slots=True)
class ConformanceJob:
    """Holds one recorded run and what is true of it."""

    project: str
    name: str
    segments: tuple[Segment, ...]
    truth: ExpectedRun

    @property
    def run_id(self) -> str:
        """The run's id."""
        return run_id_of(self.project, self.name)


def recorded_job(
    name: str = "recorded", project: str = "conformance", *, wide_keys: int = WIDE_KEYS
) -> ConformanceJob:
    """Return the job.

    Args:
        name: Name of its run; also in its trace ids, which are unique in a whole tracker.
        project: Project of its run.
        wide_keys: Keys of the one wide row.
    """
    truth, clock = ExpectedRun(), count(START_UNIX_NS, TICK_NS)
    who: dict[str, Json] = {
        semconv.PROJECT: project, semconv.RUN_NAME: name, semconv.RUN_ID: run_id_of(project, name),
    }  # fmt: skip
    cast = _Cast(truth, clock, who)
    segments = (
        *_trainers(cast),
        _explorer(cast),
        _evaluator(cast),
        _keys(cast, wide_keys),
        _rollouts(cast, name),
        _third_party(cast),
    )
    return ConformanceJob(project, name, segments, truth)


@dataclass(frozen=True, slots=True)
class _Cast:
    """Holds what all producers share."""

    truth: ExpectedRun
    clock: Iterator[int]
    run: Mapping[str, Json]

    def process(
        self, instance: str, role: str | None, *, attempt: int = 1
    ) -> _ProcessScript:
        own: dict[str, Json] = {
            **self.run,
            semconv.INSTANCE_ID: instance,
            **({semconv.ROLE: role} if role else {}),
        }
        return _ProcessScript(self, instance, role, own, attempt)


class _ProcessScript:
    """Writes as an otel-bridge process does, in a segment of its own."""

    def __init__(
        self,
        cast: _Cast,
        instance: str,
        role: str | None,
        resource: Mapping[str, Json],
        attempt: int,
    ) -> None:
        self._cast, self._instance, self._role, self._resource = (
            cast,
            instance,
            role,
            resource,
        )
        self._shown: dict[str, Value] = {"attempt": attempt} if attempt > 1 else {}
        self._frames: list[JobFrame] = []
        self._seq = self._event_seq = 0

    def row(
        self,
        step: int,
        values: Mapping[str, Value],
        *,
        role: str | None = None,
        odd: bool = False,
    ) -> None:
        self._cast.truth.row(
            role or self._role, step, {**self._shown, **values}, odd=odd
        )
        self._seq += 1
        now = next(self._cast.clock)
        scope = messages.scope(messages.row(self._seq, step, values, now, role=role))
        self._frames.append(JobFrame(METRICS, scope.SerializeToString(), now, False))

    def spans(self, spans: Iterable[Span]) -> None:
        scope = ScopeSpans(scope=messages.OURS, spans=list(spans))
        self._frames.append(
            JobFrame(TRACES, scope.SerializeToString(), next(self._cast.clock), False)
        )

    def event(
        self,
        name: str,
        attributes: Mapping[str, Json],
        body: Json = None,
        trace_id: str = "",
    ) -> None:
        self._event_seq += 1
        now = next(self._cast.clock)
        numbered: dict[str, Json] = {**attributes, semconv.EVENT_SEQ: self._event_seq}
        scope = ScopeLogs(
            scope=messages.OURS,
            log_records=[messages.event(name, now, numbered, body, trace_id)],
        )
        self._frames.append(JobFrame(LOGS, scope.SerializeToString(), now, False))

    def end(self, status: Status) -> None:
        self.event(
            semconv.EVENT_END,
            {semconv.RUN_STATUS: status.value, semconv.SEQ: self._seq},
        )

    def again(self) -> None:
        """Append the last word once more, as after a retry."""
        last = self._frames[-1]
        self._frames.append(
            JobFrame(last.signal, last.payload, next(self._cast.clock), last.whole)
        )

    def segment(self) -> Segment:
        resource = messages.resource(self._resource).SerializeToString()
        return Segment(
            self._instance, "process", self._role, resource, tuple(self._frames)
        )


def _trainers(cast: _Cast) -> Iterator[Segment]:
    """Six steps, a kill, then from step 4 on again: both attempts are shown, the second by its number."""
    config: dict[str, Json] = {
        "lr": 0.001,
        "actor": {"layers": 2, "name": "tiny"},
        "hub_token": "hf_" + "a" * 30,
    }
    cast.truth.configs["trainer"] = {
        **config,
        "hub_token": REDACTED,
        "seed": 7,
        "attempt": 2,
    }
    first = cast.process("00000000000000a1", "trainer")
    first.event(semconv.EVENT_CONFIG, {}, config)
    for step in range(1, 7):
        first.row(step, _losses(step, 0.0))
    first.again()
    yield first.segment()
    second = cast.process("00000000000000a2", "trainer", attempt=2)
    second.event(semconv.EVENT_CONFIG, {}, {**config, "seed": 7})
    second.again()
    for step in range(4, 11):
        second.row(
            step,
            {**_losses(step, 0.5), "grad": messages.numbers_of(0.5, 1.0 * step, 10)},
        )
    second.row(
        10,
        {
            "nan": math.nan,
            "inf": math.inf,
            "minus_inf": -math.inf,
            "tiny": 5e-324,
            "huge": 1.7e308,
        },
    )
    second.row(10, {"big": 2**53 + 1, "least": -(2**63), "zero": 0, "truth": 1})
    second.end(Status.FINISHED)
    second.again()
    yield second.segment()


def _losses(step: int, more: float) -> dict[str, Value]:
    return {
        "loss": 1 / step + more,
        "actor/lr": 1e-6 * step,
        "tokens": 10**12 + step,
        "timing/s/per/step": step / 8,
    }


def _evaluator(cast: _Cast) -> Segment:
    """Steps that repeat and go back; rows of a second role from one process."""
    evaluator = cast.process("00000000000000b1", "evaluator")
    for step, score in ((5, 0.5), (3, 0.25), (3, 0.25), (-2, 1.0)):
        evaluator.row(step, {"score": score})
        evaluator.row(step, {"agreement": score / 2}, role="judge")
    evaluator.end(Status.FAILED)  # the run's status is that of its trainer
    return evaluator.segment()


def _keys(cast: _Cast, wide_keys: int) -> Segment:
    """Keys of all shapes, a key that is the axis, a row of very many keys; rows without a role."""
    process = cast.process("00000000000000c1", None)
    cast.truth.configs[None] = {"launcher": "local"}
    process.event(semconv.EVENT_CONFIG, {}, {"launcher": "local"})
    for step in (1, 2):
        process.row(step, {"wall_s": step * 1.5, "step": 100 + step})
        odd = {key: n + step / 4 for n, key in enumerate(ODD_KEYS) if key != "step"}
        process.row(step, odd, role="odd", odd=True)
    process.row(
        1, {f"group_{n % 10}/key_{n:05d}": n / 8 for n in range(wide_keys)}, role="wide"
    )
    process.end(Status.FINISHED)
    return process.segment()


def _explorer(cast: _Cast) -> Segment:
    """Twelve rows that a Collector cut in two, merged in threes, turned round and delivered twice."""
    who: dict[str, Json] = {
        **cast.run,
        semconv.INSTANCE_ID: "00000000000000d1",
        semconv.ROLE: "explorer",
    }
    pieces: list[list[Metric]] = []
    for seq in range(1, 13):
        values: dict[str, Value] = {
            "reward/mean": seq / 16,
            "length": 100 * seq,
            "queue": 64 - seq,
            "seen": seq,
        }
        cast.truth.row("explorer", 2 * seq, values)
        metrics = messages.row(seq, 2 * seq, values, next(cast.clock))
        pieces += [metrics[:2], metrics[2:]]
    requests: list[list[Metric]] = []
    for start in range(0, len(pieces), 6):
        three = pieces[start : start + 6]
        requests += [[*three[5], *three[0]], [*three[3], *three[4]], three[2], three[1]]
    received = [_metrics(who, request) for request in requests]
    end: dict[str, Json] = {
        semconv.RUN_STATUS: Status.FINISHED.value,
        semconv.SEQ: 12,
        semconv.EVENT_SEQ: 1,
    }
    event_log = _logs(who, [messages.event(semconv.EVENT_END, next(cast.clock), end)])
    frames = [(METRICS, payload) for payload in [*received, *received[::3]]] + [
        (LOGS, event_log),
        (LOGS, event_log),
    ]
    return _receiver(cast, "00000000000000d0", frames)


def _third_party(cast: _Cast) -> Segment:
    """Producers that know nothing of us but the run: all metric types, placed by step and by time, sent again."""
    sampler: dict[str, Json] = {
        semconv.RUN_ID: cast.run[semconv.RUN_ID],
        semconv.SERVICE_NAME: "sampler",
    }
    megatron: dict[str, Json] = {**sampler, semconv.SERVICE_NAME: "megatron"}
    frames: list[tuple[int, bytes]] = []
    total = 0
    for n in range(5):
        now = next(cast.clock)
        total += n + 1
        metrics = [
            messages.gauge("queue", n / 2, now, {}),
            messages.counter(
                "requests", 10 * (n + 1), now, delta=False, attributes={"code": 200}
            ),
            messages.counter("bytes", n + 1, now, delta=True, attributes={}),
        ]
        cast.truth.row(
            "sampler",
            None,
            {"queue": n / 2, "requests/code:200": 10 * (n + 1), "bytes": total},
        )
        payload = _metrics(sampler, metrics, "app")
        frames += [(METRICS, payload)] * (1 + n % 2)
    for step in (10, 20, 30):
        frames += [(METRICS, _megatron(cast, megatron, step))] * 2
    config: dict[str, Json] = {
        "service": "sampler",
        "password": "swordfish",
        "workers": 4,
    }
    cast.truth.configs["sampler"] = {
        "service": "sampler",
        "password": REDACTED,
        "workers": 4,
    }
    event_log = _logs(
        sampler, [messages.event(semconv.EVENT_CONFIG, next(cast.clock), {}, config)]
    )
    return _receiver(
        cast, "00000000000000e0", [*frames, (LOGS, event_log), (LOGS, event_log)]
    )


def _megatron(cast: _Cast, who: Mapping[str, Json], step: int) -> bytes:
    now, numbers = next(cast.clock), [0.5 * step, 1.0 * step, 2.0 * step]
    named: dict[str, Json] = {"dl.iteration": step}
    metrics = [
        messages.gauge("lm loss", 10 / step, now, named),
        messages.gauge("lm loss", 20 / step, now, {"step": step, "split": "valid"}),
        messages.explicit("grad", numbers, now, named),
        messages.exponential("update", numbers, now, named),
        messages.summary("rtt", (3, 1.5), {0.0: 0.25, 0.9: 0.5, 1.0: 0.75}, now, named),
    ]
    spread = messages.numbers_of(numbers[0], numbers[-1], 3)
    cast.truth.row(
        "megatron", step,
        {
            "lm loss": 10 / step, "lm loss/split:valid": 20 / step, "grad": spread, "update": spread,
            "rtt/count": 3, "rtt/sum": 1.5, "rtt/min": 0.25, "rtt/p90": 0.5, "rtt/max": 0.75,
        },
    )  # fmt: skip
    return _metrics(who, metrics, "app")


def _rollouts(cast: _Cast, name: str) -> Segment:
    """Rollouts of two steps and two splits, one of them sent twice, and values that come when they are written."""
    actor = cast.process("00000000000000f1", "actor")
    written: list[str] = []
    for step in (1, 2, 3):
        for n, reward in enumerate((0.0, 1.0, None)):
            written.append(_rollout(cast, actor, (name, step, n), reward, "train"))
        cast.truth.row("actor", step, _statistics("rollouts", 3, (0.0, 1.0)))
    for n in range(2):
        _rollout(cast, actor, (f"{name} eval", 3, n), 0.5, "eval")
    cast.truth.row("actor", 3, _statistics("rollouts/eval", 2, (0.5, 0.5)))
    actor.again()
    for n, trace_id in enumerate(written[:2]):
        score: dict[str, Json] = {
            semconv.EVALUATION_NAME: "judge",
            semconv.EVALUATION_VALUE: n + 0.25,
        }
        actor.event(semconv.EVENT_EVALUATION, score, trace_id=trace_id)
        cast.truth.evaluations[trace_id, "judge", n + 0.25] += 1
    actor.again()
    actor.end(Status.FINISHED)
    return actor.segment()


def _rollout(
    cast: _Cast,
    actor: _ProcessScript,
    key: tuple[str, int, int],
    reward: float | None,
    split: str,
) -> str:
    trace_id = hashlib.md5(repr(key).encode(), usedforsecurity=False).hexdigest()
    facts: dict[str, Json] = {
        semconv.STEP: key[1],
        semconv.SPLIT: split,
        semconv.SAMPLE_INDEX: key[2],
    }
    if reward is not None:
        facts[semconv.REWARD] = reward
    words = (f"What is {key[2]} + 1?", f"It is {key[2] + 1}.")
    actor.spans(messages.rollout_spans(trace_id, next(cast.clock), facts, words))
    cast.truth.rollouts[trace_id] = reward
    return trace_id


def _statistics(prefix: str, total: int, rewards: Sequence[float]) -> dict[str, Value]:
    mean = sum(rewards) / len(rewards)
    return {
        f"{prefix}/total": total, f"{prefix}/kept": total, f"{prefix}/zero_variance_groups": 0,
        f"{prefix}/reward/mean": mean, f"{prefix}/reward/min": min(rewards), f"{prefix}/reward/max": max(rewards),
        f"{prefix}/reward/std": math.sqrt(sum((one - mean) ** 2 for one in rewards) / len(rewards)),
    }  # fmt: skip


def _metrics(
    who: Mapping[str, Json], metrics: Iterable[Metric], scope: str = semconv.SCOPE_NAME
) -> bytes:
    part = ResourceMetrics(
        resource=messages.resource(who), scope_metrics=[messages.scope(metrics, scope)]
    )
    return ExportMetricsServiceRequest(resource_metrics=[part]).SerializeToString()


def _logs(who: Mapping[str, Json], records: Iterable[LogRecord]) -> bytes:
    part = ResourceLogs(
        resource=messages.resource(who),
        scope_logs=[ScopeLogs(scope=messages.OURS, log_records=list(records))],
    )
    return ExportLogsServiceRequest(resource_logs=[part]).SerializeToString()


def _receiver(
    cast: _Cast, instance: str, requests: Iterable[tuple[int, bytes]]
) -> Segment:
    frames = [
        JobFrame(signal, payload, next(cast.clock), True)
        for signal, payload in requests
    ]
    return Segment(instance, "receiver", None, b"", tuple(frames))
