"""What real instrumentations sent becomes rollouts with messages, tools and tokens, each convention alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_bridge.content.policy import ContentPolicy
from otel_bridge.records import Record, RolloutRecord
from otel_bridge.translation.decode.resources import producer_of
from otel_bridge.translation.options import TranslationOptions
from support.otlp.genai_golden import requests_of
from support.otlp.memory_state import MemoryState
from support.otlp.trace_samples import rollout_pipeline, span

SYSTEM = "CANARY system: you are terse"
QUESTION = "CANARY question: what is the weather in Paris?"
RESULT = "CANARY result: sun all day"
ANSWER = "CANARY answer: sunny in Paris"


def rollouts_of(
    case: str, state: MemoryState, *, logs_first: bool = False, traces_only: bool = False, logs_only: bool = False,
    times: int = 1, **options: Any,
) -> list[RolloutRecord]:  # fmt: skip
    """The rollouts that the requests of a case make."""
    rollouts = rollout_pipeline(state, TranslationOptions(max_rollouts=100, **options))
    found: list[Record] = []
    requests = sorted(requests_of(case), reverse=not logs_first) * times
    for number, (signal, payload) in enumerate(requests):
        if signal == ("logs" if traces_only else "traces" if logs_only else ""):
            continue
        if signal == "traces":
            for of_resource in ExportTraceServiceRequest.FromString(
                payload
            ).resource_spans:
                for scope in of_resource.scope_spans:
                    found += rollouts.spans(producer_of({}), "i", scope, number)
        else:
            for of_resource in ExportLogsServiceRequest.FromString(
                payload
            ).resource_logs:
                for scope in of_resource.scope_logs:
                    for record in scope.log_records:
                        found += rollouts.content(producer_of({}), "i", record, number)
    found += rollouts.close(10)
    return sorted(
        (one for one in found if isinstance(one, RolloutRecord)),
        key=lambda one: one.start_unix_ns,
    )


def said(rollout: RolloutRecord) -> list[tuple[str, object]]:
    """Role and text of each message; of a call its name and arguments."""
    return [(str(message["role"]), _text(message)) for message in rollout.messages]


def _text(message: dict[str, Any]) -> object:
    calls = message.get("tool_calls")
    return (
        [
            (call["function"]["name"], call["function"]["arguments"].replace(" ", ""))
            for call in calls
        ]
        if calls
        else message["content"]
    )


CALL = [("weather", '{"place":"CANARYParis"}')]
WHOLE = [
    ("system", SYSTEM),
    ("user", QUESTION),
    ("assistant", CALL),
    ("tool", RESULT),
    ("assistant", ANSWER),
]
FIRST = WHOLE[:3]
FAILED = [("user", QUESTION)]
ONE_CALL_A_TRACE = (
    "openai_v2_events", "openai_v2_span_only", "openai_v2_event_only", "openai_v2_span_and_event", "traceloop_openai",
    "traceloop_openai_events", "openinference_openai",
)  # fmt: skip
AGENTS = (
    "pydantic_ai_1",
    "pydantic_ai_2",
    "pydantic_ai_5",
    "openinference_langchain",
    "traceloop_langchain",
    "mlflow_langchain",
)


@pytest.mark.parametrize("logs_first", [False, True])
@pytest.mark.parametrize("case", ONE_CALL_A_TRACE)
def test_each_call_is_a_rollout_with_its_messages_and_tokens(
    case: str, logs_first: bool
) -> None:
    state = MemoryState()

    first, second, failed = rollouts_of(case, state, logs_first=logs_first)

    assert (said(first), said(second), said(failed)) == (FIRST, WHOLE, FAILED)
    assert [(one.spans[0].kind, one.spans[0].model) for one in (first, second)] == [
        ("generation", "policy-2026")
    ] * 2
    assert [
        (one.spans[0].input_tokens, one.spans[0].output_tokens)
        for one in (first, second)
    ] == [(11, 7)] * 2
    assert second.finish_reason == "stop"
    assert failed.error is not None
    assert QUESTION in failed.error
    assert not list(state.items("drop/"))


@pytest.mark.parametrize("logs_first", [False, True])
@pytest.mark.parametrize("case", AGENTS)
def test_an_agent_is_one_rollout_with_its_whole_conversation_and_its_tools(
    case: str, logs_first: bool
) -> None:
    state = MemoryState()

    [rollout] = rollouts_of(case, state, logs_first=logs_first)

    assert said(rollout) == WHOLE
    models = [span for span in rollout.spans if span.kind == "generation"]
    assert [(span.model, span.input_tokens, span.output_tokens) for span in models] == [
        ("policy" if case == "mlflow_langchain" else "policy-2026", 11, 7)
    ] * 2
    [tool] = [span for span in rollout.spans if span.kind == "tool"]
    assert "CANARY Paris" in str(tool.input)
    assert RESULT in str(tool.output)
    assert not list(state.items("drop/"))


def test_spans_of_vercels_sdk_are_one_rollout_with_its_calls_and_their_results() -> (
    None
):
    call = {"toolCallId": "c1", "toolName": "add", "input": '{"a":2}'}
    user = {"role": "user", "content": [{"type": "text", "text": "2 + 3?"}]}
    asked = {
        "role": "assistant",
        "content": [{"type": "tool-call", **call, "input": {"a": 2}}],
    }
    result = {
        "type": "tool-result",
        "toolCallId": "c1",
        "toolName": "add",
        "output": {"type": "json", "value": {"sum": 5}},
    }
    replied = {"role": "tool", "content": [result]}
    sent = {
        "ai.generateText": {"ai.prompt": '{"prompt": "2 + 3?"}', "ai.response.text": "It is 5."},
        "ai.generateText.doGenerate": {
            "ai.prompt.messages": json.dumps([user]), "ai.response.toolCalls": json.dumps([call]),
            "gen_ai.response.model": "m", "gen_ai.usage.input_tokens": 10,
        },
        "ai.toolCall": {"ai.toolCall.id": "c1", "ai.toolCall.args": '{"a":2}', "ai.toolCall.result": '{"sum":5}'},
        "ai.generateText.doGenerate ": {
            "ai.prompt.messages": json.dumps([user, asked, replied]), "ai.response.text": "It is 5.",
            "gen_ai.response.finish_reasons": ["stop"],
        },
    }  # fmt: skip
    spans = [
        span("a", number, name.strip(), {"ai.operationId": name.strip(), **attributes}, parent=1 if number > 1 else 0)
        for number, (name, attributes) in enumerate(sent.items(), 1)
    ]  # fmt: skip
    state = MemoryState()
    rollouts = rollout_pipeline(state, TranslationOptions())
    found = rollouts.spans(producer_of({}), "i", ScopeSpans(spans=spans), 0)

    [rollout] = [
        one for one in [*found, *rollouts.close(10)] if isinstance(one, RolloutRecord)
    ]

    assert said(rollout) == [
        ("user", user["content"]),
        ("assistant", [("add", '{"a":2}')]),
        ("tool", '{"sum":5}'),
        ("assistant", "It is 5."),
    ]
    assert [one.kind for one in rollout.spans] == [
        "span",
        "generation",
        "tool",
        "generation",
    ]
    assert (rollout.finish_reason, rollout.spans[1].model) == ("stop", "m")
    assert not list(state.items("drop/"))


def test_mlflows_spans_below_a_traced_function_are_one_rollout() -> None:
    [rollout] = rollouts_of("mlflow_openai", MemoryState())

    assert said(rollout)[:5] == WHOLE
    assert [span.kind for span in rollout.spans] == [
        "span",
        "generation",
        "generation",
        "generation",
    ]
    assert [span.input_tokens for span in rollout.spans] == [None, 11, 11, None]
    assert rollout.finish_reason == "stop"


@pytest.mark.parametrize(
    "case", ["openai_v2_none", "traceloop_openai_none", "openinference_openai_none"]
)
def test_a_rollout_without_content_keeps_its_tokens(case: str) -> None:
    state = MemoryState()

    first, second, _ = rollouts_of(case, state)

    assert [one.spans[0].input_tokens for one in (first, second)] == [11, 11]


@pytest.mark.parametrize(
    ("case", "scope", "setting"),
    [
        ("openai_v2_none", "opentelemetry.instrumentation.openai_v2",
         "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true"),
        ("traceloop_openai_none", "opentelemetry.instrumentation.openai.v1", "TRACELOOP_TRACE_CONTENT=true"),
    ],
)  # fmt: skip
def test_an_instrumentation_that_records_no_messages_is_named_once_with_its_setting(
    case: str, scope: str, setting: str
) -> None:
    state, silent = MemoryState(), MemoryState()

    rollouts_of(case, state, traces_only=True)
    rollouts_of(case, silent, traces_only=True, content=ContentPolicy(0))

    [(key, switch)] = state.items("bare/")
    assert key == f"bare/{scope}"
    assert str(switch).startswith(setting)
    assert not silent.items("bare/")


def test_a_span_without_a_scope_hides_no_instrumentation_that_records_no_messages() -> (
    None
):
    state = MemoryState()
    rollouts = rollout_pipeline(state, TranslationOptions())
    call = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}

    for number, scope in ((2, ""), (1, "my.agents")):
        one_span = span("a", number, "chat m", call, parent=number - 1)
        scope_spans = ScopeSpans(scope={"name": scope}, spans=[one_span])
        rollouts.spans(producer_of({}), "i", scope_spans, 0)
    rollouts.close(10)

    assert state.items("bare/") == [("bare/my.agents", "")]


def test_messages_of_a_span_that_never_comes_are_counted() -> None:
    state = MemoryState()

    assert rollouts_of("openai_v2_events", state, logs_only=True) == []

    assert state.items("drop/") == [("drop/event/no_span", 9)]


def test_log_records_with_messages_that_come_again_change_nothing() -> None:
    once, twice = MemoryState(), MemoryState()

    assert rollouts_of("openai_v2_events", twice, times=2) == rollouts_of(
        "openai_v2_events", once
    )


def conversation_of(
    calls: list[dict[str, Any]], *, nested: bool = False
) -> RolloutRecord:
    """The rollout of an agent's calls of a model; with *nested* each of an even number is made by the one before."""
    spans = [span("a", 1, "agent", {"mlflow.spanType": '"AGENT"'})]
    for number, attributes in enumerate(calls, 2):
        parent = number - 1 if nested and number % 2 else 1
        spans.append(span("a", number, "chat m", attributes, parent=parent))
    state = MemoryState()
    rollouts = rollout_pipeline(state, TranslationOptions())
    found = rollouts.spans(producer_of({}), "i", ScopeSpans(spans=spans), 0)
    [rollout] = [
        one for one in [*found, *rollouts.close(10)] if isinstance(one, RolloutRecord)
    ]
    assert not list(state.items("drop/"))
    return rollout


def mlflow(inputs: object, outputs: object) -> dict[str, str]:
    return {
        "mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": json.dumps(inputs),
        "mlflow.spanOutputs": json.dumps(outputs),
    }  # fmt: skip


def claude(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [*blocks],
        "stop_reason": "end_turn",
    }


HI = {"role": "user", "content": "hi"}
ASKS = {"type": "tool_use", "id": "c1", "name": "w", "input": {}}
DONE = {"type": "text", "text": "done", "citations": None}


@pytest.mark.parametrize(
    "request_",
    [
        {"system": "be terse", "messages": [HI]},
        {"system": [{"type": "text", "text": "be terse"}], "messages": [HI]},
        {"system": [{"text": "be terse"}], "messages": [HI]},
        {"instructions": "be terse", "input": "hi"},
        {"instructions": "be terse", "input": [HI]},
        {"config": {"system_instruction": "be terse"}, "contents": "hi"},
        {
            "config": {
                "system_instruction": {"parts": [{"text": "be terse"}], "role": "user"}
            },
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        },
    ],
)
def test_the_system_beside_the_messages_of_a_request_is_its_first_message(
    request_: dict[str, Any],
) -> None:
    # OpenAI's response repeats the instructions.
    answer = {"instructions": "be terse", "output": [claude(DONE)]}

    rollout = conversation_of([mlflow(request_, answer)] * 2)

    roles = [message["role"] for message in rollout.messages]
    assert roles == ["system", "user", "assistant"]
    assert said(rollout)[:2] == [("system", "be terse"), ("user", "hi")]


@pytest.mark.parametrize(
    "repeated", ["done", [{"type": "text", "text": "done"}], [DONE]]
)
def test_an_answer_of_parts_is_not_doubled_by_its_repetition(repeated: object) -> None:
    more = {"role": "user", "content": "more"}
    history = [HI, {"role": "assistant", "content": repeated}, more]

    rollout = conversation_of([
        mlflow({"messages": [HI]}, claude(DONE)), mlflow({"messages": history}, claude(DONE)),
    ])  # fmt: skip

    roles = [message["role"] for message in rollout.messages]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_what_follows_the_results_of_tools_stays_behind_them() -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": "sun",
        "is_error": True,
    }
    searched = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": "found",
    }
    search = {
        "type": "server_tool_use",
        "id": "s1",
        "name": "search",
        "input": {"q": 1},
    }
    history = [
        HI,
        claude(ASKS),
        {"role": "user", "content": [result, {"type": "text", "text": "go on"}]},
    ]

    rollout = conversation_of([
        mlflow({"messages": [HI]}, claude(ASKS)), mlflow({"messages": history}, claude(search, searched, DONE)),
    ])  # fmt: skip

    assert said(rollout) == [
        ("user", "hi"),
        ("assistant", [("w", "{}")]),
        ("tool", "sun"),
        ("user", "go on"),
        ("assistant", [("search", '{"q":1}')]),
        ("tool", "found"),
        ("assistant", "done"),
    ]
    assert rollout.messages[2]["part_facts"] == {"1": {"is_error": True}}


def test_parts_as_json_text_in_flattened_attributes_are_the_parts() -> None:
    blocks = {
        "user": [{"type": "text", "text": "hi"}],
        "assistant": [{"type": "text", "text": "let me"}, ASKS],
        "tool": [{"type": "tool_result", "tool_use_id": "c1", "content": "sun"}],
    }
    first: dict[str, Any] = {
        "llm.request.type": "chat", "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": json.dumps(blocks["user"]),
    }  # fmt: skip
    asked = {
        "gen_ai.completion.0.content": "let me", "gen_ai.completion.0.tool_calls.0.id": "c1",
        "gen_ai.completion.0.tool_calls.0.name": "w", "gen_ai.completion.0.tool_calls.0.arguments": "{}",
    }  # fmt: skip
    second = {
        **first, "gen_ai.prompt.1.role": "assistant", "gen_ai.prompt.1.content": json.dumps(blocks["assistant"]),
        "gen_ai.prompt.2.role": "user", "gen_ai.prompt.2.content": json.dumps(blocks["tool"]),
        "gen_ai.completion.0.content": "done",
    }  # fmt: skip

    rollout = conversation_of([{**first, **asked}, second])

    assert said(rollout) == [
        ("user", blocks["user"]),
        ("assistant", [("w", "{}")]),
        ("tool", "sun"),
        ("assistant", "done"),
    ]


def test_what_a_chat_of_gemini_was_sent_is_a_message_once() -> None:
    answer = {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "done"}]}}]
    }
    history = [{"role": "user", "parts": [{"text": "hi"}]},
               {"role": "model", "parts": [{"text": "done"}]}, "more"]  # fmt: skip

    rollout = conversation_of([
        mlflow({"message": "hi"}, answer), mlflow({"contents": "hi"}, answer),
        mlflow({"message": "more"}, answer), mlflow({"contents": history}, answer),
    ])  # fmt: skip

    assert said(rollout) == [
        ("user", "hi"),
        ("assistant", "done"),
        ("user", "more"),
        ("assistant", "done"),
    ]


def test_the_clients_call_below_a_frameworks_call_is_one_turn_with_it() -> None:
    human = {"type": "human", "content": "hi"}
    answer = {"type": "ai", "content": "done", "response_metadata": {"stop_reason": "end_turn"}}  # fmt: skip
    generated = {"generations": [[{"text": "done", "message": answer}]]}

    rollout = conversation_of(
        [
            mlflow([[human]], generated),
            mlflow({"messages": [HI]}, "<APIResponse [200 OK]>"),
        ],
        nested=True,
    )

    assert said(rollout) == [("user", "hi"), ("assistant", "done")]
    assert len(rollout.spans) == 3
    assert rollout.finish_reason == "end_turn"


def test_ollamas_reasoning_and_the_arguments_of_its_calls_have_their_place() -> None:
    call = {"function": {"name": "w", "arguments": {"p": 1}}}
    asks = {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [call],
    }

    rollout = conversation_of(
        [mlflow({"messages": [{**HI, "images": ["QUJD" * 100]}]}, {"message": asks})]
    )

    user, assistant = rollout.messages
    assert "data:image/*;base64,QUJDQUJD" in str(user["content"])
    assert (assistant["reasoning_content"], said(rollout)[1]) == (
        "hm",
        ("assistant", [("w", '{"p":1}')]),
    )


def test_media_of_pydantic_ais_older_formats_are_media() -> None:
    binary = {"type": "binary", "media_type": "image/png", "content": "QUJD"}
    event = {
        "event.name": "gen_ai.user.message",
        "role": "user",
        "content": [
            "hi",
            {"kind": "binary", "media_type": "image/png", "binary_content": "QUJD"},
        ],
    }
    shown = [
        {"type": "text", "text": "hi"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
    ]
    parts = [{"role": "user", "parts": [{"type": "text", "content": "hi"}, binary]}]
    operation = {"gen_ai.operation.name": "chat"}

    of_events = conversation_of([{**operation, "events": json.dumps([event])}])
    of_parts = conversation_of(
        [{**operation, "gen_ai.input.messages": json.dumps(parts)}]
    )

    assert said(of_events) == [("user", shown)] == said(of_parts)


def test_reasoning_beside_an_answer_of_vercels_sdk_is_its_reasoning() -> None:
    rollout = conversation_of([{
        "ai.operationId": "ai.streamText.doStream", "ai.prompt.messages": json.dumps([HI]),
        "ai.response.text": "done", "ai.response.reasoning": "hm",
    }])  # fmt: skip

    assert rollout.messages[1] == {
        "role": "assistant",
        "content": "done",
        "reasoning_content": "hm",
    }


def test_files_beside_an_answer_of_vercels_sdk_are_parts_of_it() -> None:
    file = {"type": "file", "mediaType": "image/png", "data": "iVBORw0KGgo="}
    generation = {
        "ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": json.dumps([HI]),
        "ai.response.files": json.dumps([file]),
    }  # fmt: skip
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
    }

    alone = conversation_of([generation])
    with_text = conversation_of([{**generation, "ai.response.text": "done"}])

    assert alone.messages[1] == {"role": "assistant", "content": [image]}
    assert with_text.messages[1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "done"}, image],
    }
