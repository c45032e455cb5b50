from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2

import otel_bridge_mlflow
from otel_bridge.exporter import RunInfo, WritesPlainTraces
from otel_bridge.records import PlainTrace, RolloutRecord, Span
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge_mlflow.traces.spans import spans_of
from support.trackers import mlflow_reading

exporter = otel_bridge_mlflow.exporter


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("traces"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name, project="traces")


def written(uri: str, run: RunInfo, *rollouts: RolloutRecord):
    """Write *rollouts*, return the writer and the traces MLflow links to the run."""
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": uri}, run.folder)
    writer = open_writer(exporter, run, settings, MemoryTable())
    deliver(writer, samples.placed(rollouts))
    return writer, traces(uri, run)


def traces(uri: str, run: RunInfo):
    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    return api.search_traces(
        locations=[held.info.experiment_id], run_id=held.info.run_id
    )


def test_a_rollout_is_a_trace_with_previews_session_name_tags_and_rewards(
    uri: str, run: RunInfo
) -> None:
    rollout = samples.rollout(5, seed=run.id)

    _, (trace,) = written(uri, run, rollout)

    info = trace.info
    ours = {
        key: value
        for key, value in info.tags.items()
        if not key.startswith("mlflow.") and key != "group"
    }
    assert (info.trace_id, info.state.value) == (f"tr-{rollout.id}", "OK")
    assert (info.request_preview, info.response_preview) == (
        "What is 5 + 1?",
        "It is 6.",
    )
    assert mlflow_reading.session_of(trace) == "p1"
    assert info.tags["mlflow.traceName"] == "explorer/rollouts"
    assert ours == {
        "step": "1", "reward": "0.75", "rewards": '{"format": 0.25, "answer": 0.5}',
    }  # fmt: skip
    assert {each.name: each.value for each in info.assessments} == {
        "reward": 0.75,
        "format": 0.25,
        "answer": 0.5,
    }
    assert (info.request_time, info.execution_duration) == (
        rollout.start_unix_ns // 1_000_000,
        4000,
    )


def test_spans_that_arrive_after_their_rollout_are_added_to_its_trace_and_other_traces_are_not(
    uri: str, run: RunInfo
) -> None:
    rollout = samples.rollout(3, seed=run.id)
    writer, (before,) = written(uri, run, rollout)
    span = Span(
        "00000000000000aa",
        rollout.spans[0].id,
        "llm_request",
        "span",
        1,
        2,
        {"vllm": True},
    )
    late = PlainTrace(
        rollout.id,
        "server",
        span.name,
        1,
        2,
        [span],
        rollout_key=rollout.key,
        position=2,
    )
    other = PlainTrace("ab" * 16, "server", "GET /health", 1, 2, [span], position=3)

    assert isinstance(writer, WritesPlainTraces)
    writer.write_traces([late, other])
    writer.write_traces([late])

    [trace] = traces(uri, run)
    names = sorted(each.name for each in before.data.spans)
    assert sorted(each.name for each in trace.data.spans) == sorted(
        [*names, "llm_request"]
    )
    assert (trace.info.request_preview, trace.info.tags) == (
        before.info.request_preview,
        before.info.tags,
    )


def test_the_spans_are_typed_and_the_chat_is_whole(uri: str, run: RunInfo) -> None:
    rollout = samples.rollout(0, seed=run.id)

    _, (trace,) = written(uri, run, rollout)

    spans = {span.span_id: span for span in trace.data.spans}
    root = spans[rollout.spans[0].id]
    kinds = [(spans[span.id].name, spans[span.id].span_type) for span in rollout.spans]
    assert kinds == [
        ("rollout", "AGENT"),
        ("chat policy", "CHAT_MODEL"),
        ("execute_tool calculator", "TOOL"),
        ("chat policy", "CHAT_MODEL"),
    ]
    assert root.inputs == {"messages": rollout.messages[:-1]}
    assert root.outputs == {
        "choices": [
            {"index": 0, "message": rollout.messages[-1], "finish_reason": "stop"}
        ]
    }
    assert not [key for key in root.attributes if key.startswith("gen_ai.")]
    assert spans[rollout.spans[2].id].inputs == {"expression": "0 + 1"}


def test_a_rollout_without_its_root_gets_one_under_the_parents_id_and_is_linked(
    uri: str, run: RunInfo
) -> None:
    whole = samples.rollout(0, seed=run.id)

    _, (trace,) = written(
        uri,
        run,
        dataclasses.replace(
            whole, spans=whole.spans[1:], incomplete=True, clipped_bytes=7
        ),
    )
    _, (mended,) = written(uri, run, whole)

    assert {span.span_id for span in trace.data.spans} == {
        span.id for span in whole.spans
    }
    assert (trace.info.tags["incomplete"], trace.info.tags["clipped_bytes"]) == (
        "True",
        "7",
    )
    assert {span.span_id for span in mended.data.spans} == {
        span.id for span in whole.spans
    }


def test_a_rollout_of_nothing_but_messages_or_without_bytes_is_shown(
    uri: str, run: RunInfo
) -> None:
    bare = dataclasses.replace(samples.rollout(1, seed=run.id), spans=())
    whole = samples.rollout(2, seed=run.id, error="boom")
    without_bytes = dataclasses.replace(
        whole, spans=[dataclasses.replace(span, otlp=b"") for span in whole.spans]
    )

    _, found = written(uri, run, bare, without_bytes)

    by_id = {trace.info.trace_id: trace for trace in found}
    assert len(by_id[f"tr-{bare.id}"].data.spans) == 1
    assert by_id[f"tr-{bare.id}"].info.response_preview == "It is 2."
    assert by_id[f"tr-{whole.id}"].info.state.value == "ERROR"
    assert len(by_id[f"tr-{whole.id}"].data.spans) == 4


def test_an_evaluation_replaces_the_one_of_its_name_and_keeps_the_explanation(
    uri: str, run: RunInfo
) -> None:
    rollout = samples.rollout(0, seed=run.id)
    writer, _ = written(uri, run, rollout)

    for _ in range(2):
        writer.write_evaluations([
            samples.evaluation(rollout, 0.25, name="reward"),
            samples.evaluation(rollout, 1.0, name="reward"),
            samples.evaluation(rollout, None, name="verdict", label="good"),
            samples.evaluation(rollout, 3.0, name="judge", label="fine"),
            samples.evaluation(rollout, math.nan, name="broken"),
        ])  # fmt: skip
    writer.write_rollouts(samples.placed([rollout]))

    (trace,) = traces(uri, run)
    seen = {
        each.name: (each.value, each.rationale, (each.metadata or {}).get("label"))
        for each in trace.info.assessments
    }
    assert len(trace.info.assessments) == len(seen)
    said = "checked by the judge"
    assert seen == {
        "reward": (1.0, said, None), "format": (0.25, None, None), "answer": (0.5, None, None),
        "verdict": ("good", said, None), "judge": (3.0, said, "fine"), "broken": ("nan", said, None),
    }  # fmt: skip


def test_an_evaluation_without_an_explanation_does_not_keep_that_of_the_one_before(
    uri: str, run: RunInfo
) -> None:
    rollout = samples.rollout(0, seed=run.id)
    writer, _ = written(uri, run, rollout)
    first = samples.evaluation(rollout, 0.25, name="judge")
    second = dataclasses.replace(
        samples.evaluation(rollout, 1.0, name="judge"), explanation=None
    )

    writer.write_evaluations([first])
    writer.write_evaluations([second])

    (trace,) = traces(uri, run)
    (judged,) = [each for each in trace.info.assessments if each.name == "judge"]
    assert (judged.value, judged.rationale or "") == (1.0, "")


def test_traces_can_be_searched_by_reward_tag_and_step(uri: str, run: RunInfo) -> None:
    written(
        uri, run, *(samples.rollout(n, reward=n / 4, seed=run.id) for n in range(4))
    )

    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    search = {"locations": [held.info.experiment_id], "run_id": held.info.run_id}
    if mlflow_reading.searches_numbers():
        assert (
            len(api.search_traces(**search, filter_string="feedback.reward > 0.4")) == 2
        )
    assert (
        len(api.search_traces(**search, filter_string="feedback.reward = '0.75'")) == 1
    )
    assert len(api.search_traces(**search, filter_string="tags.reward = '0.75'")) == 1
    assert len(api.search_traces(**search, filter_string="tags.step = '1'")) == 4
    assert (
        len(
            api.search_traces(
                **search, filter_string="span.attributes.rl.split LIKE '%train%'"
            )
        )
        == 4
    )


def test_a_split_other_than_train_is_a_tag(uri: str, run: RunInfo) -> None:
    _, (trace,) = written(
        uri, run, dataclasses.replace(samples.rollout(0, seed=run.id), split="eval")
    )

    assert trace.info.tags["split"] == "eval"


def test_text_a_database_refuses_and_names_beyond_the_limits_cost_nothing_else(
    uri: str, run: RunInfo
) -> None:
    odd = dataclasses.replace(
        samples.rollout(0, seed=run.id),
        messages=[
            {"role": "user", "content": "nul \0 surrogate \ud800 end"},
            {"role": "assistant", "content": "ok"},
        ],
        group="g" * 10_000,
        key="k" * 10_000,
        split="s" * 10_000,
        rewards={"": 1.0, "reward": 2.0, "x" * 400: 3.0, "a@b": math.inf},
    )

    _, (trace,) = written(uri, run, odd)

    assert trace.info.request_preview == "nul � surrogate ? end"
    assert len(mlflow_reading.session_of(trace)) == 250
    assert len(trace.info.tags["split"]) == 8000
    assert {each.name[:12]: each.value for each in trace.info.assessments} == {
        "reward": 0.75, "rewards.": 1.0, "rewards.rewa": 2.0, "x" * 12: 3.0, "a@b": "inf",
    }  # fmt: skip


def test_a_conversation_that_does_not_end_in_an_answer_is_all_input() -> None:
    rollout = samples.rollout(0)
    cut = dataclasses.replace(rollout, messages=rollout.messages[:-1])

    root = spans_of(cut, 100)[0]

    attributes = {
        attribute.key: attribute.value.string_value for attribute in root.attributes
    }
    assert '"tool_call_id"' in attributes["mlflow.spanInputs"]
    assert "mlflow.spanOutputs" not in attributes


def test_children_stay_byte_for_byte_as_they_came() -> None:
    rollout = samples.rollout(0)

    spans = spans_of(rollout, 100)

    assert [span.SerializeToString() for span in spans[1:]] == [
        span.otlp for span in rollout.spans[1:]
    ]
    assert trace_pb2.Span.FromString(rollout.spans[0].otlp).name == spans[0].name
