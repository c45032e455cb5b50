"""Deterministic sample records: rows of several roles, odd values, rollouts with tools, config, evaluations, an end.

Equal arguments give equal records. Times are fixed: step n happens n seconds after `START_UNIX_NS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from otel_bridge import semconv
from otel_bridge.emit.encode.protobuf import Attribute
from otel_bridge.emit.encode.span import span as encoded_span
from otel_bridge.emit.encode.span import span_attributes
from otel_bridge.exporter import RunInfo
from otel_bridge.records import (
    Alert,
    Config,
    Distribution,
    End,
    Evaluation,
    Json,
    Message,
    Record,
    RolloutRecord,
    Row,
    Span,
    Status,
    Value,
    axis_of,
    key_of,
    run_id_of,
)

START_UNIX_NS = 1_760_000_000_000_000_000
SECOND_NS = 1_000_000_000
R = TypeVar("R", Alert, Row, RolloutRecord, Config, Evaluation, End, Record)

ODD_KEYS = (
    "plain",
    "with space",
    # MLflow refuses "@", which becomes "_at_": these two must stay two.
    "a@1",
    "a_at_1",
    # MLflow refuses repeated slashes, and ".." and "/" at the ends: it reads names as paths.
    "loss//mean",
    "loss/mean",
    "/leading",
    "trailing/",
    "../up",
    "dots...",
    "percent%",
    "quotes\"'`",
    "brackets[0]{x}",
    "ünïcödé-β",
    "emoji-🚀",
    "tab\tand\nnewline",
    # Names of the trackers' own columns: Trackio's "step" and "timestamp", W&B's "_step".
    "step",
    "_step",
    "timestamp",
    # Longer than the 250 characters of a name in MLflow, and equal up to there.
    "k" * 300,
    "k" * 299 + "j",
)
"""Keys that one tracker or another refuses, cleans, or takes for its own; all distinct."""


def run_info(
    folder: Path, name: str = "ppo-7b", *, project: str = "gsm8k", **changes: object
) -> RunInfo:
    """Return a run whose folder is ``folder / <run id>``.

    *changes* are further fields of `RunInfo`.
    """
    run_id = run_id_of(project, name)
    info = RunInfo(id=run_id, project=project, name=name, folder=folder / run_id)
    return dataclasses.replace(info, **changes)  # type: ignore[arg-type]  # callers name RunInfo's own fields


def placed(records: Iterable[R], first: int = 1) -> list[R]:
    """Return *records* with positions *first*, *first* + 1, …, as the ledger gives them."""
    return [
        dataclasses.replace(record, position=position)
        for position, record in enumerate(records, first)
    ]


def row(
    step: int | None,
    values: Mapping[str, Value] | None = None,
    *,
    role: str | None = "trainer",
    attempt: int = 1,
    position: int = 0,
) -> Row:
    """Return the row of one ``log()`` call.

    *values* are without the role's prefix, by default one loss.
    """
    row_values = {"loss": 1.0 / (1 + abs(step or 0))} if values is None else values
    axis = None if step is None else axis_of(role)
    return Row(
        # With the attempt: the rows of a restarted process are other rows.
        id=f"m:{role}-{attempt}:{'none' if step is None else step}",
        role=role,
        step=step,
        axis=axis,
        # An attempt is far behind the one before, so that steps that come again have other times.
        time_unix_ns=START_UNIX_NS + ((step or 0) + 1000 * (attempt - 1)) * SECOND_NS,
        values={key_of(role, key): value for key, value in row_values.items()},
        steps={} if axis is None or step is None else {axis: step},
        attempt=attempt,
        position=position,
    )


def rows(
    count: int, *, keys: int = 10, role: str | None = "trainer", first_step: int = 1
) -> list[Row]:
    """Return *count* rows of *keys* floats each, steps *first_step* …, not yet placed."""
    counted: list[Row] = []
    for step in range(first_step, first_step + count):
        values: dict[str, Value] = {}
        for n in range(keys):
            values[f"metric_{n:02d}"] = step + n / 16
        counted.append(row(step, values, role=role))
    return counted


def loss_rows(steps: Iterable[int], offset: float = 0.0, attempt: int = 1) -> list[Row]:
    """Return a row for each of *steps* whose loss is the step plus *offset*, not yet placed."""
    return [row(step, {"loss": step + offset}, attempt=attempt) for step in steps]


def odd_key_values(offset: float = 0.0) -> dict[str, float]:
    """Return `ODD_KEYS` with *offset*, *offset* + 1, …: no two keys have the same value."""
    return {key: offset + number for number, key in enumerate(ODD_KEYS)}


def distribution() -> Distribution:
    """Return ten numbers in three buckets."""
    return Distribution(
        count=10,
        sum=25.0,
        min=0.5,
        max=5.5,
        edges=(0.0, 2.0, 4.0, 6.0),
        counts=(4, 3, 3),
    )


def odd_values() -> Row:
    """Return a row of ints, a big int, infinities, ``nan`` and the largest and smallest floats."""
    return row(
        7,
        {
            "int": 3,
            "zero": 0,
            # From here on a double does not hold each integer.
            "big": 2**53,
            "negative": -1.5,
            # MLflow stores an infinity as 1.797e308, Trackio all three as texts.
            "nan": math.nan,
            "inf": math.inf,
            "minus_inf": -math.inf,
            # The smallest number of a double, which a tracker that rounds would show as 0.
            "tiny": 5e-324,
            "huge": 1e300,
        },
    )


def conversation(n: int = 0) -> list[Message]:
    """Return five messages in OpenAI's chat shape: a question, a tool call, its result, an answer."""
    call: Json = {
        "id": f"call_{n}",
        "type": "function",
        "function": {
            "name": "calculator",
            "arguments": json.dumps({"expression": f"{n} + 1"}),
        },
    }
    return [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": f"What is {n} + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": str(n + 1), "tool_call_id": f"call_{n}"},
        {"role": "assistant", "content": f"It is {n + 1}."},
    ]


def rollout(
    n: int = 0,
    *,
    step: int = 1,
    role: str | None = "explorer",
    reward: float | None = 0.75,
    rewards: Mapping[str, float] | None = None,
    error: str | None = None,
    seed: str = "",
) -> RolloutRecord:
    """Return rollout *n*: two chat turns and a tool call under a root.

    Ids are made of *n*, *step*, *role*, *seed*.
    """
    trace_id = _hex(f"trace {n} {step} {role} {seed}", 32)
    start = START_UNIX_NS + step * SECOND_NS + n * 1_000_000
    messages = conversation(n)
    spans = _spans(trace_id, start, messages, reward=reward, step=step, error=error)
    axis = axis_of(role)
    return RolloutRecord(
        id=trace_id,
        role=role,
        key=key_of(role, "rollouts"),
        step=step,
        axis=axis,
        start_unix_ns=start,
        end_unix_ns=spans[0].end_unix_ns,
        messages=messages,
        spans=spans,
        split="train",
        group=f"p{n // 4}",
        sample=n % 4,
        prompt_index=n // 4,
        batch_index=n,
        reward=reward,
        rewards={"format": 0.25, "answer": 0.5} if rewards is None else rewards,
        advantage=0.125,
        finish_reason="stop",
        policy_version=step,
        dataset="gsm8k",
        dataset_index=100 + n,
        tools={"calls": 1, "errors": 0},
        metadata={"difficulty": "easy", "temperature": 0.7},
        error=error,
        steps={axis: step},
    )


def evaluation(
    of: RolloutRecord,
    value: float | None = 0.5,
    *,
    name: str = "judge",
    label: str | None = None,
) -> Evaluation:
    """Return a value for the rollout *of* that came after it was written."""
    return Evaluation(
        id=f"l:verifier:{of.id[:8]}-{name}",
        rollout_id=of.id,
        rollout_key=of.key,
        name=name,
        value=value,
        label=label,
        explanation="checked by the judge",
        role=of.role,
        step=of.step,
        axis=of.axis,
        # After the end of its rollout: a value that is there by then is part of the rollout itself.
        time_unix_ns=of.end_unix_ns + SECOND_NS,
    )


def config(role: str | None = "trainer", **values: Json) -> Config:
    """Return a merged config; without *values* a nested one."""
    entries: dict[str, Json] = values or {
        "lr": 0.001,
        "actor": {"layers": 2, "name": "tiny"},
        "seed": 7,
    }
    return Config(
        id=f"c:{role}:{len(entries)}",
        role=role,
        config=entries,
        time_unix_ns=START_UNIX_NS,
    )


def alert(number: int, title: str = "kl too large", level: str = "warn") -> Alert:
    """Return an alert of the trainer."""
    time_unix_ns = START_UNIX_NS + number * SECOND_NS
    return Alert(
        f"a:i1:{number}",
        "trainer",
        title,
        f"step {number}",
        level,
        number,
        time_unix_ns,
    )


def end(status: Status = Status.FINISHED) -> End:
    """Return the end of the run."""
    return End(
        id="e:1", status=status, time_unix_ns=START_UNIX_NS + 100_000 * SECOND_NS
    )


def job(steps: int = 3, *, seed: str = "") -> list[Record]:
    """Return a small whole job, placed: configs, rows of two roles and of none, rollouts, an evaluation, the end.

    *seed* goes into the trace ids: they are unique in a whole tracker, not only in a run.
    """
    records: list[Record] = [
        config("trainer"),
        config("explorer", temperature=0.7),
        config(None, launcher="local"),
    ]
    for step in range(1, steps + 1):
        records += [
            row(step, {"loss": 1 / step, "grad": distribution()}),
            row(
                step * 2,
                {"reward/mean": step / 8, "length": step * 100},
                role="explorer",
            ),
            row(step, {"wall_s": step * 1.5}, role=None),
            rollout(0, step=step, seed=seed),
            rollout(1, step=step, reward=None, rewards={}, seed=seed),
        ]
    records.append(odd_values())
    records.append(evaluation(rollout(0, step=1, seed=seed)))
    records.append(end())
    return placed(records)


def _spans(
    trace_id: str,
    start: int,
    messages: Sequence[Message],
    *,
    reward: float | None,
    step: int,
    error: str | None,
) -> list[Span]:
    """Return the spans of a rollout: root, a model call, a tool call, a second model call."""
    root_id = _hex(f"{trace_id} root", 16)
    root_attributes: dict[str, Json] = {semconv.STEP: step, semconv.SPLIT: "train"}
    if reward is not None:
        root_attributes[semconv.REWARD] = reward

    def span(number: int, begin_s: float, end_s: float, **fields: Any) -> Span:
        span_id = _hex(f"{trace_id} {number}", 16) if number else root_id
        times = (start + int(begin_s * SECOND_NS), start + int(end_s * SECOND_NS))
        fields.setdefault("parent_id", root_id)
        return _with_otlp(
            trace_id,
            Span(id=span_id, start_unix_ns=times[0], end_unix_ns=times[1], **fields),
        )

    chat = {
        "name": "chat policy",
        "kind": "generation",
        "attributes": {
            semconv.GEN_AI_OPERATION: semconv.OPERATION_CHAT,
            semconv.GEN_AI_REQUEST_MODEL: "policy",
        },
        "model": "policy",
        "input_tokens": 12,
        "output_tokens": 5,
    }
    tool = {
        "name": "execute_tool calculator",
        "kind": "tool",
        "attributes": {
            semconv.GEN_AI_OPERATION: semconv.OPERATION_TOOL,
            semconv.GEN_AI_TOOL_NAME: "calculator",
        },
    }
    root = {"name": "rollout", "kind": "span", "parent_id": None, "error": error}
    system, question, call, result, answer = messages
    return [
        span(0, 0, 4, **root, attributes=root_attributes, input=[system, question, call, result], output=[answer]),
        span(1, 1, 1.5, **chat, input=[system, question], output=[call]),
        span(2, 2, 3, **tool, input={"expression": "0 + 1"}, output=result["content"]),
        span(3, 3, 3.5, **chat, input=[result], output=[answer]),
    ]  # fmt: skip


def _with_otlp(trace_id: str, span: Span) -> Span:
    """Give *span* the bytes in which it came, which MLflow's writer sends on."""
    if span.kind == "tool":
        content = {
            semconv.GEN_AI_TOOL_ARGUMENTS: json.dumps(span.input),
            semconv.GEN_AI_TOOL_RESULT: str(span.output),
        }
    else:
        content = {
            semconv.GEN_AI_INPUT_MESSAGES: _parts_json(span.input),
            semconv.GEN_AI_OUTPUT_MESSAGES: _parts_json(span.output),
        }
    attributes = cast("dict[str, Attribute]", {**span.attributes, **content})
    otlp = encoded_span(
        (
            bytes.fromhex(trace_id),
            bytes.fromhex(span.id),
            bytes.fromhex(span.parent_id) if span.parent_id else None,
        ),
        span.name,
        (span.start_unix_ns, span.end_unix_ns),
        span_attributes(attributes.items()),
        error=span.error,
    )
    return dataclasses.replace(span, otlp=otlp)


def _parts_json(messages: Json) -> str:
    """Return chat messages as the GenAI conventions put them: ``[{"role", "parts": [{"type": "text", …}]}]``."""
    converted: list[Json] = []
    for message in cast("list[Message]", messages):
        part: Json = {"type": "text", "content": message.get("content") or ""}
        converted.append({"role": message["role"], "parts": [part]})
    return json.dumps(converted)


def _hex(name: str, digits: int) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()[:digits]
