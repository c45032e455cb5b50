"""What one exporter gets that may have less text than the run: every number stays, text goes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from otel_bridge.bridge.delivery.less_text import truncate
from otel_bridge.records import (
    Config,
    Evaluation,
    MediaRecord,
    PlainTrace,
    RolloutRecord,
    Row,
)
from otel_bridge.translation.decode.spans import read_span
from support.media_samples import image, media, table, text
from support.otlp.trace_samples import pairs

SECRET = "the prompt that must stay here"


def spans() -> list[OtlpSpan]:
    root = OtlpSpan(
        name="rollout", span_id=b"r" * 8, start_time_unix_nano=1, end_time_unix_nano=9
    )
    root.attributes.extend(pairs({
        "gen_ai.input.messages": f'[{{"role":"user","parts":[{{"type":"text","content":"{SECRET}"}}]}}]',
        "rl.reward": 0.5, "rl.metadata.note": SECRET, "rl.metadata.level": 3,
    }))  # fmt: skip
    root.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=SECRET))
    error = root.events.add(name="exception")
    error.attributes.extend(
        pairs({"exception.type": "KeyError", "exception.message": SECRET})
    )
    tool = OtlpSpan(
        name="execute_tool search", span_id=b"t" * 8, parent_span_id=b"r" * 8
    )
    tool.attributes.extend(pairs({
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": f'{{"q":"{SECRET}"}}', "gen_ai.tool.call.result": SECRET,
    }))  # fmt: skip
    return [root, tool]


def rollout() -> RolloutRecord:
    return RolloutRecord(
        id="ab" * 16, role="t", key="t/rollouts", step=3, axis="t/step", start_unix_ns=1, end_unix_ns=9, reward=0.5,
        messages=[
            {"role": "user", "content": SECRET}, {"role": "assistant", "content": [{"type": "text", "text": SECRET}]},
        ],
        spans=[read_span(span).record() for span in spans()], group="p1", finish_reason="stop", position=7,
        metadata={"note": SECRET, "level": 3, "rollout_id": "mine"}, tools={"calls": 1, "outputs": SECRET},
        error=SECRET, rewards={"format": 1.0}, dataset="gsm8k",
    )  # fmt: skip


def test_switched_off_no_text_is_left_anywhere_and_every_number_stays() -> None:
    given = rollout()

    bare = truncate(given, 0)

    assert isinstance(bare, RolloutRecord)
    assert SECRET not in repr(bare)
    assert SECRET.encode() not in b"".join(span.otlp for span in bare.spans)
    kept = replace(
        given,
        messages=[],
        spans=bare.spans,
        metadata={"level": 3, "rollout_id": "mine"},
        tools={"calls": 1},
    )
    assert bare == replace(kept, error="KeyError")
    assert [
        (span.name, span.kind, span.input, span.output, span.error)
        for span in bare.spans
    ] == [
        ("rollout", "span", None, None, "KeyError"),
        ("execute_tool search", "tool", None, None, None),
    ]
    assert bare.spans[0].attributes == {"rl.reward": 0.5, "rl.metadata.level": 3}


def test_truncated_every_text_is_cut_inside_its_part_and_the_cut_is_counted() -> None:
    cut = truncate(rollout(), 10)

    assert isinstance(cut, RolloutRecord)
    short = "the prompt… [+20 characters]"
    assert cut.messages == [
        {"role": "user", "content": short},
        {"role": "assistant", "content": [{"type": "text", "text": short}]},
    ]
    assert cut.metadata == {"note": short, "level": 3, "rollout_id": "mine"}
    assert (cut.error, cut.tools) == (short, {"calls": 1, "outputs": short})
    assert (cut.spans[1].input, cut.spans[1].output) == ({"q": short}, short)
    assert SECRET.encode() not in b"".join(span.otlp for span in cut.spans)
    assert cut.clipped_bytes == 2 * (len(SECRET) - len(short))


def test_what_was_remarked_on_values_of_a_rollout_loses_its_text_as_an_evaluation_does() -> (
    None
):
    remarked = replace(rollout(), remarks={"judge": ["good", SECRET]})

    bare, cut = truncate(remarked, 0), truncate(remarked, 10)

    assert isinstance(bare, RolloutRecord)
    assert isinstance(cut, RolloutRecord)
    assert bare.remarks == {"judge": ("", None)}
    assert cut.remarks == {"judge": ("good", "the prompt… [+20 characters]")}


def test_an_evaluation_loses_its_explanation_and_its_label() -> None:
    value = Evaluation(
        "l",
        "ab" * 16,
        "t/rollouts",
        "judge",
        0.5,
        "good",
        SECRET,
        "t",
        3,
        "t/step",
        1,
        position=4,
    )

    assert truncate(value, 0) == replace(value, label="", explanation=None)
    assert truncate(value, 10) == replace(
        value, explanation="the prompt… [+20 characters]"
    )


def test_other_traces_lose_text_too_and_rows_and_configs_are_left_alone() -> None:
    trace = PlainTrace(
        "cd" * 16,
        "t",
        "work",
        1,
        9,
        [read_span(span).record() for span in spans()],
        position=2,
    )
    row = Row("m", "t", 1, "t/step", 1, {"loss": 0.5})
    config = Config("c", "t", {"prompt": "x"}, 1)

    assert SECRET not in repr(truncate(trace, 0))
    assert (truncate(row, 0), truncate(config, 0)) == (row, config)


def test_a_span_that_cannot_be_parsed_keeps_its_times_alone() -> None:
    broken = replace(rollout().spans[1], otlp=b"\xff\xff")

    bare = truncate(replace(rollout(), spans=[broken]), 0)

    assert isinstance(bare, RolloutRecord)
    assert bare.spans == [
        replace(
            broken,
            name="execute_tool",
            attributes={},
            input=None,
            output=None,
            otlp=b"",
        )
    ]


def test_media_lose_their_text_and_keep_pictures_and_numbers() -> None:
    words, page = text("0123456789", caption="a caption"), text("<b>0123</b>", "html")
    cells = table(["a", "b", "c"], [["0123456789", 5, {"media": 0}]])
    record = media("all", words, page, image(1, "a caption"), cells, cells=[image(2)])

    cut, none = truncate(record, 4), truncate(record, 0)

    assert isinstance(cut, MediaRecord)
    assert isinstance(none, MediaRecord)
    assert [(one.kind, one.caption) for one in cut.items] == [
        ("text", "a ca… [+5 characters]"), ("image", "a ca… [+5 characters]"), ("table", ""),
    ]  # fmt: skip
    assert cut.items[0].data.decode() == "0123… [+6 characters]"
    assert cut.table(cut.items[2])[1] == [["0123… [+6 characters]", 5, image(2)]]
    assert [(one.kind, one.caption, one.data) for one in none.items[:1]] == [
        ("image", "", image(1).data)
    ]
    assert none.table(none.items[1])[1] == [["", 5, image(2)]]
    assert all(
        one.digest == hashlib.sha256(one.data).hexdigest()
        for one in (*cut.items, *none.items)
    )
