"""Converts segment headers to bytes and back. A header is the first frame of every segment.

It has the process, its run and its destinations. The prefix (magic, format, length, CRC-32) is the
same in all formats, so that an older reader can distinguish a newer segment from a damaged one. The
body is JSON; fields that this version does not know are ignored.
"""

from __future__ import annotations

import base64
import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, cast
from zlib import crc32

import orjson

from otel_bridge.errors import FormatVersionError, InvalidRecordError
from otel_bridge.journal.machine import start_ticks, this_host
from otel_bridge.otlp.json_text import utf8

FORMAT = 1
HEADER_MAGIC = b"\xffOBSEG\r\n"
"""First bytes of a segment. 0xFF does not occur in UTF-8; the line end reveals a copy made in text mode."""
MAX_HEADER_BYTES = 16 << 20
"""Most bytes of a header's body; what claims to be longer is damaged."""

_PREFIX = struct.Struct("<8sIII")
_CHECKED = struct.Struct("<II")
_NO_EXPORTERS: Mapping[str, tuple[str, ...]] = {}
_NO_DESTINATIONS: Mapping[str, Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Describes a segment and the process that writes it.

    Attributes:
        instance_id: The writing process (a forked child has its own).
        kind: ``process`` (emission), ``receiver``, ``bridge`` (the bridge's own records) or
            ``launcher``.
        resource: Serialised ``opentelemetry.proto.resource.v1.Resource`` of the records; empty for
            receivers.
        exporters: Signal (``metrics``, ``traces``, ``logs``) to the requested exporters.
        destinations: Exporter to the variables that define where it delivers: absolute, no
            credentials.
        start_ticks: Start of the process, as `otel_bridge.journal.machine.start_ticks` returns it.
        started_unix_ns: Time at which the process joined the run, by the wall clock; the same in
            all of its segments.
        started_monotonic_ns: The same time by the machine's monotonic clock, comparable under one
            *boot_id* only; 0: unknown.
        number: Number among the segments of its process, from 0.
        hold: Whether no bridge shall be started for it; ``otel-bridge drain`` delivers.
        system_metrics_s: Interval at which the bridge of this machine measures the system, in
            seconds; 0 for never.
        scrape: Addresses of engines whose metrics the bridge of this machine reads.
        scrape_s: Interval of that, in seconds.
        message_content: Exporter to its content policy, where that is less than all text:
            ``{"wandb": "off"}``.
        generated: Those of ``project`` and ``run_name`` that were generated.
        launcher: Mark of the ``otel-bridge run`` whose child the process is; empty without one.
    """

    instance_id: str
    run_id: str
    project: str
    run_name: str
    kind: str
    resource: bytes = field(repr=False)
    exporters: Mapping[str, tuple[str, ...]]
    destinations: Mapping[str, Mapping[str, str]]
    host: str
    boot_id: str
    pid: int
    start_ticks: int
    created_unix_ns: int
    started_unix_ns: int = 0
    started_monotonic_ns: int = 0
    number: int = 0
    format: int = FORMAT
    role: str | None = None
    hold: bool = False
    launcher: str = ""
    system_metrics_s: float = 0.0
    scrape: tuple[str, ...] = ()
    scrape_s: float = 0.0
    message_content: Mapping[str, str] = field(default_factory=dict[str, str])
    generated: tuple[str, ...] = ()

    @classmethod
    def of_this_process(
        cls,
        kind: str,
        instance_id: str,
        *,
        run_id: str,
        project: str,
        run_name: str,
        resource: bytes = b"",
        generated: tuple[str, ...] = (),
    ) -> SegmentHeader:
        """Return the header of a segment that this process writes for itself.

        It requests no exporter.

        It is for the records of a bridge, a receiver or a launcher.
        """
        host = this_host()
        pid = os.getpid()
        started_ns = time.time_ns()
        return cls(
            instance_id=instance_id,
            run_id=run_id,
            project=project,
            run_name=run_name,
            kind=kind,
            resource=resource,
            exporters=_NO_EXPORTERS,
            destinations=_NO_DESTINATIONS,
            host=host.name,
            boot_id=host.boot_id,
            pid=pid,
            start_ticks=start_ticks(pid),
            created_unix_ns=started_ns,
            started_unix_ns=started_ns,
            started_monotonic_ns=time.monotonic_ns(),
            generated=generated,
        )

    def to_bytes(self) -> bytes:
        """Return the whole header frame."""
        values = {name: _storable(getattr(self, name)) for name in _STORED}
        body = orjson.dumps(values)
        crc = crc32(body, crc32(_CHECKED.pack(self.format, len(body))))
        return _PREFIX.pack(HEADER_MAGIC, self.format, len(body), crc) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentHeader:
        """Return the header at the start of *data*; the bytes after it are not read.

        Fields that are missing have their default, and unknown ones are ignored, so that versions
        of one format read each other.

        Raises:
            InvalidRecordError: The header is unfinished or damaged.
            FormatVersionError: A newer version wrote the header.
        """
        end = header_end(data)
        if end is None:
            raise InvalidRecordError(
                f"{len(data)} bytes that do not begin with a whole segment header; the segment is damaged or unfinished"
            )
        version = cast("int", _PREFIX.unpack_from(data)[1])
        # Before the body, whose shape only the newer version knows.
        if version > FORMAT:
            raise FormatVersionError(
                f"segment of format {version}, this version reads up to {FORMAT}; upgrade otel-bridge to read it"
            )
        try:
            body = cast("dict[str, object]", orjson.loads(data[_PREFIX.size : end]))
            values: dict[str, Any] = {}
            for name, read in _STORED.items():
                if name in body:
                    values[name] = read(body[name])
            return cls(**values, format=version)
        except (TypeError, ValueError, AttributeError) as exc:
            raise InvalidRecordError(
                f"segment header with a field missing or of the wrong type: {exc!r}"
            ) from exc


def announced_bytes(data: bytes) -> int:
    """Return the length that the header at the start of *data* announces.

    0 without a header.
    """
    if len(data) < _PREFIX.size:
        return 0
    magic, _, length, _ = cast("tuple[bytes, int, int, int]", _PREFIX.unpack_from(data))
    if magic == HEADER_MAGIC and length <= MAX_HEADER_BYTES:
        return _PREFIX.size + length
    return 0


def header_end(data: bytes) -> int | None:
    """Return the end of the header at the start of *data*.

    ``None`` when it is missing, unfinished or damaged.

    It never raises, also for a newer format: the prefix is the same in all formats.
    """
    if len(data) < _PREFIX.size:
        return None
    magic, version, length, crc = cast(
        "tuple[bytes, int, int, int]", _PREFIX.unpack_from(data)
    )
    end = _PREFIX.size + length
    if magic != HEADER_MAGIC or length > MAX_HEADER_BYTES or end > len(data):
        return None
    checksum = crc32(
        memoryview(data)[_PREFIX.size : end], crc32(_CHECKED.pack(version, length))
    )
    if checksum == crc:
        return end
    return None


def _storable(value: object) -> object:
    """Return the value of a field as JSON data.

    Names of the environment that are not UTF-8 have question marks.

    orjson takes neither bytes nor lone surrogates.
    """
    if isinstance(value, str):
        # orjson refuses lone surrogates, which os.environ gives for bytes that are not UTF-8.
        return utf8(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [_storable(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        return {key: _storable(item) for key, item in entries.items()}
    return value


def _texts_by_name(value: Any) -> dict[str, tuple[str, ...]]:
    return {name: tuple(texts) for name, texts in value.items()}


def _variables_by_name(value: Any) -> dict[str, dict[str, str]]:
    return {name: dict(variables) for name, variables in value.items()}


def _text_or_none(value: object) -> str | None:
    if value is None:
        return None
    return str(value)


_BY_TYPE: Mapping[str, Callable[[Any], Any]] = {
    "str": str,
    "str | None": _text_or_none,
    "bytes": base64.b64decode,
    "int": int,
    "float": float,
    "bool": bool,
    "tuple[str, ...]": tuple,
    "Mapping[str, str]": dict,
    "Mapping[str, tuple[str, ...]]": _texts_by_name,
    "Mapping[str, Mapping[str, str]]": _variables_by_name,
}
"""Type of a field of a header to what reads its value from JSON data."""
_STORED: Mapping[str, Callable[[Any], Any]] = {
    stored.name: _BY_TYPE[str(stored.type)]
    for stored in fields(SegmentHeader)
    if stored.name != "format"
}
"""Fields of a header that its body holds, each with what reads it; the format is in the prefix."""
