"""The first frame of every segment: who writes it, for which run, and where its records are to go.

The prefix (magic, format, length, CRC-32) is the same in all formats, so that an older reader can tell a newer segment
from a damaged one. The body is JSON; fields that this version does not know are passed over.
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
from otel_bridge.journal.host import start_ticks, this_host

FORMAT: Final = 1
HEADER_MAGIC: Final = b"\xffOBSEG\r\n"
"""0xFF is in no UTF-8 text; the line end shows a copy made in text mode."""
MAX_HEADER_BYTES: Final = 16 << 20

_PREFIX: Final = struct.Struct("<8sIII")
_CHECKED: Final = struct.Struct("<II")
_NO_EXPORTERS: Final[Mapping[str, tuple[str, ...]]] = {}
_NO_DESTINATIONS: Final[Mapping[str, Mapping[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself.

    Attributes:
        instance_id: The writing process (a forked child has its own).
        kind: ``process`` (emission), ``receiver``, ``bridge`` (what the bridge itself says) or ``launcher``.
        resource: Serialised ``opentelemetry.proto.resource.v1.Resource`` of the records; empty for receivers.
        exporters: Signal (``metrics``, ``traces``, ``logs``) to the names asked for.
        destinations: Exporter to the variables that say where it delivers: absolute, no credentials.
        start_ticks: Start of the process as `otel_bridge.journal.life.start_ticks` gives it.
        number: Place among the segments of its process, from 0.
        hold: No bridge is to be started for it; ``otel-bridge drain`` delivers.
        system_metrics_s: How often the bridge of this machine is to measure it, in seconds; 0: not asked for.
        message_content: Exporter to how much message text it may get, where that is less than all:
            ``{"wandb": "off"}``.
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
    number: int = 0
    format: int = FORMAT
    role: str | None = None
    hold: bool = False
    launcher: str = ""
    system_metrics_s: float = 0.0
    message_content: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of_this_process(
        cls, kind: str, instance_id: str, *, run_id: str, project: str, run_name: str, resource: bytes = b""
    ) -> SegmentHeader:
        """Return the header of what this process itself writes into a run: it asks for no exporter."""
        host, pid = this_host(), os.getpid()
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
            created_unix_ns=time.time_ns(),
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
                "number": self.number,
                "role": None if self.role is None else _plain(self.role),
                "hold": self.hold,
                "launcher": self.launcher,
                "system_metrics_s": self.system_metrics_s,
                "message_content": dict(self.message_content),
            }
        )
        crc = crc32(body, crc32(_CHECKED.pack(self.format, len(body))))
        return _PREFIX.pack(HEADER_MAGIC, self.format, len(body), crc) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> SegmentHeader:
        """Read the header at the start of *data*; what stands behind it is not looked at.

        Raises:
            InvalidRecordError: The header is unfinished or damaged.
            FormatVersionError: A newer version wrote it.
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
            return _from_json(cast("dict[str, object]", orjson.loads(data[_PREFIX.size : end])), version)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise InvalidRecordError(f"segment header with a field missing or of the wrong type: {exc!r}") from exc


def header_end(data: bytes) -> int | None:
    """Return where the header frame at the start of *data* ends; ``None``: unfinished, damaged, or no header."""
    if len(data) < _PREFIX.size:
        return None
    magic, version, length, crc = cast("tuple[bytes, int, int, int]", _PREFIX.unpack_from(data))
    end = _PREFIX.size + length
    if magic != HEADER_MAGIC or length > MAX_HEADER_BYTES or end > len(data):
        return None
    seen = crc32(memoryview(data)[_PREFIX.size : end], crc32(_CHECKED.pack(version, length)))
    return end if seen == crc else None


def _from_json(body: dict[str, object], version: int) -> SegmentHeader:
    exporters = cast("dict[str, list[str]]", body["exporters"])
    destinations = cast("dict[str, dict[str, str]]", body["destinations"])
    role = body.get("role")
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
        number=int(cast("int", body["number"])),
        format=version,
        role=None if role is None else str(role),
        hold=bool(body.get("hold", False)),
        launcher=str(body.get("launcher", "")),
        system_metrics_s=float(cast("float", body.get("system_metrics_s", 0.0))),
        message_content=dict(cast("dict[str, str]", body.get("message_content", {}))),
    )


def _plain(text: str) -> str:
    # orjson refuses lone surrogates, which os.environ gives for bytes that are not UTF-8.
    return text.encode("utf-8", "replace").decode()
