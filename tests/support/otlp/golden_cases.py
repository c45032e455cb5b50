"""The cases of tests/golden: what goes in, made here; what comes out, written down there.

A golden file holds both, OTLP as hex digits and records as JSON, so that neither the samples nor the encoders of this
repository can move a case unseen. ``PYTHONPATH=tests .venv/bin/python -m
support.otlp.golden_cases`` writes the files anew: read the difference.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.records import Record
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import SegmentInfo, Translator
from support.otlp.memory_state import MemoryState
from support.otlp.otlp_samples import (
    BRIDGE,
    LOGS,
    METRICS,
    RECEIVER,
    RUN,
    SCOPE,
    T0,
    TRACES,
    S,
    end,
    event,
    gauge,
    logs,
    logs_request,
    metrics_request,
    pairs,
    row,
    source,
    third_party,
    who,
)
from support.otlp.trace_samples import rollout_spans

FOLDER = Path(__file__).parents[2] / "golden"
APP = {"rl.run.id": RUN, "service.name": "megatron", "service.instance.id": "a"}


@dataclass
class Script:
    """What happens to a translator, as JSON."""

    acts: list[dict[str, Any]] = field(default_factory=list)
    now_ns: int = T0

    def open(self, *sources: SegmentInfo) -> Script:
        self.acts += [
            {"act": "opened", "source": _source(each), "now_ns": self.now_ns}
            for each in sources
        ]
        return self

    def frame(
        self, sender: SegmentInfo, signal: int, payload: bytes, *, whole: bool = False
    ) -> Script:
        self.acts.append(
            {"act": "frame", "source": _source(sender), "signal": signal, "whole": whole, "now_ns": self.now_ns,
             "payload": payload.hex()}
        )  # fmt: skip
        return self

    def rows(self, sender: SegmentInfo, *scopes: pb.ScopeMetrics) -> Script:
        for scope in scopes:
            self.frame(sender, METRICS, scope.SerializeToString())
        return self

    def request(
        self, signal: int, payload: bytes, sender: SegmentInfo = RECEIVER
    ) -> Script:
        return self.frame(sender, signal, payload, whole=True)

    def tick(self, seconds: int) -> Script:
        self.now_ns += seconds * S
        self.acts.append({"act": "tick", "now_ns": self.now_ns})
        return self


def cases() -> dict[str, Script]:
    """Every case, by the name of its file."""
    return {
        "rows_of_two_roles": _rows(),
        "rows_cut_by_a_collector": _cut(),
        "foreign_metrics_of_every_type": _foreign(),
        "config_drops_and_end": _events(),
        "killed_and_taken_up_again": _killed(),
        "one_rollout": _rollout(),
    }


def _rows() -> Script:
    trainer, explorer = source("i1"), source("i2", "explorer", rl_rank=1)
    nothing = float("nan")
    return (
        Script()
        .open(trainer, explorer)
        .rows(trainer, row(1, {"loss": 0.5, "actor/lr": 1e-6, "tokens": 4096}, step=1))
        .rows(explorer, row(1, {"reward": -1.0}, step=7))
        .rows(trainer, row(2, {"loss": nothing, "kl": float("inf"), "step": 3}, step=2))
        .rows(trainer, row(3, {"score": 0.25}, step=0, role="evaluator"))
        .rows(trainer, row(3, {"score": 0.25}, step=0, role="evaluator"))
        .rows(explorer, row(4, {"reward": 0.0}, step=8))
    )


def _cut() -> Script:
    rows = [row(seq, {"loss": seq / 2, "lr": 1e-6}) for seq in (1, 2, 3)]
    by_name = [
        pb.Metric(
            name=name,
            gauge=pb.Gauge(
                data_points=[
                    m.gauge.data_points[0]
                    for scope in rows
                    for m in scope.metrics
                    if m.name == name
                ]
            ),
        )
        for name in ("loss", "lr", "rl.row")
    ]
    lonely = row(5, {"loss": 9.0, "lr": 9.0})
    script = Script()
    for metrics in (
        by_name[2:],
        by_name[:1],
        by_name[1:2],
        list(lonely.metrics)[:1],
        list(lonely.metrics)[2:],
    ):
        script.request(
            METRICS,
            metrics_request((who(), [pb.ScopeMetrics(scope=SCOPE, metrics=metrics)])),
        )
    late = metrics_request(
        (who(), [pb.ScopeMetrics(scope=SCOPE, metrics=list(lonely.metrics)[1:2])])
    )
    return script.tick(10).request(METRICS, late)


def _foreign() -> Script:
    tokens = pb.NumberDataPoint(
        attributes=pairs({"rank": 0}), time_unix_nano=T0, as_int=512
    )
    waits = pb.HistogramDataPoint(
        attributes=pairs({"route": "/v1/chat"}), time_unix_nano=T0, count=3, sum=6.0, min=0.5, max=4.0,
        explicit_bounds=[1.0, 2.0], bucket_counts=[1, 0, 2],
    )  # fmt: skip
    sizes = pb.ExponentialHistogramDataPoint(
        attributes=pairs({"dl.iteration": 12}), time_unix_nano=T0, count=4, sum=10.0, min=0.0, max=5.0, zero_count=1,
        positive=pb.ExponentialHistogramDataPoint.Buckets(offset=0, bucket_counts=[1, 1, 1]),
    )  # fmt: skip
    quantiles = [
        pb.SummaryDataPoint.ValueAtQuantile(quantile=q, value=v)
        for q, v in ((0.5, 1.0), (0.99, 2.0))
    ]
    times = pb.SummaryDataPoint(
        time_unix_nano=T0, count=2, sum=3.0, quantile_values=quantiles
    )
    delta, cumulative = (
        pb.AGGREGATION_TEMPORALITY_DELTA,
        pb.AGGREGATION_TEMPORALITY_CUMULATIVE,
    )
    metrics = [
        gauge("lm loss", 2.5, T0, {"dl.iteration": 12}),
        pb.Metric(
            name="tokens",
            sum=pb.Sum(
                data_points=[tokens], aggregation_temporality=delta, is_monotonic=True
            ),
        ),
        pb.Metric(
            name="wait",
            unit="s",
            histogram=pb.Histogram(
                data_points=[waits], aggregation_temporality=cumulative
            ),
        ),
        pb.Metric(
            name="size",
            exponential_histogram=pb.ExponentialHistogram(data_points=[sizes]),
        ),
        pb.Metric(name="rtt", summary=pb.Summary(data_points=[times])),
    ]
    payload = metrics_request((APP, [third_party(*metrics)]))
    tokens.time_unix_nano += S
    more = pb.Metric(
        name="tokens",
        sum=pb.Sum(
            data_points=[tokens], aggregation_temporality=delta, is_monotonic=True
        ),
    )
    return (
        Script()
        .request(METRICS, payload)
        .request(METRICS, payload)
        .request(METRICS, metrics_request((APP, [third_party(more)])))
        .tick(600)
    )


def _events() -> Script:
    config = {"lr": 1e-6, "actor": {"layers": [1, 2], "name": "qwen"}, "resume": None}
    return (
        Script()
        .open(source())
        .frame(source(), LOGS, logs(event("rl.run.config", 1, config)))
        .frame(
            source(),
            LOGS,
            logs(event("rl.run.config", 2, {"actor": {"name": "llama"}}, T0 + 1)),
        )
        .rows(source(), row(1, {"loss": 0.5}))
        .frame(
            source(),
            LOGS,
            logs(
                event("rl.dropped", 3, {"value": 2}),
                end("failed", 4, last_row=1, time_ns=T0 + 2),
            ),
        )
    )


def _killed() -> Script:
    dead = logs_request((who("i1"), [end("killed", time_ns=T0 + 1)]))
    again = source("i2")
    return (
        Script()
        .open(source("i1"))
        .rows(source("i1"), row(1, {"loss": 0.5}, step=154))
        .request(LOGS, dead, BRIDGE)
        .tick(30)
        .open(again)
        .rows(again, row(1, {"loss": 0.75}, step=101))
        .frame(again, LOGS, logs(end("finished", 1, last_row=1, time_ns=T0 + 40 * S)))
    )


def _rollout() -> Script:
    explorer = source("i1", "explorer")
    spans = ScopeSpans(
        scope=SCOPE, spans=rollout_spans("t1", step=3)
    ).SerializeToString()
    return (
        Script()
        .open(explorer)
        .rows(explorer, row(1, {"reward": 1.0}, step=3))
        .frame(explorer, TRACES, spans)
        .frame(explorer, LOGS, logs(end("finished", 1, last_row=1)))
    )


def play(acts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what comes out: records, and what is counted."""
    state = MemoryState()
    translator = Translator(state, TranslationOptions(run_id=RUN))
    records: list[Record] = []
    for act in acts:
        now_ns = act["now_ns"]
        if act["act"] == "opened":
            translator.opened(_read_source(act["source"]), now_ns)
        elif act["act"] == "tick":
            records += translator.tick(now_ns)
        else:
            payload = bytes.fromhex(act["payload"])
            who_writes = _read_source(act["source"])
            records += translator.frame(
                who_writes, act["signal"], payload, act["whole"], now_ns, now_ns
            )
    translator.flush()
    counts = {
        key: value
        for prefix in ("drop/", "redelivered", "missing")
        for key, value in state.items(prefix)
    }
    return {"records": [_record(record) for record in records], "counts": counts}


def _source(each: SegmentInfo) -> dict[str, Any]:
    return {
        "instance_id": each.instance_id,
        "kind": each.kind,
        "resource": each.resource.hex(),
        "role": each.role,
    }


def _read_source(value: Mapping[str, Any]) -> SegmentInfo:
    return SegmentInfo(
        value["instance_id"],
        value["kind"],
        bytes.fromhex(value["resource"]),
        value["role"],
    )


def _record(record: Record) -> dict[str, Any]:
    return {"record": type(record).__name__, **_plain(dataclasses.asdict(record))}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value.hex() if isinstance(value, bytes) else value


def written(content: Mapping[str, Any]) -> str:
    """Return the text of a golden file; NaN and infinities as Python's JSON writes them."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every golden file anew."""
    FOLDER.mkdir(exist_ok=True)
    for name, script in cases().items():
        (FOLDER / f"{name}.json").write_text(
            written({"in": script.acts, "out": play(script.acts)}), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
