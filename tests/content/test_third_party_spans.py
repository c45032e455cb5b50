from __future__ import annotations

import json

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.content.otlp import apply_to_span
from otel_bridge.content.policy import ContentPolicy, limit_of
from otel_bridge.content.rollout_size import shrunk
from otel_bridge.content.truncation import cut
from otel_bridge.translation.decode.spans import read_span
from support.otlp import trace_samples as sample


def chatty() -> Span:
    span = sample.span(
        "a",
        1,
        "chat m",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps([sample.text("user", "x" * 50)]),
            "gen_ai.tool.call.arguments": [{"deep": "y" * 50}],
            "rl.reward": 1.0,
            "rl.metadata.note": "n" * 50,
        },
        error="e" * 50,
    )
    span.events.add(name="exception").attributes.extend(
        sample.pairs({"exception.message": "z" * 50, "exception.type": "T"})
    )
    return span


def allowed(span: Span, policy: ContentPolicy) -> tuple[Span, int]:
    """A copy of the span after the policy, and its texts of unknown names."""
    copy = Span.FromString(span.SerializeToString())
    return copy, apply_to_span(copy, policy)


def test_the_policy_names_a_limit() -> None:
    assert [limit_of(policy) for policy in ("full", "off", "truncate:7")] == [
        None,
        0,
        7,
    ]


def test_truncation_cuts_inside_parts_and_leaves_json_json() -> None:
    span, unknown = allowed(chatty(), ContentPolicy(10))

    assert unknown == 0
    read = read_span(span)
    assert read.prompt == [{"role": "user", "content": "x" * 10 + "… [+40 characters]"}]
    assert read.attributes["gen_ai.tool.call.arguments"] == [
        {"deep": "y" * 10 + "… [+40 characters]"}
    ]
    assert read.attributes["rl.metadata.note"] == "n" * 10 + "… [+40 characters]"
    assert read.error == "e" * 10 + "… [+40 characters]"
    assert (
        span.events[0].attributes[0].value.string_value
        == "z" * 10 + "… [+40 characters]"
    )


def test_off_removes_content_from_the_bytes_too_and_keeps_numbers() -> None:
    span, unknown = allowed(chatty(), ContentPolicy(0))

    assert unknown == 0
    assert {pair.key for pair in span.attributes} == {
        "gen_ai.operation.name",
        "rl.reward",
    }
    assert [pair.key for pair in span.events[0].attributes] == ["exception.type"]
    assert read_span(span).error == "T"
    assert b"xxxxx" not in span.SerializeToString()


def test_half_an_image_is_left_out_whole() -> None:
    blob = json.dumps(
        [
            {
                "role": "user",
                "parts": [
                    {"type": "blob", "mime_type": "image/png", "content": "A" * 99}
                ],
            }
        ]
    )

    assert cut("data:image/png;base64," + "A" * 99, 10) == "[121 characters left out]"
    assert (
        json.loads(cut(blob, 10))[0]["parts"][0]["content"]
        == "[99 characters left out]"
    )


def test_json_within_json_stays_json() -> None:
    inner = json.dumps({"code": "c" * 50})

    outer = json.loads(cut(json.dumps({"arguments": inner}), 10))

    assert json.loads(outer["arguments"]) == {"code": "c" * 10 + "… [+40 characters]"}


@pytest.mark.parametrize(
    ("count", "size", "limit"),
    [(3, 100_000, 50_000), (3, 200, 300), (2_000, 100, 20_000)],
)
def test_a_rollout_is_cut_to_its_limit_from_its_longest_texts_on(
    count: int, size: int, limit: int
) -> None:
    spans = [
        sample.span("a", n + 1, "chat m", {"gen_ai.prompt": "p" * size})
        for n in range(count)
    ]
    before = sum(span.ByteSize() for span in spans)

    kept, clipped = shrunk(spans, limit)

    after = sum(span.ByteSize() for span in kept)
    assert after <= limit
    assert clipped == before - after
    assert kept[0].span_id == spans[0].span_id


def test_a_small_rollout_is_not_copied() -> None:
    spans = [chatty()]

    assert shrunk(spans, 10_000) == (spans, 0)
    assert shrunk(spans, 10_000)[0][0] is spans[0]


def test_secrets_go_from_every_text_of_a_span_and_json_stays_json() -> None:
    key = "sk-" + "A1" * 12
    span = sample.span(
        "a",
        1,
        "chat m",
        {
            "gen_ai.input.messages": json.dumps(
                [sample.text("user", f"my key is {key}")]
            ),
            "gen_ai.tool.call.arguments": {"url": "https://me:pa55word@host/x", "n": 1},
            "http.request.header.authorization": "secret words",
            "rl.reward": 1.0,
            "raw": b"sk-",
        },
        error=f"refused: {key}",
    )
    span.events.add(name="exception").attributes.extend(
        sample.pairs({"exception.message": f"bad {key}"})
    )

    clean, _ = allowed(span, ContentPolicy())

    read = read_span(clean)
    assert read.prompt == [{"role": "user", "content": "my key is [redacted]"}]
    assert read.attributes["gen_ai.tool.call.arguments"] == {
        "url": "https://[redacted]@host/x",
        "n": 1,
    }
    assert read.attributes["http.request.header.authorization"] == "[redacted]"
    assert (read.attributes["rl.reward"], read.attributes["raw"], read.error) == (
        1.0,
        b"sk-".hex(),
        "refused: [redacted]",
    )
    assert clean.events[0].attributes[0].value.string_value == "bad [redacted]"
    assert key.encode() not in clean.SerializeToString()
    assert key.encode() in span.SerializeToString()


def test_a_span_without_secrets_stays_as_it_is() -> None:
    assert allowed(chatty(), ContentPolicy()) == (chatty(), 0)


def test_email_addresses_are_redacted_where_they_are_asked_for_and_json_stays_json() -> (
    None
):
    said = json.dumps(
        [sample.text("user", "mail\nann@example.org or a@b")], ensure_ascii=True
    )
    span = sample.span(
        "a",
        1,
        "chat m",
        {
            "gen_ai.input.messages": said,
            "gen_ai.tool.call.arguments": {"to": ["bob@example.org"], "n": 1},
            "enduser.id": "carl@example.org",
        },
        error="no such user: dora@example.org",
    )
    span.links.add().attributes.extend(sample.pairs({"who": "eve@example.org"}))

    clean, _ = allowed(span, ContentPolicy(secrets=False, email=True))

    read = read_span(clean)
    assert read.prompt == [{"role": "user", "content": "mail\n[redacted] or a@b"}]
    assert read.attributes["gen_ai.tool.call.arguments"] == {
        "to": ["[redacted]"],
        "n": 1,
    }
    assert (read.attributes["enduser.id"], read.error) == (
        "[redacted]",
        "no such user: [redacted]",
    )
    assert b"@example.org" not in clean.SerializeToString()
    assert allowed(span, ContentPolicy()) == (span, 0)
