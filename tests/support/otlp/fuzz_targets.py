"""What must hold for any bytes: one function a target, and the inputs that fuzzing begins with.

A target takes bytes and returns; the one error that may leave what it calls is the error by which input is refused,
with a reason. Used by ``tests/fuzz``, with coverage guidance and without.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from zlib import crc32

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message

from otel_bridge.bridge.ledger.codec import decode, decode_value, encode, encode_value
from otel_bridge.errors import FormatVersionError, InvalidRecordError
from otel_bridge.journal import header as header_format
from otel_bridge.journal.frames import MAGIC, Signal, encode_frame, scan, start_of
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.segment import read_segment
from otel_bridge.records import Record
from otel_bridge.translation.decode.resources import attributes_of, run_of
from otel_bridge.translation.options import OtherTraces, TranslationOptions
from otel_bridge.translation.translator import SegmentInfo, Translator
from otel_bridge_collector.error_table import TooLargeError, answer_to
from otel_bridge_collector.export_request import REQUESTS, count_items, parts
from otel_bridge_collector.http.inflate import inflated, inflated_message
from otel_bridge_collector.http.json_request import message_of
from support.otlp.golden_cases import FOLDER as GOLDEN
from support.otlp.journal_samples import HEADER
from support.otlp.memory_state import MemoryState
from support.otlp.otlp_samples import T0, source

_SIGNALS = (Signal.METRICS, Signal.TRACES, Signal.LOGS)
_ENCODINGS = ("", "gzip", "deflate")
_LIMIT_BYTES = 1 << 20
_SCRATCH = Path(tempfile.gettempdir())
_SEGMENT = f"fuzz{os.getpid()}-000001"


def refused(error: Exception) -> None:
    """A refusal says why, and is final for the client."""
    answer = answer_to(error)
    assert str(error)
    assert answer.message
    assert not answer.retry
    assert answer.http_status in {400, 413, 415}


def protobuf(data: bytes) -> None:
    """The receiver's way of a protobuf request: inflate, parse, find the resources, tell the run.

    The first byte says signal and encoding.
    """
    signal, encoding = (
        _SIGNALS[data[0] % 3] if data else _SIGNALS[0],
        _ENCODINGS[data[0] // 3 % 3] if data else "",
    )
    body = data[1:]
    try:
        body = inflated(body, encoding, _LIMIT_BYTES)
        body = inflated_message(body, _LIMIT_BYTES)
    except (InvalidRecordError, TooLargeError) as exc:
        refused(exc)
        return
    assert len(body) <= _LIMIT_BYTES
    try:
        request = REQUESTS[signal].FromString(body)
    except DecodeError:
        return
    try:
        found = list(parts(body))
    except InvalidRecordError as exc:  # groups, which protobuf passes over
        refused(exc)
        return
    joined = REQUESTS[signal].FromString(b"".join(part for _, part in found))
    request.DiscardUnknownFields()
    joined.DiscardUnknownFields()
    assert joined.SerializeToString(deterministic=True) == request.SerializeToString(
        deterministic=True
    )
    for resource, part in found:
        identity = run_of(attributes_of(resource))
        assert identity.id
        assert count_items(REQUESTS[signal].FromString(part)) >= 0


def json_body(data: bytes) -> None:
    """The receiver's way of a JSON request; what it takes is the same message once more as JSON. First byte: signal."""
    signal = _SIGNALS[data[0] % 3] if data else _SIGNALS[0]
    try:
        message: Message = message_of(REQUESTS[signal], data[1:])
    except InvalidRecordError as exc:
        refused(exc)
        return
    body = message.SerializeToString(deterministic=True)
    assert len(body) <= 16 * len(data) + 64  # nothing small becomes large
    again = message_of(REQUESTS[signal], otlp_json(message))
    assert again.SerializeToString(deterministic=True) == body


def segment(data: bytes) -> None:
    """A segment file of any bytes, read whole and piece by piece: the same frames, all bytes accounted for.

    With an odd first byte the rest becomes a segment whose checksums hold, since guessing them leads nowhere.
    """
    path = _SCRATCH / f"{_SEGMENT}.seg"
    data = _checked_segment(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    path.write_bytes(data)
    try:
        try:
            header, whole = read_segment(path, 0, limit_bytes=1 << 30, final=True)
        except FormatVersionError:
            return
        assert header is None or SegmentHeader.from_bytes(header.to_bytes()) == header
        assert whole.end == len(data)
        pieces, offset = [], 0
        while offset < len(data):
            _, found = read_segment(path, offset, limit_bytes=64, final=True)
            assert found.end > offset
            pieces += found.frames
            offset = found.end
        assert [(one.offset, one.payload) for one in pieces] == [
            (one.offset, one.payload) for one in whole.frames
        ]
        assert sum(
            one.end - one.offset for one in whole.frames
        ) + whole.gap_bytes <= len(data)
    finally:
        path.unlink()
    assert scan(data, 0, final=False, start=start_of(_SEGMENT)).end <= len(data)


def _checked_segment(data: bytes) -> bytes:
    """A header of the first part of *data*, then a frame or bad bytes of each further part."""
    found = b""
    starts = (start_of(_SEGMENT), start_of("another"))
    for number, (what, payload) in enumerate(_frames(data)):
        if number == 0 and what & 1:
            checked = header_format._CHECKED.pack(what >> 4, len(payload))
            crc = crc32(payload, crc32(checked))
            found += (
                header_format._PREFIX.pack(
                    header_format.HEADER_MAGIC, what >> 4, len(payload), crc
                )
                + payload
            )
        elif what & 128:
            found += payload
        else:
            found += encode_frame(
                what & 3,
                payload,
                T0,
                whole=bool(what & 4),
                start=starts[bool(what & 64)],
            )
    return found


def translation(data: bytes) -> None:
    """Frames of any bytes through translation: records and state that the ledger can keep, and an end.

    The input is a list of frames: a byte (signal, whole, which source, a second or an hour on), two of length, bytes.
    """
    state = MemoryState()
    translator = Translator(
        state,
        TranslationOptions(max_open_traces=8, seen_limit=64),
        other_traces=lambda: OtherTraces.SHOWN,
    )
    now_ns = T0
    records: list[Record] = []
    for what, payload in _frames(data):
        now_ns += 3_600_000_000_000 if what & 64 else 1_000_000_000
        sender = _SOURCES[what >> 3 & 3]
        translator.opened(sender, now_ns)
        records += translator.frame(
            sender, what & 3, payload, bool(what & 4), now_ns, now_ns
        )
        if what & 128:
            records += translator.tick(now_ns)
    records += translator.tick(now_ns + 3_600_000_000_000)
    records += translator.close(now_ns + 7_200_000_000_000)
    translator.flush()
    for position, record in enumerate(records, 1):
        kind, kept = encode(record)
        assert encode(decode(kind, kept, position)) == (kind, kept)
    for key, value in state.items(""):
        key.encode()
        assert encode_value(decode_value(encode_value(value))) == encode_value(value)
    # Times of one frame are far apart at most once: what is kept stands in proportion to what came.
    assert (
        sum(len(encode(record)[1]) for record in records) <= 4_000 * len(data) + 100_000
    )


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "protobuf": protobuf,
    "json": json_body,
    "segment": segment,
    "translation": translation,
}

_SOURCES: tuple[SegmentInfo, ...] = (
    source("i1"),
    source("i2", "explorer"),
    SegmentInfo("receiver-1", "receiver", b""),
    SegmentInfo("bridge-1", "bridge", b""),
)


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 3 <= len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "big")
        yield data[at], data[at + 3 : at + 3 + length]
        at += 3 + length


def otlp_json(message: Message) -> bytes:
    """The message as OTLP/JSON: ids in hex, enums as numbers."""
    plain = MessageToDict(message, use_integers_for_enums=True)
    return json.dumps(_hex_ids(plain)).encode()


def _hex_ids(value: object) -> object:
    import base64

    if isinstance(value, dict):
        ids = {"traceId", "spanId", "parentSpanId"}
        return {
            k: base64.b64decode(v).hex()
            if k in ids and isinstance(v, str)
            else _hex_ids(v)
            for k, v in value.items()
        }
    return [_hex_ids(each) for each in value] if isinstance(value, list) else value


# --- what fuzzing begins with -----------------------------------------------------------------------------------------
def seeds(target: str) -> list[bytes]:
    """The first inputs of a target, of the golden cases."""
    return {
        "protobuf": _protobuf_seeds,
        "json": _json_seeds,
        "segment": _segment_seeds,
        "translation": _frame_seeds,
    }[target]()


def _golden() -> Iterator[list[Mapping[str, object]]]:
    for path in sorted(GOLDEN.glob("*.json")):
        acts = json.loads(path.read_text("utf-8"))["in"]
        yield [act for act in acts if act["act"] == "frame"]


def _requests() -> Iterator[tuple[int, bytes]]:
    for acts in _golden():
        for act in acts:
            if act["whole"]:
                yield int(str(act["signal"])), bytes.fromhex(str(act["payload"]))


def _protobuf_seeds() -> list[bytes]:
    found = []
    for signal, body in _requests():
        which = signal - 1
        found += [
            bytes([which]) + body,
            bytes([which + 3]) + gzip.compress(body, mtime=0),
        ]
        found.append(bytes([which + 6]) + zlib.compress(body))
    return found


def _json_seeds() -> list[bytes]:
    return [
        bytes([signal - 1]) + otlp_json(REQUESTS[_SIGNALS[signal - 1]].FromString(body))
        for signal, body in _requests()
    ]


def _segment_seeds() -> list[bytes]:
    head = HEADER.to_bytes()[header_format._PREFIX.size :]
    begun = bytes([17]) + len(head).to_bytes(2, "big") + head
    found = [b"\0" + HEADER.to_bytes() + MAGIC, b"\1" + begun]
    for data in _frame_seeds():
        found += [b"\1" + begun + data, b"\1" + begun + data + b"\x80\0\4" + MAGIC[:4]]
    return found


def _frame_seeds() -> list[bytes]:
    found = []
    for acts in _golden():
        data = b""
        for number, act in enumerate(acts):
            payload = bytes.fromhex(str(act["payload"]))
            what = (
                int(str(act["signal"]))
                | 4 * bool(act["whole"])
                | (8 * (number % 2))
                | (16 * bool(act["whole"]))
            )
            data += bytes([what]) + len(payload).to_bytes(2, "big") + payload
        found.append(data)
    return found
