"""Less than full content: only values of known names keep their text, whatever an instrumentation calls the others."""

from __future__ import annotations

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_bridge.content.otlp import (
    apply_to_log,
    apply_to_resource,
    apply_to_scope,
    apply_to_span,
    hash_texts,
)
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.translation.decode.attributes import mapping_of, value_of
from support.otlp.genai_golden import CANARY, CASES, logs_of, spans_of
from support.otlp.trace_samples import pairs

OFF = ContentPolicy(0)
PROMPT = f"{CANARY} what is the weather in Paris?"


@pytest.mark.parametrize("limit", [0, 5])
@pytest.mark.parametrize("case", CASES)
def test_no_text_of_a_real_instrumentation_stays_and_its_numbers_and_names_do(
    case: str, limit: int
) -> None:
    for span in spans_of(case):
        before = mapping_of(span.attributes)
        name = span.name

        apply_to_span(span, ContentPolicy(limit, secrets=False))

        assert CANARY.encode() not in span.SerializeToString()
        assert span.name == name
        after = mapping_of(span.attributes)
        numbers = {
            key: value
            for key, value in before.items()
            if isinstance(value, (bool, int, float))
        }
        assert {key: after[key] for key in numbers} == numbers
        for key in (
            "gen_ai.operation.name",
            "gen_ai.response.model",
            "openinference.span.kind",
            "mlflow.spanType",
        ):
            assert after.get(key) == before.get(key)
    for record in logs_of(case):
        apply_to_log(record, ContentPolicy(limit, secrets=False))

        assert CANARY.encode() not in record.SerializeToString()


def hostile() -> Span:
    span = Span(name=PROMPT)
    span.attributes.extend(pairs({
        "my.framework.prompt": PROMPT, "deep": {"a": [{"b": PROMPT, PROMPT: 1}]}, "json": f'{{"q": ["{PROMPT}"]}}',
        "list": [PROMPT, "x"], "raw": PROMPT.encode(), PROMPT: 7, "gen_ai.response.model": PROMPT * 9, "score": 0.5,
        "mlflow.message.format": PROMPT,
        "mlflow.spanType": "CHAT_MODEL", "token_ids": [1, 2, 3], "gen_ai.conversation.id": f"{PROMPT}\n{PROMPT}",
    }))  # fmt: skip
    span.status.message = PROMPT
    span.events.add(name=PROMPT).attributes.extend(
        pairs({"x": PROMPT, "exception.stacktrace": PROMPT})
    )
    span.links.add().attributes.extend(pairs({"from": PROMPT}))
    return span


@pytest.mark.parametrize("limit", [0, 5])
def test_no_text_stays_wherever_a_span_can_hold_one(limit: int) -> None:
    span = hostile()

    unknown = apply_to_span(span, ContentPolicy(limit, secrets=False))

    assert CANARY.encode() not in span.SerializeToString()
    found = mapping_of(span.attributes)
    assert (found["score"], found["mlflow.spanType"]) == (0.5, "CHAT_MODEL")
    assert unknown >= 8


def test_off_removes_arrays_that_may_be_token_ids_too() -> None:
    span = hostile()

    apply_to_span(span, OFF)

    assert mapping_of(span.attributes) == {
        "score": 0.5,
        "mlflow.spanType": "CHAT_MODEL",
    }


@pytest.mark.parametrize(
    "name",
    [
        "rollout",
        "chat gpt-5",
        "execute_tool search",
        "agent.workflow",
        "ChatOpenAI.chat",
        "GET /v1/x",
        "agent run",
    ],
)
def test_names_of_spans_that_conventions_make_stay(name: str) -> None:
    span = Span(name=name)
    span.attributes.extend(
        pairs(
            {
                "gen_ai.request.model": "gpt-5",
                "gen_ai.tool.name": "search",
                "http.route": "/v1/x",
            }
        )
    )

    apply_to_span(span, OFF)

    assert span.name == name


def test_a_span_that_is_called_by_its_own_names_keeps_its_name() -> None:
    span = Span(name="ask my agent")
    span.attributes.extend(
        pairs(
            {
                "gen_ai.agent.name": "ask my agent",
                "gen_ai.operation.name": "invoke_agent",
            }
        )
    )

    apply_to_span(span, OFF)

    assert span.name == "ask my agent"


@pytest.mark.parametrize(
    ("name", "declared"),
    [("chat Paris", "chat"), ("execute_tool Paris", "execute_tool")],
)
def test_a_word_after_an_operation_stays_only_where_an_attribute_declares_it(
    name: str, declared: str
) -> None:
    span = Span(name=name)

    apply_to_span(span, OFF)

    assert span.name == declared


def test_a_span_called_by_a_prompt_is_called_by_its_operation() -> None:
    span = Span(name=PROMPT)
    span.attributes.extend(pairs({"gen_ai.operation.name": "chat"}))

    apply_to_span(span, OFF)

    assert span.name == "chat"


def test_events_of_any_name_lose_their_bodies_and_lines_of_a_program_their_attributes_alone() -> (
    None
):
    event = LogRecord(event_name="my.framework.said")
    event.body.string_value = PROMPT
    line = LogRecord()
    line.body.string_value = "epoch 3"
    line.attributes.extend(
        pairs({"prompt": PROMPT, "code.function.name": "fit", "code.line.number": 7})
    )

    apply_to_log(event, OFF)
    apply_to_log(line, OFF)

    assert value_of(event.body) == ""
    assert (value_of(line.body), mapping_of(line.attributes)) == (
        "epoch 3", {"code.function.name": "fit", "code.line.number": 7},
    )  # fmt: skip


def test_a_resource_keeps_what_says_where_a_process_is() -> None:
    resource = Resource()
    resource.attributes.extend(
        pairs(
            {
                "service.name": "svc",
                "host.name": "h",
                "my.prompt": PROMPT,
                "k8s.pod.name": "p",
            }
        )
    )

    assert apply_to_resource(Resource(), OFF) == 0
    assert apply_to_resource(resource, OFF) == 1
    assert mapping_of(resource.attributes) == {
        "service.name": "svc",
        "host.name": "h",
        "k8s.pod.name": "p",
    }


def test_texts_among_the_attributes_of_points_become_hashes_that_keep_series_apart() -> (
    None
):
    metric = Metric(name="tokens")
    for text in (PROMPT, f"{PROMPT}?", "input"):
        metric.gauge.data_points.add(as_int=1).attributes.extend(
            pairs(
                {
                    "my.prompt": text,
                    "gen_ai.token.type": "input",
                    "shard": 3,
                    "list": [text],
                }
            )
        )

    unknown = hash_texts(metric)

    assert unknown == 5  # each list counts
    assert CANARY.encode() not in metric.SerializeToString()
    found = [mapping_of(point.attributes) for point in metric.gauge.data_points]
    assert len({str(one["my.prompt"]) for one in found}) == 3
    assert [(one["gen_ai.token.type"], one["shard"]) for one in found] == [
        ("input", 3)
    ] * 3
    assert found[2]["my.prompt"] == "input"


def test_no_text_stays_in_the_scope_the_exemplars_or_the_keys_of_a_metric() -> None:
    scope = ScopeMetrics()
    scope.scope.attributes.extend(pairs({"prompt": PROMPT}))
    metric = scope.metrics.add(name="tokens")
    for kind in ("gauge", "sum", "histogram", "exponential_histogram"):
        metric = scope.metrics.add(name=kind)
        point = getattr(metric, kind).data_points.add()
        point.attributes.extend(pairs({PROMPT: 1}))
        point.exemplars.add().filtered_attributes.extend(pairs({"q": PROMPT}))
    scope.metrics.add(name="s").summary.data_points.add().attributes.extend(
        pairs({"q": PROMPT})
    )

    unknown = apply_to_scope(scope, OFF)

    assert unknown == 1 + 4 * 2 + 1
    assert CANARY.encode() not in scope.SerializeToString()


def test_secrets_go_from_the_attributes_of_a_scope() -> None:
    scope = ScopeSpans()
    scope.scope.attributes.extend(pairs({"api_key": "x", "kept": "y"}))

    apply_to_scope(scope, ContentPolicy())

    assert mapping_of(scope.scope.attributes) == {"api_key": "[redacted]", "kept": "y"}


def test_without_content_nothing_of_a_tools_arguments_and_result_stays_in_an_event() -> (
    None
):
    record = LogRecord(event_name="gen_ai.choice")
    arguments = {"name": CANARY, "pin": 4711, "id": [CANARY]}
    call = {"id": "c", "function": {"name": "pay", "arguments": arguments}}
    record.body.CopyFrom(
        pairs(
            {
                "": {
                    "message": {
                        "role": "assistant",
                        "content": [{"name": CANARY}],
                        "tool_calls": [call],
                    }
                }
            }
        )[0].value
    )

    apply_to_log(record, OFF)

    left = {"id": "c", "function": {"name": "pay", "arguments": ""}}
    assert value_of(record.body) == {
        "message": {"role": "assistant", "content": "", "tool_calls": [left]}
    }
