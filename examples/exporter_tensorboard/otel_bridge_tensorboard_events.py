"""Records -> TensorBoard events, framed as in an event file.

A number is a tensor of one double: a `simple_value` would be a float of 32 bits. Source: tensorflow's ``event.proto``,
``summary.proto`` and ``record_writer.cc`` (length, its masked CRC-32C, data, its masked CRC-32C).
"""

from __future__ import annotations

import json
import struct

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboardX.proto.tensor_pb2 import TensorProto
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.proto.types_pb2 import DT_DOUBLE, DT_STRING
from tensorboardX.record_writer import masked_crc32c

from otel_bridge.records import Distribution, Evaluation, RolloutRecord, Row


def version() -> bytes:
    """The first record of every event file."""
    return _framed(Event(wall_time=0.0, file_version="brain.Event:2"))


def of_row(row: Row) -> bytes:
    """Every value of one row, at its own step and time; without a step at its time in whole seconds."""
    step = row.time_unix_ns // 1_000_000_000 if row.step is None else row.step
    values = [_value(_tag(row.role, key), value) for key, value in row.values.items()]
    return _framed(
        Event(
            wall_time=row.time_unix_ns / 1e9, step=step, summary=Summary(value=values)
        )
    )


def of_rollout(rollout: RolloutRecord) -> bytes:
    """One text: the conversation, and what became of it."""
    facts = {
        "id": rollout.id,
        "reward": rollout.reward,
        "group": rollout.group,
        "split": rollout.split,
    }
    talk = "\n\n".join(
        f"**{message.get('role')}**: {message.get('content')}"
        for message in rollout.messages
    )
    return _text(
        _tag(rollout.role, rollout.key),
        f"`{json.dumps(facts)}`\n\n{talk}",
        rollout.step,
        rollout.end_unix_ns,
    )


def of_evaluation(evaluation: Evaluation) -> bytes:
    """One text that names its rollout."""
    facts = {
        "id": evaluation.rollout_id,
        "name": evaluation.name,
        "value": evaluation.value,
        "label": evaluation.label,
    }
    tag = _tag(evaluation.role, f"{evaluation.rollout_key}_late")
    return _text(
        tag,
        f"`{json.dumps(facts)}`\n\n{evaluation.explanation or ''}",
        evaluation.step,
        evaluation.time_unix_ns,
    )


def of_config(shown: str, step: int) -> bytes:
    """A role's config as JSON."""
    return _text("config", f"```\n{shown}\n```", step, 0)


def _tag(role: str | None, key: str) -> str:
    return key.removeprefix(f"{role}/") if role else key


def _value(tag: str, value: object) -> Summary.Value:
    if isinstance(value, Distribution):
        return Summary.Value(
            tag=tag, tensor=_buckets(value), metadata=_metadata("histograms")
        )
    if not isinstance(value, int | float):
        raise TypeError(f"{tag} is {type(value).__name__}, expected a number")
    tensor = TensorProto(dtype=DT_DOUBLE, double_val=[value])
    return Summary.Value(tag=tag, tensor=tensor, metadata=_metadata("scalars"))


def _buckets(held: Distribution) -> TensorProto:
    """Left edge, right edge and count of each bucket, from the smallest number to the largest."""
    edges, counts = list(held.edges), list(held.counts)
    if not counts and held.count:
        edges, counts = [held.min, held.max], [held.count]
    if counts and edges[0] < held.min <= edges[1]:
        edges[0] = held.min
    if counts and edges[-2] <= held.max < edges[-1]:
        edges[-1] = held.max
    numbers = [number for bucket in zip(edges, edges[1:], counts) for number in bucket]  # noqa: B905
    shape = TensorShapeProto(
        dim=[TensorShapeProto.Dim(size=len(counts)), TensorShapeProto.Dim(size=3)]
    )
    return TensorProto(dtype=DT_DOUBLE, tensor_shape=shape, double_val=numbers)


def _text(tag: str, text: str, step: int | None, time_unix_ns: int) -> bytes:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(
        dtype=DT_STRING,
        tensor_shape=shape,
        string_val=[text.encode("utf-8", "replace")],
    )
    value = Summary.Value(tag=tag, tensor=tensor, metadata=_metadata("text"))
    return _framed(
        Event(
            wall_time=time_unix_ns / 1e9, step=step or 0, summary=Summary(value=[value])
        )
    )


def _metadata(plugin: str) -> SummaryMetadata:
    return SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))


def _framed(event: Event) -> bytes:
    data = event.SerializeToString()
    head = struct.pack("<Q", len(data))
    return (
        head
        + struct.pack("<I", masked_crc32c(head))
        + data
        + struct.pack("<I", masked_crc32c(data))
    )
