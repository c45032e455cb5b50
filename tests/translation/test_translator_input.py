"""What a translator does with bad input, other runs and other doors."""

from __future__ import annotations

from itertools import permutations
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.emit.encode.log_record import event as encode_event
from otel_bridge.records import End, RolloutRecord, Row, Status
from otel_bridge.translation.options import TranslationOptions
from otel_bridge.translation.translator import PendingCounts, SegmentInfo, Translator
from support.encoded_rows import encode_row
from support.otlp.memory_state import MemoryState
from support.otlp.otlp_samples import (
    LOGS,
    METRICS,
    RECEIVER,
    RUN,
    SCOPE,
    T0,
    TRACES,
    Bench,
    S,
    end,
    event,
    gauge,
    logs,
    logs_request,
    metrics_request,
    resource,
    row,
    source,
    third_party,
    who,
)
from support.otlp.trace_samples import rollout_spans
from support.otlp.translation_bench import APP, content


def test_bytes_that_cannot_be_decoded_are_counted() -> None:
    bench = Bench()

    for signal in (METRICS, TRACES, LOGS):
        for whole in (False, True):
            bench.records += bench.translator.frame(
                source(), signal, b"\x0a\xff\x01", whole, T0, T0
            )
    bench.records += bench.translator.frame(
        SegmentInfo("x", "process", b"\x0a\xff"), METRICS, b"", False, T0, T0
    )

    assert (bench.records, bench.counts()) == ([], {"undecodable": 7})


def test_a_control_frame_gives_nothing() -> None:
    bench = Bench()

    assert (
        bench.translator.frame(source(), 0, b"", False, T0, T0),
        bench.counts(),
    ) == ([], {})


@settings(max_examples=150)
@given(st.data())
def test_no_bytes_raise_and_those_behind_them_arrive(data: st.DataObject) -> None:
    payloads = [
        (METRICS, False, row(1, {"loss": 1.0, "n": 3}).SerializeToString()),
        (
            METRICS,
            True,
            metrics_request(
                (who(), [row(1, {"loss": 1.0})]),
                (APP, [third_party(gauge("l", 1.0, T0, {"step": 1}))]),
            ),
        ),
        (
            LOGS,
            False,
            logs(
                event("rl.run.config", 1, {"lr": 1.0}), end("finished", 2, last_row=1)
            ),
        ),
        (LOGS, True, logs_request((who(), [event("rl.dropped", 1, {"value": 1})]))),
        (
            TRACES,
            False,
            ScopeSpans(scope=SCOPE, spans=rollout_spans("t1")).SerializeToString(),
        ),
    ]
    bench = Bench()
    for sender in (source(), RECEIVER):
        for signal, whole, payload in payloads:
            changed = bytearray(payload)
            for _ in range(data.draw(st.integers(0, 4))):
                changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(
                    st.integers(0, 255)
                )
            bench.translator.frame(sender, signal, bytes(changed), whole, T0, T0)
    bench.restart()

    bench.metrics(source("fresh", "judge"), row(1, {"loss": 2.0}))
    bench.close()

    assert [
        dict(r.values)
        for r in bench.records
        if isinstance(r, Row) and r.id == "m:fresh:1"
    ] == [{"judge/loss": 2.0}]


def test_what_names_another_run_is_counted_and_left_out() -> None:
    other = {**who("i7"), "rl.run.id": "another"}
    bench = Bench()

    records = bench.request(
        metrics_request(
            (other, [row(1, {"loss": 1.0})]), (who(), [row(1, {"loss": 2.0})])
        )
    )
    bench.request(logs_request((other, [end("failed", 1)])), LOGS)

    assert [(r.id, dict(r.values)) for r in records if isinstance(r, Row)] == [
        ("m:i1:1", {"trainer/loss": 2.0})
    ]
    assert bench.counts() == {"other_run": 2}


def test_without_a_run_id_the_first_resource_says_which_run_it_is() -> None:
    bench = Bench(options=TranslationOptions())

    bench.metrics(source(), row(1, {"loss": 1.0}))
    bench.restart()
    bench.metrics(
        SegmentInfo(
            "i2",
            "process",
            resource({**who("i2"), "rl.run.id": "another"}).SerializeToString(),
        ),
        row(1, {"a": 1.0}),
    )

    assert [record.id for record in bench.records] == ["m:i1:1"]
    assert bench.counts() == {"other_run": 1}


def test_what_is_known_of_the_run_is_gathered_from_its_resources() -> None:
    bench = Bench()

    bench.request(
        metrics_request(
            (
                {"rl.run.id": RUN, "service.name": "app"},
                [third_party(gauge("a", 1.0, T0, {}))],
            )
        )
    )
    first = bench.state.get("run")
    bench.open(source("i1", rl_run_group="g", rl_wandb_entity="team", rl_node_rank=1))
    bench.open(
        source(
            "i2", rl_run_group="other", rl_mlflow_experiment="e", rl_run_tags=["x", "y"]
        )
    )

    derived, given = (
        {"project": source, "name": source} for source in ("derived", "given")
    )
    assert first == {
        "id": RUN,
        "project": "default",
        "name": RUN,
        "identity": {},
        "sources": derived,
    }
    assert bench.state.get("run") == {
        "id": RUN, "project": "gsm8k", "name": "ppo", "group": "g", "tags": ["x", "y"], "node_rank": 1,
        "identity": {"rl.wandb.entity": "team", "rl.mlflow.experiment": "e"}, "sources": given,
    }  # fmt: skip


def test_how_w_and_b_resumes_the_run_is_decided_by_the_latest_process_that_names_it() -> (
    None
):
    bench = Bench()

    bench.open(source("i1", rl_wandb_resume="never"))
    bench.open(source("i2"))
    bench.open(source("i3", rl_wandb_resume="allow"))
    bench.open(source("i4"))

    run = bench.state.get("run")
    assert isinstance(run, dict)
    assert run["identity"] == {"rl.wandb.resume": "allow"}


def test_a_generated_name_never_replaces_a_given_one_and_a_given_one_replaces_it() -> (
    None
):
    def process(name: str, project: str, *generated: str) -> dict[str, object]:
        marks = dict.fromkeys((f"rl.{what}.generated" for what in generated), True)
        return {"rl.run.id": RUN, "rl.run.name": name, "rl.project": project, **marks}

    nameless = process(RUN, "folder", "run.name", "project")
    by_project = process("made-up", "gsm8k", "run.name")
    named = process("nice", "gsm8k")
    renamed = process("other", "elsewhere")
    launched = {
        "rl.run.id": RUN,
        "rl.run.name": "script-1",
        "rl.run.name.generated": "true",
        "rl.project": "gsm8k",
    }

    shown: dict[str, tuple[object, object]] = {}
    for order in permutations((nameless, by_project, named, launched)):
        bench = Bench()
        for index, who_is in enumerate((*order, renamed)):
            bench.open(
                SegmentInfo(
                    f"i{index}",
                    "process",
                    resource({**who(f"i{index}"), **who_is}).SerializeToString(),
                )
            )
        facts = cast("dict[str, object]", bench.state.get("run"))
        shown[str(order)] = (facts["project"], facts["name"])

    assert set(shown.values()) == {("gsm8k", "nice")}


def test_what_an_sdk_sends_inside_a_process_belongs_to_that_process_and_its_run() -> (
    None
):
    payload = metrics_request(
        (
            {"service.name": "server"},
            [third_party(gauge("latency", 3.0, T0, {"route": "chat"}))],
        )
    )
    bench = Bench()

    bench.open(source("i1", None))
    records = bench.request(payload, METRICS, source("i1", None))
    bench.logs(source("i1", None), end("finished", 1))

    assert [(r.role, dict(r.values)) for r in records if isinstance(r, Row)] == [
        ("server", {"server/latency/route:chat": 3.0})
    ]
    assert [type(record) for record in bench.records] == [Row, End]


def test_a_rollout_comes_out_of_its_frame_and_opens_the_run_again() -> None:
    spans = ScopeSpans(
        scope=SCOPE, spans=rollout_spans("t1", step=1)
    ).SerializeToString()
    explorer = source("i2", "explorer")
    bench = Bench(options=TranslationOptions(run_id=RUN, selection="first"))
    bench.metrics(explorer, row(1, {"reward": 1.0}, step=1))
    bench.logs(explorer, end("finished", 1, last_row=1))

    bench.records += bench.translator.frame(explorer, TRACES, spans, False, T0, T0)
    bench.tick(30)

    kinds = [type(record) for record in bench.records]
    assert (kinds[:2], kinds[-1], kinds.count(RolloutRecord), kinds.count(End)) == (
        [Row, End],
        End,
        1,
        2,
    )
    rollout = next(
        record for record in bench.records if isinstance(record, RolloutRecord)
    )
    assert (rollout.role, rollout.step, rollout.steps) == (
        "explorer",
        1,
        {"explorer/step": 1},
    )


def test_a_flood_of_names_of_splits_takes_no_more_keys_than_a_run_may_have() -> None:
    bench = Bench(
        TranslationOptions(
            run_id=RUN, max_keys=10, selection="first", step_watermark_ns=S
        )
    )
    explorer = source("e1", "explorer")
    bench.open(explorer)
    bench.metrics(explorer, row(1, {"loss": 1.0}))
    for number in range(5):
        spans = ScopeSpans(
            scope=SCOPE,
            spans=rollout_spans(f"t{number}", step=1, rl__split=f"s{number}"),
        )
        now_ns = bench.now_ns
        bench.records += bench.translator.frame(
            explorer, TRACES, spans.SerializeToString(), False, now_ns, now_ns
        )
    bench.tick(60)
    before = len(bench.records)

    bench.restart()
    bench.metrics(explorer, row(2, {"loss": 0.5}))

    statistics = [
        each
        for each in bench.records[:before]
        if isinstance(each, Row) and each.id.startswith("s:")
    ]
    shown = {key for each in statistics for key in each.values}
    (again,) = (each for each in bench.records[before:] if isinstance(each, Row))
    assert {key.removeprefix("key/") for key, _ in bench.state.items("key/")} == {
        "explorer/loss",
        *shown,
    }
    assert (len(statistics), len(shown)) == (5, 9)
    assert again.values == {"explorer/loss": 0.5}
    assert bench.counts() == {"too_many_keys": 5 * 7 - 9}


def test_keys_beyond_the_limit_are_left_out_of_every_row_and_counted_in_each() -> None:
    bench = Bench(TranslationOptions(run_id=RUN, max_keys=1))
    sender = source()
    bench.open(sender)

    for seq in (1, 2, 3):
        bench.metrics(sender, row(seq, {"loss": 1.0, "lr": 2.0}))

    rows = [record for record in bench.records if isinstance(record, Row)]
    assert [record.values for record in rows] == [{"trainer/loss": 1.0}] * 3
    assert bench.counts() == {"too_many_keys": 3}


def test_rows_and_events_of_the_encoder_of_emission_are_read() -> None:
    bench = Bench()
    bench.open(source())

    for seq in (1, 2, 3, 4):
        payload = encode_row(
            {"loss": seq / 4, "tokens": seq}, T0 + seq, seq + 100, None, seq
        )
        bench.records += bench.translator.frame(
            source(), METRICS, payload, False, T0, T0
        )
    ended = encode_event(
        "rl.run.end",
        time_unix_ns=T0 + 9,
        pairs={"rl.run.status": "failed", "rl.seq": 4, "rl.event.seq": 1},
    )
    bench.records += bench.translator.frame(source(), LOGS, ended, False, T0, T0)

    assert bench.records == [
        *(
            Row(f"m:i1:{seq}", "trainer", seq + 100, "trainer/step", T0 + seq,
                {"trainer/loss": seq / 4, "trainer/tokens": seq}, {"trainer/step": seq + 100})
            for seq in (1, 2, 3, 4)
        ),
        End("e:1", Status.FAILED, T0 + 9),
    ]  # fmt: skip


@pytest.mark.parametrize("kept", [True, False])
def test_rows_are_the_same_whether_or_not_the_source_is_one_object(
    kept: bool,
) -> None:
    one, bench = source(), Bench()

    for seq in range(1, 30):
        payload = encode_row({"loss": seq / 4}, T0 + seq, seq, None, seq)
        bench.records += bench.translator.frame(
            one if kept else source(), METRICS, payload, False, T0, T0
        )

    assert content(bench.records) == [
        (
            f"m:i1:{seq}",
            "trainer",
            seq,
            "trainer/step",
            T0 + seq,
            [("trainer/loss", seq / 4)],
        )
        for seq in range(1, 30)
    ]


def test_the_state_is_written_only_when_it_is_flushed() -> None:
    state = MemoryState()
    translator = Translator(state, TranslationOptions(run_id=RUN))
    one = source()
    translator.frame(
        one, METRICS, encode_row({"loss": 0.0}, T0, 0, None, 1), False, T0, T0
    )
    translator.flush()
    before = state.snapshot()

    for seq in range(2, 100):
        translator.frame(
            one,
            METRICS,
            encode_row({"loss": 0.0}, T0 + seq, seq, None, seq),
            False,
            T0,
            T0,
        )

    assert state.snapshot() == before
    translator.flush()
    changed = {
        key for key, value in state.snapshot().items() if before.get(key) != value
    }
    assert changed == {
        "axis/trainer/step",
        "featured",
        "furthest/trainer/step",
        "proc/i1",
    }


def test_what_waits_is_reported() -> None:
    bench = Bench()

    bench.request(metrics_request((who(), [row(2, {"loss": 1.0})])))
    bench.tick(1)

    assert bench.translator.waiting() == PendingCounts(
        rows=1, traces=0, rollouts=0, steps=0
    )
    assert bench.now_ns == T0 + S
