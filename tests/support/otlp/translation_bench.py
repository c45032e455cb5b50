"""What tests of translation send of a run, and what they read of its records."""

from __future__ import annotations

from typing import Any

from otel_bridge.journal.frames import Signal
from otel_bridge.records import Record, Row
from otel_bridge.translation.options import TranslationOptions
from support.otlp.otlp_samples import (
    RUN,
    TRACES,
    Bench,
    SegmentInfo,
    source,
)
from support.otlp.trace_samples import rollout_spans, rollouts_in, rows_in, scope_spans


def frame(
    bench: Bench, worker: SegmentInfo, signal: int, payload: bytes
) -> list[Record]:
    return bench.translator.frame(
        worker, Signal(signal), payload, False, bench.now_ns, bench.now_ns
    )


def bench_of(**options: Any) -> Bench:
    """A bench whose steps wait for no worker that starts later, unless *options* has a `step_startup_ns`."""
    return Bench(TranslationOptions(run_id=RUN, **{"step_startup_ns": 0, **options}))


def explorers(*names: str, role: str = "explorer") -> list[SegmentInfo]:
    return [source(name, role) for name in names]


def points(
    records: list[Record], what: str = "total"
) -> list[tuple[int | None, object]]:
    return [
        (row.step, row.values[f"{row.role}/rollouts/{what}"])
        for row in rows_in(records)
    ]


APP = {"rl.run.id": RUN, "service.name": "megatron"}


def content(records: list[Record]) -> list[tuple[object, ...]]:
    """Rows without what depends on the order between processes (`Row.steps`, `Row.attempt`)."""
    return [
        (
            r.id,
            r.role,
            r.step,
            r.axis,
            r.time_unix_ns,
            sorted(pair for pair in r.values.items() if "attempt" not in pair[0]),
        )
        for r in records
        if isinstance(r, Row)
    ]


def ids(records: list[Any]) -> set[str]:
    return {rollout.id for rollout in rollouts_in(records)}


def send(
    bench: Bench, worker: SegmentInfo, step: int, *rewards: float | None
) -> list[Record]:
    """Send the rollouts of one step of a worker, a frame each."""
    records: list[Record] = []
    for number, reward in enumerate(rewards):
        spans = rollout_spans(
            f"{worker.instance_id}-{step}-{number}", step=step, reward=reward
        )
        payload = scope_spans(spans).SerializeToString()
        records += bench.translator.frame(
            worker, TRACES, payload, False, bench.now_ns, bench.now_ns
        )
    bench.records += records
    return records
