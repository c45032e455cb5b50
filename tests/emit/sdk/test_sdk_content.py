"""Tests of what leaves of a stock SDK's spans and log records: the run's content policy holds before the segment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as EncodedLog
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Status, StatusCode

from otel_bridge.content.user_function import redact_with
from otel_bridge.emit.sdk.appender import SdkAppender
from otel_bridge.emit.sdk.connect import AppendingLogProcessor, AppendingSpanProcessor
from otel_bridge.text.secret_patterns import REDACTED
from support.trainers.emit_otel_programs import run_program, written
from support.trainers.emit_rollout_doubles import (
    MemoryRun,
    attributes,
    open_rollout,
    plain,
)

KEY = "sk-" + "A1" * 16
SDK_TAKES_MAPS = "key" in BoundedAttributes(attributes={"key": {"a": 1}})
"""Below 1.40 the SDK itself drops an attribute that is a map."""
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "the whole truth"}]}]
NUMBERS = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 7,
    "gen_ai.response.finish_reasons": ["stop"],
}


class WholeRun(MemoryRun):
    """A run that takes whole requests."""

    project, name = "p", "n"


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    redact_with(None)


def span_of(
    run: MemoryRun,
    values: dict[str, Any],
    *,
    event: dict[str, Any] | None = None,
    error: str = "",
    name: str = "chat m",
) -> Span:
    """What is appended of one span of a stock SDK."""
    provider = TracerProvider(
        resource=Resource({"service.name": "svc"}), shutdown_on_exit=False
    )
    provider.add_span_processor(AppendingSpanProcessor(SdkAppender(cast("Any", run))))
    span = provider.get_tracer("some.genai.instrumentation").start_span(
        name, attributes=values
    )
    if event is not None:
        span.add_event("exception", event)
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end()
    [(_, payload)] = run.records
    [resource_spans] = ExportTraceServiceRequest.FromString(payload).resource_spans
    return resource_spans.scope_spans[0].spans[0]


def log_of(run: MemoryRun, record: LogRecord) -> EncodedLog:
    """What is appended of one log record of a stock SDK."""
    provider = LoggerProvider(
        resource=Resource({"service.name": "svc"}), shutdown_on_exit=False
    )
    provider.add_log_record_processor(
        AppendingLogProcessor(SdkAppender(cast("Any", run)))
    )
    provider.get_logger("some.genai.instrumentation").emit(record)
    [(_, payload)] = run.records
    [resource_logs] = ExportLogsServiceRequest.FromString(payload).resource_logs
    return resource_logs.scope_logs[0].log_records[0]


# --- spans ------------------------------------------------------------------------------------------------------------
def test_off_leaves_no_text_of_a_span_and_all_its_numbers_and_names() -> None:
    run = WholeRun(MESSAGE_CONTENT="off")
    values = {**NUMBERS, "gen_ai.input.messages": json.dumps(ASKED), "rl.metadata.note": "the whole truth",
              "gen_ai.tool.call.arguments": {"q": "the whole truth"}, "rl.metadata.n": 3}  # fmt: skip

    span = span_of(
        run,
        values,
        event={"exception.message": "the whole truth"},
        error="the whole truth",
    )

    assert attributes(span) == {**NUMBERS, "rl.metadata.n": 3}
    assert b"the whole truth" not in run.records[0][1]


def test_truncation_cuts_inside_message_parts() -> None:
    run = WholeRun(MESSAGE_CONTENT="truncate:5")

    span = span_of(
        run,
        {**NUMBERS, "gen_ai.input.messages": json.dumps(ASKED)},
        error="the whole truth",
    )

    found = attributes(span)
    assert (
        json.loads(found.pop("gen_ai.input.messages"))[0]["parts"][0]["content"]
        == "the w… [+10 characters]"
    )
    assert found == NUMBERS
    assert span.status.message == "the w… [+10 characters]"


def test_secrets_go_by_shape_and_by_name_wherever_they_stand() -> None:
    run = WholeRun()
    values = {
        **NUMBERS,
        "gen_ai.input.messages": json.dumps(
            [{"role": "user", "content": f"my key: {KEY}"}]
        ),
        "gen_ai.tool.call.arguments": '{"password": "pa55", "n": 1}',
        **(
            {"gen_ai.tool.call.result": {"auth": {"api_key": "pa55"}, "ok": True}}
            if SDK_TAKES_MAPS
            else {}
        ),
        "http.request.header.authorization": ("pa55",),
        "url.full": "https://me:pa55@host/x",
        "process.command_args": ["--api-key", "pa55", "--lr", "1"],
    }

    span = span_of(
        run,
        values,
        event={"exception.message": f"bad {KEY}"},
        error=f"no {KEY}",
        name=f"GET {KEY}",
    )

    assert attributes(span) == {
        **NUMBERS,
        "gen_ai.input.messages": '[{"role":"user","content":"my key: [redacted]"}]',
        "gen_ai.tool.call.arguments": '{"password":"[redacted]","n":1}',
        **(
            {"gen_ai.tool.call.result": {"auth": {"api_key": REDACTED}, "ok": True}}
            if SDK_TAKES_MAPS
            else {}
        ),
        "http.request.header.authorization": [REDACTED],
        "url.full": f"https://{REDACTED}@host/x",
        "process.command_args": ["--api-key", REDACTED, "--lr", "1"],
    }
    assert (span.name, span.status.message) == (f"GET {REDACTED}", f"no {REDACTED}")
    assert plain(span.events[0].attributes[0].value) == f"bad {REDACTED}"
    assert not any(secret in run.records[0][1] for secret in (KEY.encode(), b"pa55"))


def test_a_resource_that_was_started_with_a_secret_loses_it() -> None:
    run = WholeRun()
    provider = TracerProvider(
        resource=Resource({"process.command": "train --token=abc123def456"}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(AppendingSpanProcessor(SdkAppender(cast("Any", run))))
    for name in ("one", "two"):
        provider.get_tracer("app").start_span(name).end()

    found = [
        ExportTraceServiceRequest.FromString(payload).resource_spans[0].resource
        for _, payload in run.records
    ]

    assert [plain(one.attributes[0].value) for one in found] == [
        f"train --token={REDACTED}"
    ] * 2


def test_addresses_go_where_asked_for_and_secrets_stay_where_they_may() -> None:
    run = WholeRun(REDACT="email")

    span = span_of(
        run,
        {
            "enduser.id": "ann@example.org",
            "api_key": "mine",
            "gen_ai.prompt": "to bob@example.org",
        },
    )

    assert attributes(span) == {
        "enduser.id": REDACTED,
        "api_key": "mine",
        "gen_ai.prompt": f"to {REDACTED}",
    }


def test_the_hook_sees_each_text_and_no_name_and_one_that_raises_costs_that_text() -> (
    None
):
    run = WholeRun()

    def hook(text: str) -> str:
        if "broken" in text:
            raise RuntimeError(text)
        return text.upper()

    redact_with(hook)
    values = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(ASKED), "user.query": "who",
              "gen_ai.completion": "broken", "rl.metadata.note": "mine", "rl.split": "train"}  # fmt: skip
    span = span_of(run, values, error="oh no")

    assert attributes(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(ASKED, separators=(",", ":")).replace("the whole truth", "THE WHOLE TRUTH"),
        "user.query": "WHO", "gen_ai.completion": REDACTED, "rl.metadata.note": "MINE", "rl.split": "train",
    }  # fmt: skip
    assert span.status.message == "OH NO"
    assert run.drops == {"rollout_redaction": 1}


def test_a_record_that_cannot_be_looked_through_does_not_leave_and_is_counted() -> None:
    run = WholeRun()
    appender = SdkAppender(cast("Any", run))
    provider = TracerProvider(shutdown_on_exit=False)
    span = provider.get_tracer("app").start_span("work")

    class Broken(ReadableSpan):
        @property
        def attributes(self) -> Any:
            raise ValueError("no")

    broken = Broken("work", context=span.get_span_context())
    appender.spans([broken])

    assert (run.records, run.drops) == ([], {"internal_error": 1})


# --- log records ------------------------------------------------------------------------------------------------------
def test_off_leaves_no_text_of_a_genai_event_and_other_lines_as_they_are() -> None:
    said = LogRecord(
        event_name="gen_ai.user.message",
        body={"role": "user", "content": "the whole truth"},
    )
    judged = LogRecord(
        event_name="gen_ai.evaluation.result",
        attributes={"gen_ai.evaluation.name": "judge", "gen_ai.evaluation.score.label": "the whole truth",
                    "gen_ai.evaluation.score.value": 0.5, "gen_ai.evaluation.explanation": "the whole truth"},
    )  # fmt: skip

    event = log_of(WholeRun(MESSAGE_CONTENT="off"), said)
    late = log_of(WholeRun(MESSAGE_CONTENT="off"), judged)
    line = log_of(WholeRun(MESSAGE_CONTENT="off"), LogRecord(body="epoch 3"))

    assert plain(event.body) == {"role": "user", "content": ""}
    assert attributes(late) == {
        "gen_ai.evaluation.name": "judge", "gen_ai.evaluation.score.label": "", "gen_ai.evaluation.score.value": 0.5,
    }  # fmt: skip
    assert plain(line.body) == "epoch 3"


def test_log_lines_and_events_lose_secrets_by_shape_and_by_name() -> None:
    line = log_of(
        WholeRun(),
        LogRecord(body=f"login with {KEY}", attributes={"db_password": "pa55"}),
    )
    event = log_of(
        WholeRun(),
        LogRecord(
            event_name="gen_ai.tool.message",
            body={"content": '{"password": "pa55"}', "pwd": "pa55"},
        ),
    )

    assert plain(line.body) == f"login with {REDACTED}"
    assert attributes(line) == {"db_password": REDACTED}
    assert plain(event.body) == {
        "content": '{"password":"[redacted]"}',
        "pwd": REDACTED,
    }


# --- the spans of live rollouts ---------------------------------------------------------------------------------------
def test_what_others_set_on_the_span_of_a_live_rollout_leaves_as_the_policy_says() -> (
    None
):
    run = MemoryRun(MESSAGE_CONTENT="off")

    with open_rollout(run, reward=1.0) as rollout:
        current = trace.get_current_span()
        current.set_attribute("gen_ai.input.messages", "the whole truth")
        current.set_attribute("db_password", "pa55")
        current.set_attribute("attempt", 2)
        current.record_exception(ValueError("the whole truth"))
        rollout.error = KeyError("the whole truth")

    [root] = run.roots
    found = attributes(root)
    assert (found["attempt"], found["rl.reward"]) == (2, 1.0)
    assert "db_password" not in found
    assert root.status.message == "KeyError"
    assert [plain(event.attributes[0].value) for event in root.events] == [
        "ValueError",
        "KeyError",
    ]
    assert not any(
        text in payload
        for _, payload in run.records
        for text in (b"the whole truth", b"pa55")
    )


# --- whole programs ---------------------------------------------------------------------------------------------------
PROGRAM = """
import otel_bridge
otel_bridge.init(exporters='file', role='trainer', otel=True)
from opentelemetry import _logs, trace
with otel_bridge.rollout(step=1) as rollout:
    rollout.messages = 'the whole truth'
    with trace.get_tracer('genai').start_as_current_span('chat m') as span:
        span.set_attribute('gen_ai.prompt', 'the whole truth')
        span.set_attribute('gen_ai.usage.input_tokens', 7)
_logs.get_logger('genai').emit(_logs.LogRecord(body={'content': 'the whole truth'}, event_name='gen_ai.user.message'))
"""


@pytest.mark.parametrize("instrument", [False, True])
def test_a_program_whose_run_keeps_text_in_writes_none_to_the_disk(
    tmp_path: Path, instrument: bool
) -> None:
    source = PROGRAM
    more = {"OTEL_BRIDGE_MESSAGE_CONTENT": "off"}
    if instrument:
        source = PROGRAM.replace(
            "otel_bridge.init(exporters='file', role='trainer', otel=True)\n", ""
        )
        more |= {
            "OTEL_TRACES_EXPORTER": "file",
            "OTEL_LOGS_EXPORTER": "file",
            "OTEL_METRICS_EXPORTER": "none",
        }

    ended = run_program(tmp_path, source, instrument=instrument, **more)

    assert ended.returncode == 0, ended.stderr
    found = written(tmp_path / "runs")
    assert [attributes(span) for span in found.spans if span.name == "chat"] == [
        {"gen_ai.usage.input_tokens": 7}
    ]
    segments = [
        path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()
    ]
    assert len(segments) > 1
    assert not any(b"the whole truth" in one for one in segments)
