from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.records import Config, End, RolloutRecord, Row, Status
from support.otlp.otlp_samples import (
    BRIDGE,
    LOGS,
    SCOPE,
    T0,
    TRACES,
    Bench,
    end,
    event,
    gauge,
    logs_request,
    metrics_request,
    row,
    source,
    third_party,
    who,
)
from support.otlp.trace_samples import rollout_spans
from support.otlp.translation_bench import APP, content

Point = tuple[Mapping[str, object], str, pb.Metric]


def job() -> list[Point]:
    """Every point of a small job, each alone: two native processes and a third-party one that sends all again."""
    points: list[Point] = []
    for instance, role in (("i1", "trainer"), ("i2", "explorer")):
        for seq in range(1, 6):
            scope = row(
                seq,
                {"a": float(seq), "b": seq, "c": -1.5},
                role="judge" if seq == 3 else None,
            )
            points += [
                (who(instance, role), "otel_bridge", metric) for metric in scope.metrics
            ]
    for collection in (1, 2, 3):
        points += [
            (
                APP,
                "app",
                gauge(
                    "loss",
                    step / 2,
                    T0 + (collection if collection == step else 3),
                    {"step": step},
                ),
            )
            for step in range(1, collection + 1)
        ]
    return points


def requests_of(groups: list[list[Point]]) -> list[bytes]:
    return [
        metrics_request(
            *(
                (attributes, [pb.ScopeMetrics(scope={"name": scope}, metrics=[metric])])
                for attributes, scope, metric in group
            )  # type: ignore[arg-type]
        )
        for group in groups
    ]


@settings(max_examples=60)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_any_split_order_and_doubling_of_the_requests_of_a_job_gives_the_same_rows(
    chance: random.Random, size: int
) -> None:
    ours = [point for point in job() if point[1] == "otel_bridge"]
    straight, shuffled = Bench(), Bench()
    for payload in requests_of([ours]):
        straight.request(payload)
    doubled = ours + chance.sample(ours, len(ours) // 3)
    chance.shuffle(doubled)

    for payload in requests_of(
        [doubled[start : start + size] for start in range(0, len(doubled), size)]
    ):
        shuffled.request(payload)

    assert sorted(content(shuffled.records)) == sorted(content(straight.records))
    for instance in ("i1", "i2"):
        own = [
            r.id
            for r in shuffled.records
            if isinstance(r, Row) and f":{instance}:" in r.id
        ]
        assert own == [f"m:{instance}:{seq}" for seq in range(1, 6)]
    assert (shuffled.translator.missing_rows(), shuffled.counts()) == (0, {})


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_any_order_of_the_points_of_a_foreign_producer_gives_the_same_values_once(
    chance: random.Random,
) -> None:
    points = [point for point in job() if point[1] == "app"]
    chance.shuffle(points)
    bench = Bench()

    for payload in requests_of([[point] for point in points]):
        bench.request(payload)

    found = sorted(
        (r.step, r.values["megatron/loss"]) for r in bench.records if isinstance(r, Row)
    )
    assert found == [(1, 0.5), (2, 1.0), (3, 1.5)]


def story() -> list[Callable[[Bench], object]]:
    """A run with everything in it, one act after the other."""
    trainer, explorer, launcher = (
        source("i1"),
        source("i2", "explorer"),
        source("l1", None, "launcher", rl_launcher=True),
    )
    whole = row(3, {"a": 1.0, "b": 2.0, "c": 3.0})
    part = [pb.ScopeMetrics(scope=SCOPE, metrics=[metric]) for metric in whole.metrics]
    spans = ScopeSpans(
        scope=SCOPE, spans=rollout_spans("t1", step=1)
    ).SerializeToString()

    def trace(bench: Bench) -> None:
        bench.records += bench.translator.frame(
            explorer, TRACES, spans, False, bench.now_ns, bench.now_ns
        )

    def remote(*scopes: pb.ScopeMetrics) -> Callable[[Bench], object]:
        return lambda bench: bench.request(
            metrics_request((who("i9", "remote"), scopes))
        )

    return [
        lambda bench: bench.open(trainer, explorer, launcher),
        lambda bench: bench.logs(
            trainer, event("rl.run.config", 1, {"lr": 1.0, "a": {"b": 2}})
        ),
        lambda bench: bench.metrics(
            trainer, *(row(seq, {"loss": seq / 2, "n": seq}) for seq in range(1, 6))
        ),
        lambda bench: bench.metrics(explorer, row(1, {"reward": 0.5})),
        trace,
        remote(row(2, {"x": 1.0})),
        remote(part[0]),
        lambda bench: bench.tick(4),
        remote(part[3]),
        lambda bench: bench.tick(7),
        remote(part[1], part[2]),
        remote(row(1, {"x": 0.0}), row(2, {"x": 1.0})),
        lambda bench: bench.request(
            metrics_request((APP, [third_party(gauge("loss", 1.0, T0, {"step": 1}))]))
        ),
        lambda bench: bench.request(
            metrics_request(
                (APP, [third_party(gauge("loss", 1.0, T0 + 5, {"step": 1}))])
            )
        ),
        lambda bench: bench.logs(
            explorer,
            event("rl.dropped", 1, {"value": 2}),
            end("finished", 2, last_row=1),
        ),
        lambda bench: bench.logs(explorer, event("rl.dropped", 1, {"value": 2})),
        lambda bench: bench.request(
            logs_request((who("i1"), [end("killed")])), LOGS, BRIDGE
        ),
        lambda bench: bench.logs(launcher, end("failed", 1)),
        lambda bench: bench.tick(700),
        lambda bench: bench.metrics(source("i3"), row(1, {"loss": 9.0}, step=4)),
        lambda bench: bench.logs(
            source("i3"),
            event("rl.run.config", 1, {"a": {"c": 3}}, T0 + 1),
            end("finished", 2),
        ),
        lambda bench: bench.close(),
    ]


def test_a_restart_behind_any_frame_changes_no_record() -> None:
    acts = story()
    straight = Bench()
    for act in acts:
        act(straight)

    for boundary in range(len(acts)):
        bench = Bench()
        for number, act in enumerate(acts):
            act(bench)
            if number == boundary:
                bench.restart()
        assert bench.records == straight.records, f"a restart behind act {boundary}"
        assert (bench.counts(), bench.translator.redelivered()) == (
            straight.counts(),
            straight.translator.redelivered(),
        )

    assert {type(record) for record in straight.records} == {
        Row,
        RolloutRecord,
        Config,
        End,
    }
    assert [r.status for r in straight.records if isinstance(r, End)] == [
        Status.KILLED,
        Status.FINISHED,
    ]


def test_a_restart_behind_every_frame_changes_no_record() -> None:
    straight, restarted = Bench(), Bench()

    for act in story():
        act(straight)
        act(restarted)
        restarted.restart()

    assert restarted.records == straight.records
