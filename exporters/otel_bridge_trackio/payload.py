"""Records -> Trackio's payloads: rows as flat dicts, rollouts as trace payloads. Pure.

Source: ``Trace._to_dict`` in trackio/trace.py, ``Histogram._to_dict`` in trackio/histogram.py, and
the keys that the dashboard reads (frontend/src/lib/traceUtils.js): times as ISO 8601,
``usage.input_tokens`` on generations only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import TypeAlias, cast

from otel_bridge.otlp.json_text import utf8_leaf, with_leaves
from otel_bridge.records import (
    AXIS,
    Distribution,
    Evaluation,
    Json,
    Message,
    PlainTrace,
    RolloutRecord,
    Row,
    Span,
)
from otel_bridge.values.mappings import present, without

Payload: TypeAlias = dict[str, Json]

RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
"""Names that the dashboard overwrites when it reads; Trackio's own `Run.log` renames such keys in
the same way."""
LATE_VALUES = "late_values"
"""Name in the metadata of a trace: names of the values that came after it was written."""
_PREVIEW_CHARS = 200
"""Most characters of an answer in the list of traces."""


def timestamp(time_unix_ns: int) -> str:
    """Return *time_unix_ns* as ISO 8601 in UTC, microseconds kept."""
    seconds, nanoseconds = divmod(time_unix_ns, 1_000_000_000)
    return f"{_second(seconds)}.{nanoseconds // 1000:06d}+00:00"


@lru_cache(maxsize=16)
def _second(unix_s: int) -> str:
    # Cached: most rows of a batch share their second, and a datetime costs as much as the rest of a
    # row.
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


def row_metrics(row: Row, *, all_series: bool = False) -> Payload:
    """Return the metrics of one row.

    Trackio's own step is the row's, so that a step axis beside it would only be one more chart: a
    zigzag, since the rows of all roles carry it.

    Args:
        row: The row.
        all_series: Whether the row also gets every known step axis and the numbers of rollouts.
    """
    metrics: Payload = {}
    values = row.charted_values
    if all_series:
        values = row.values
        metrics |= step_axes(row.steps)
    # Hot path: most rows have numbers alone, and no name of theirs has to be changed.
    if _plain(tuple(row.steps), tuple(values)) and Distribution not in map(
        type, values.values()
    ):
        return {**metrics, **cast("Payload", values)}
    for key, value in values.items():
        stored_key = _stored_key(key, row)
        if isinstance(value, Distribution):
            metrics[stored_key] = histogram(value)
        else:
            metrics[stored_key] = value
    return metrics


def step_axes(steps: Mapping[str, int]) -> dict[str, int]:
    """Return the steps of *steps* that stand beside Trackio's own step, which is that of a row without a role."""
    return without(steps, {AXIS})


def _stored_key(key: str, row: Row) -> str:
    """Return the name of a value: with ``__`` in front if it is Trackio's own name, or that of an axis."""
    # A key with the name of an axis is stored beside the axis, under the same name where no axis is
    # written; others are renamed as Trackio's own log() does.
    if key in RESERVED or key.startswith("__") or key in row.steps:
        return f"__{key}"
    return key


@lru_cache(maxsize=256)
def _plain(axes: tuple[str, ...], keys: tuple[str, ...]) -> bool:
    """Return whether no name of a row has to be changed."""
    # Cached: the same few sets of names recur, and checking each key each time would be a fifth of
    # a row's cost.
    taken_names = RESERVED.union(axes)
    return taken_names.isdisjoint(keys) and not any(
        key.startswith("__") for key in keys
    )


def histogram(value: Distribution) -> Payload:
    """Return *value* as Trackio's histogram."""
    counts, edges = value.closed_bins()
    return {"_type": "trackio.histogram", "bins": [*edges], "values": [*counts]}


def rollout_trace(rollout: RolloutRecord, *, spans: bool = True) -> Payload:
    """Return *rollout* as a payload of ``trackio.Trace``.

    Unless *spans*, its spans are JSON text in its metadata: a Trackio below 0.37 drops them
    elsewhere.
    """
    trace: Payload = {
        "_type": "trackio.trace",
        "messages": _previewed(rollout.messages),
        "metadata": _metadata(rollout),
    }
    return _with_spans(trace, rollout.spans, timed=rollout.timed, as_spans=spans)


def _with_spans(
    trace: Payload, spans: Sequence[Span], *, timed: bool, as_spans: bool
) -> Payload:
    """Return *trace* with *spans*: as such, or for a Trackio below 0.37 as text in its metadata."""
    stored_spans: list[Json] = [_span(span, timed=timed) for span in spans]
    if as_spans:
        return {**trace, "spans": stored_spans}
    metadata = cast("Payload", trace["metadata"])
    # ASCII, because a lone surrogate in a text must not lose the whole trace.
    return {**trace, "metadata": {**metadata, "spans": json.dumps(stored_spans)}}


def _previewed(messages: Sequence[Message]) -> list[Json]:
    """Return *messages*, of which the list of traces shows the text of the first assistant turn below the question.

    A turn that only calls tools has none. It gets a part of its own type that holds the beginning
    of the last answer.
    """
    previewed: list[Json] = [*messages]
    first = None
    answer = ""
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        if first is None:
            first = index
        content = message.get("content")
        if isinstance(content, str) and content.strip():
            answer = content
    if first is not None and answer and _is_blank(messages[first].get("content")):
        part: Payload = {
            "type": "preview_of_the_answer",
            "text": answer[:_PREVIEW_CHARS],
        }
        previewed[first] = {**messages[first], "content": [part]}
    return previewed


def _is_blank(content: Json) -> bool:
    """Return whether *content* shows nothing: many models write an empty line before a call of a tool."""
    return not content.strip() if isinstance(content, str) else not content


def evaluation_trace(evaluation: Evaluation) -> Payload:
    """Return *evaluation* as a separate trace that names the rollout, for a store whose traces cannot be changed.

    The list of traces shows its text as the question, and name and value as its status. It has a
    value or a label: the bridge refuses an event without both.
    """
    outcome = evaluation.label
    if evaluation.value is not None:
        outcome = f"{evaluation.value:g}"
        if evaluation.label:
            outcome += f" ({evaluation.label})"
    status = f"{evaluation.name} {outcome}"
    text = f"{evaluation.name} = {outcome} for rollout {evaluation.rollout_id}"
    if evaluation.explanation:
        text += f": {evaluation.explanation}"
    metadata: Payload = {
        "rollout_id": evaluation.rollout_id,
        "name": evaluation.name,
        "value": evaluation.value,
        "step": evaluation.step,
        "status": status,
    }
    if evaluation.label:
        metadata["label"] = evaluation.label
    return {
        "_type": "trackio.trace",
        # A message of another role would be "(no user message)" in the list.
        "messages": [{"role": "user", "content": text}],
        "metadata": metadata,
        "spans": [],
    }


def late_spans(trace: PlainTrace, *, spans: bool) -> Payload:
    """Return spans of a stored rollout as a separate trace that names it, in the form of `rollout_trace`.

    A stored trace cannot get more spans.
    """
    content = f"{len(trace.spans)} more spans of rollout {trace.id}"
    payload: Payload = {
        "_type": "trackio.trace",
        # As above: any other role would be listed as "(no user message)".
        "messages": [{"role": "user", "content": content}],
        "metadata": {"rollout_id": trace.id, "step": trace.step},
    }
    return _with_spans(payload, trace.spans, timed=True, as_spans=spans)


def _metadata(rollout: RolloutRecord) -> Payload:
    """Return the facts of *rollout* that have a value, and the user's metadata.

    A user's key with the name of a fact becomes ``metadata.<key>``, also of a fact without a value,
    so that a key means the same in each trace.
    """
    facts = _facts(rollout)
    metadata: Payload = {**present(facts)}
    for key, value in rollout.metadata.items():
        # The user's status is the fact of that name already.
        if key != "status":
            metadata[f"metadata.{key}" if key in facts else key] = value
    return metadata


def _facts(rollout: RolloutRecord) -> dict[str, Json]:
    """Return all facts of *rollout* by their names in the metadata.

    ``None`` for one without a value.
    """
    return {
        # The list of traces shows this text; it has no column for a role or a reward.
        "status": rollout.metadata.get("status")
        or status_text(bool(rollout.error), rollout.role, rollout.reward),
        "step": rollout.step,
        "split": rollout.split,
        "group": rollout.group,
        "sample": rollout.sample,
        "reward": rollout.reward,
        "rewards": {**rollout.rewards} or None,
        "advantage": rollout.advantage,
        "finish_reason": rollout.finish_reason,
        "policy_version": rollout.policy_version,
        "staleness": rollout.staleness,
        "trajectory_id": rollout.trajectory_id,
        "prompt_index": rollout.prompt_index,
        "batch_index": rollout.batch_index,
        "dataset": rollout.dataset,
        "dataset_index": rollout.dataset_index,
        "tools": {**rollout.tools} or None,
        "error": rollout.error,
        "incomplete": rollout.incomplete or None,
        "clipped_bytes": rollout.clipped_bytes or None,
        # No fact yet; here so that metadata of this name does not take its place.
        LATE_VALUES: None,
        # Below 0.37, see `_with_spans`.
        "spans": None,
        "role": rollout.role,
        "trace_id": rollout.id,
    }


def status_text(is_error: bool, role: str | None, reward: float | None) -> str | None:
    """Return the text of the column of states: "error", or the role and the reward.

    ``None`` without both.
    """
    if is_error:
        return "error"
    parts: list[str] = []
    if role:
        parts.append(role)
    if reward is not None:
        parts.append(f"reward {reward:.4g}")
    return " · ".join(parts) or None


def _span(span: Span, *, timed: bool) -> Payload:
    """Return *span* as Trackio stores one; without times if they were not measured (*timed*)."""
    payload: Payload = {
        "id": span.id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "start_time": timestamp(span.start_unix_ns),
        "status": "error" if span.error else "success",
        "input": span.input,
        "output": span.output,
        "metadata": {**span.attributes},
    }
    if timed:
        payload["end_time"] = timestamp(span.end_unix_ns)
        payload["duration_ms"] = max(span.end_unix_ns - span.start_unix_ns, 0) / 1e6
    if span.error:
        payload["error"] = span.error
    if span.kind == "generation":
        payload["model"] = span.model
        tokens = {
            "input_tokens": span.input_tokens,
            "output_tokens": span.output_tokens,
        }
        payload["usage"] = {**present(tokens)}
    return payload


def encodable(payload: Payload) -> Payload:
    """Return *payload* with every text valid as UTF-8: a lone surrogate becomes ``?``."""
    return cast("Payload", with_leaves(payload, utf8_leaf))
