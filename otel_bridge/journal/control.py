"""Sends and receives control requests: files in ``control/`` by which commands and `init` control a running bridge."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

import orjson

from otel_bridge.errors import JournalError
from otel_bridge.journal.files import DISK_FULL, names_in, read_regular
from otel_bridge.journal.folder import put_file

if TYPE_CHECKING:
    from otel_bridge.journal.folder import RunFolder

Kind: TypeAlias = Literal["retry", "discard", "finish", "handover"]
_KINDS = frozenset(get_args(Kind))
HANDOVER_S = 10.0
"""Seconds that a bridge may take to hand over its folder, before it is killed."""
_SUFFIX = ".json"
_LEFT_AFTER_S = 60.0
# Ids are row ids of SQLite: integers of 63 bits and a sign.
_ID_LIMIT = 1 << 63
_UNUSABLE = frozenset({errno.EINVAL, errno.EFBIG})
"""Errors of a file that is not regular or too large; any other error may pass."""


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """Holds one request to the bridge.

    Attributes:
        kind: ``retry``, ``discard``, ``finish`` or ``handover``.
        values: Its arguments: a status, ids of dead letters; never credentials.
        time_unix_ns: When it was sent.
        name: Name of its file.
    """

    kind: Kind
    values: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    time_unix_ns: int = 0
    name: str = field(default="", compare=False)

    @property
    def dead_letters(self) -> dict[str, list[int]]:
        """Return the ids of dead letters by exporter, for requests that name some (``retry``, ``discard``).

        Empty for other requests. What is not an id of SQLite is left out, since any program may
        write the file.
        """
        ids_by_name = self.values.get("dead_letters")
        if not isinstance(ids_by_name, dict):
            return {}
        dead_letters: dict[str, list[int]] = {}
        for name, ids in cast("dict[str, object]", ids_by_name).items():
            if isinstance(ids, list):
                dead_letters[name] = []
                for number in cast("list[object]", ids):
                    if type(number) is int and 0 < number < _ID_LIMIT:
                        dead_letters[name].append(number)
        return dead_letters


def is_requested(folder: RunFolder) -> bool:
    """Return whether a control request waits to be carried out.

    No file is read, since a service asks this of thousands of idle folders. ``False`` for a folder
    that cannot be listed.
    """
    try:
        with os.scandir(folder.control_dir) as entries:
            for entry in entries:
                is_hidden = entry.name.startswith(".")
                if not is_hidden and entry.is_file(follow_symlinks=False):
                    return True
            return False
    except OSError:
        return False


def send_control(folder: RunFolder, kind: Kind, **values: object) -> None:
    """Send a control request to the bridge of *folder*, which reads requests at each poll.

    No answer comes back: the bridge deletes the file once it has carried the request out. A file
    and not a socket: it waits for a bridge that has yet to start, and survives a kill.

    Args:
        folder: An existing run folder.
        kind: ``retry``, ``discard``, ``finish`` or ``handover``.
        values: Arguments that JSON can hold; the file has mode 0600.

    Raises:
        JournalError: The file cannot be written.
    """
    now = time.time_ns()
    # Pid and random digits keep requests of one moment apart, without a lock.
    name = f"{now:020d}-{os.getpid()}-{os.urandom(3).hex()}{_SUFFIX}"
    try:
        put_file(
            folder.control_dir / name,
            orjson.dumps({"kind": kind, "values": values, "time_unix_ns": now}),
        )
    except (OSError, TypeError) as exc:
        is_full = isinstance(exc, OSError) and exc.errno in DISK_FULL
        advice = "is the run folder yours?"
        if is_full:
            advice = "free space on that disk"
        raise JournalError(
            f"{folder.control_dir}: the request {kind} cannot be written: {exc}; {advice}"
        ) from exc


def receive_control(
    folder: RunFolder,
    malformed: Callable[[str], None] = lambda _: None,
    read_before: Container[str] = (),
) -> list[ControlRequest]:
    """Return the requests, oldest first.

    The files stay until `delete_control_request`, so that a kill before that loses nothing.

    None when the folder cannot be listed. A file that cannot be read now is tried at the next call.
    One that another bridge has deleted is skipped, and one of a process that crashed while it wrote
    is deleted after a minute.

    Args:
        folder: The run folder.
        malformed: Called with the file name and what is wrong, for each file that is not a control
            request. Such a file is deleted.
        read_before: Names of files that were read before, and that the caller still carries out.
    """
    requests: list[ControlRequest] = []
    # Names begin with the time of sending, in digits of one length.
    for name in names_in(folder.control_dir):
        path = folder.control_dir / name
        if name.startswith("."):
            _delete_left(path)
            continue
        if name in read_before:
            continue
        try:
            data = read_regular(path)
        except FileNotFoundError:
            continue  # another bridge has carried it out
        except OSError as exc:
            if exc.errno not in _UNUSABLE:
                continue  # the error may pass: the next call reads the file
            data = b""
            reason = exc.strerror or str(exc)
        else:
            reason = "expected an object with kind, values and time_unix_ns"
        request = _parsed(data, name)
        if request is not None:
            requests.append(request)
        elif _deleted(path):
            # An entry that cannot be deleted, e.g. a folder, would be reported at every poll.
            malformed(f"{name}: {reason}")
    return requests


def delete_control_request(folder: RunFolder, request: ControlRequest) -> bool:
    """Delete the file of a request that was carried out; return whether this call deleted it.

    ``False`` when another bridge was faster, or the file cannot be deleted.
    """
    return _deleted(folder.control_dir / request.name)


def delete_handovers(folder: RunFolder) -> None:
    """Delete each request to hand over: of a bridge that has ended, or by who no longer waits for the folder."""
    for name in names_in(folder.control_dir):
        path = folder.control_dir / name
        with contextlib.suppress(OSError):
            request = _parsed(read_regular(path), name)
            if request is not None and request.kind == "handover":
                path.unlink()


def _deleted(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _parsed(data: bytes, name: str) -> ControlRequest | None:
    """Return the request in *data*; ``None`` unless it is an object with a known kind, values and a time.

    Any program may have written the file; the caller deletes and reports one that is not a request.
    """
    try:
        raw: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(raw, dict):
        return None
    facts = cast("dict[str, object]", raw)
    kind = facts.get("kind")
    values = facts.get("values")
    time_unix_ns = facts.get("time_unix_ns")
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    if not isinstance(values, dict) or not isinstance(time_unix_ns, int):
        return None
    return ControlRequest(
        cast("Kind", kind), cast("dict[str, object]", values), time_unix_ns, name
    )


def _delete_left(path: Path) -> None:
    """Delete an unfinished file of a process that crashed while it sent a request."""
    with contextlib.suppress(OSError):
        if time.time() - path.lstat().st_mtime > _LEFT_AFTER_S:
            path.unlink()
