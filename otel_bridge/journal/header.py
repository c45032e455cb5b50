"""Converts segment headers to bytes and back. A header is the first frame of every segment.

It has the process, its run and its destinations. The prefix (magic, format, length, CRC-32) is the same in all formats,
so that an older reader can distinguish a newer segment from a damaged one. The body is JSON; fields that this version
does not know are ignored.
"""

from __future__ import annotations

import base64
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast
from zlib import crc32

import orjson

from otel_bridge.errors import FormatVersionError, InvalidRecordError
from otel_bridge.journal.machine import start_ticks, this_host

FORMAT: Final = 1
HEADER_MAGIC: Final = b"\xffOBSEG\r\n"
"""First bytes of a segment. 0xFF does not occur in UTF-8; the line end reveals a copy made in text mode."""
MAX_HEADER_BYTES: Final = 16 << 20

_PREFIX: Final = struct.Struct("<8sIII")
_CHECKED: Final = struct.Struct("<II")
_NO_EXPORTERS: Final[Mapping[str, tuple[str, ...]]] = {}
_NO_DESTINATIONS: Final[Mapping[str, Mapping[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Describes a segment and the process that writes it.

    Attributes:
        instance_id: The writing process (a forked child has its own).
        kind: ``process`` (emission), ``receiver``, ``bridge`` (the bridge's own records) or ``launcher``.
        resource: Serialised ``opentelemetry.proto.resource.v1.Resource`` of the records; empty for receivers.
        exporters: Signal (``metrics``, ``traces``, ``logs``) to the requested exporters.
        destinations: Exporter to the variables that define where it delivers: absolute, no credentials.
        start_ticks: Start of the process, as `otel_bridge.journal.liveness.start_ticks` returns it.
        started_unix_ns: Time at which the process joined the run, by the wall clock; the same in all of its segments.
        started_monotonic_ns: The same time by the machine's monotonic clock, comparable under one *boot_id* only; 0:
            unknown.
        number: Number among the segments of its process, from 0.
        hold: Whether no bridge shall be started for it; ``otel-bridge drain`` delivers.
        system_metrics_s: Interval at which the bridge of this machine measures the system, in seconds; 0 for never.
        scrape: Addresses of engines whose metrics the bridge of this machine reads.
        scrape_s: Interval of that, in seconds.
        message_content: Exporter to its content policy, where that is less than all text: ``{"wandb": "off"}``.
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
        """Return the header of a segment that this process writes for itself; it requests no exporter."""
        host, pid, started_ns = this_host(), os.getpid(), time.time_ns()
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
        body = orjson.dumps(
            {
                "instance_id": self.instance_id,
                "run_id": _plain(self.run_id),
                "project": _plain(self.project),
                "run_name": _plain(self.run_name),
                "kind": self.kind,
                "resource": base64.b64encode(self.resource).decode(),
                "exporters": {signal: list(names) for signal, names in self.exporters.items()},
                "destinations": {
                    name: {key: _plain(value) for key, value in variables.items()}
                    for name, variables in self.destinations.items()
                },
                "host": self.host,
                "boot_id": self.boot_id,
                "pid": self.pid,
                "start_ticks": self.start_ticks,
                "created_unix_ns": self.created_unix_ns,
                "started_unix_ns": self.started_unix_ns,
                "started_monotonic_ns": self.started_monotonic_ns,
                "number": self.number,
                "role": None if self.role is None else _plain(self.role),
                "hold": self.hold,
                "launcher": self.launcher,
                "system_metrics_s": self.system_metrics_s,
                "scrape": [_plain(address) for address in self.scrape],
                "scrape_s": self.scrape_s,
                "message_content": dict(self.message_content),
                "generated": list(self.generated),
            }
        )
        crc = crc32(body, crc32(_CHECKED.pack(self.format, len(body))))
        return _PREFIX.pack(HEADER_MAGIC, self.format, len(body), crc) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentHeader:
        """Return the header at the start of *data*; the bytes after it are not read.

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
        if version > FORMAT:
            raise FormatVersionError(
                f"segment of format {version}, this version reads up to {FORMAT}; upgrade otel-bridge to read it"
            )
        try:
            return _from_json(
                cast("dict[str, object]", orjson.loads(data[_PREFIX.size : end])), version
            )
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InvalidRecordError(
                f"segment header with a field missing or of the wrong type: {exc!r}"
            ) from exc


def announced_bytes(data: bytes) -> int:
    """Return the length that the header at the start of *data* announces; 0 when there is no header."""
    if len(data) < _PREFIX.size:
        return 0
    magic, _, length, _ = cast("tuple[bytes, int, int, int]", _PREFIX.unpack_from(data))
    return _PREFIX.size + length if magic == HEADER_MAGIC and length <= MAX_HEADER_BYTES else 0


def header_end(data: bytes) -> int | None:
    """Return the end of the header at the start of *data*; ``None`` when it is missing, unfinished or damaged."""
    if len(data) < _PREFIX.size:
        return None
    magic, version, length, crc = cast("tuple[bytes, int, int, int]", _PREFIX.unpack_from(data))
    end = _PREFIX.size + length
    if magic != HEADER_MAGIC or length > MAX_HEADER_BYTES or end > len(data):
        return None
    checksum = crc32(memoryview(data)[_PREFIX.size : end], crc32(_CHECKED.pack(version, length)))
    return end if checksum == crc else None


def _from_json(body: dict[str, object], version: int) -> SegmentHeader:
    exporters = cast("dict[str, list[str]]", body["exporters"])
    destinations = cast("dict[str, dict[str, str]]", body["destinations"])
    role = body["role"]
    return SegmentHeader(
        instance_id=str(body["instance_id"]),
        run_id=str(body["run_id"]),
        project=str(body["project"]),
        run_name=str(body["run_name"]),
        kind=str(body["kind"]),
        resource=base64.b64decode(str(body["resource"]), validate=True),
        exporters={signal: tuple(names) for signal, names in exporters.items()},
        destinations={name: dict(variables) for name, variables in destinations.items()},
        host=str(body["host"]),
        boot_id=str(body["boot_id"]),
        pid=int(cast("int", body["pid"])),
        start_ticks=int(cast("int", body["start_ticks"])),
        created_unix_ns=int(cast("int", body["created_unix_ns"])),
        started_unix_ns=int(cast("int", body["started_unix_ns"])),
        started_monotonic_ns=int(cast("int", body["started_monotonic_ns"])),
        number=int(cast("int", body["number"])),
        format=version,
        role=None if role is None else str(role),
        hold=bool(body["hold"]),
        launcher=str(body["launcher"]),
        system_metrics_s=float(cast("float", body["system_metrics_s"])),
        scrape=tuple(cast("list[str]", body.get("scrape", ()))),
        scrape_s=float(cast("float", body.get("scrape_s", 0.0))),
        message_content=dict(cast("dict[str, str]", body["message_content"])),
        generated=tuple(cast("list[str]", body["generated"])),
    )


def _plain(text: str) -> str:
    # orjson refuses lone surrogates, which os.environ gives for bytes that are not UTF-8.
    return text.encode("utf-8", "replace").decode()
