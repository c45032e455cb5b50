"""Proves that a run folder's destinations were named by the user who delivers them.

Folders are moved between people, and the person who made a folder chose the servers in it.
``drain`` sends the credentials of the person who runs it. So ``init()`` seals the destinations that
a process names with a key that only its user can read, and ``drain`` follows a folder to a server
only with that seal (docs/decisions/0046).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pwd
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

SEAL = "seal"
"""Key of the seal beside the variables of a destination; no variable is called so."""
_KEY_BYTES = 32
_LOCAL_SCHEMES = frozenset({"", "file", "sqlite"})
_SERVERS_WITHOUT_ADDRESS = frozenset(
    {
        "TRACKIO_SPACE_ID",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
    }
)
"""Variables that name a server also by something else than an address.

A Space gets the user's token. An endpoint may be a host alone, which looks like a plain name.
"""


def sealed(run_id: str, exporter: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return *variables* with this user's seal; without one where no key can be stored."""
    plain = without_seal(variables)
    key = _user_key()
    if not plain or key is None:
        return plain
    return {**plain, SEAL: _seal(key, run_id, exporter, plain)}


def is_sealed_here(run_id: str, exporter: str, variables: Mapping[str, str]) -> bool:
    """Return whether *variables* bear the seal of the user who runs this process.

    ``False`` for a user who can store no key: `drain` then follows folders with ``--trust-folders`` only.
    """
    key = _user_key()
    if key is None:
        return False
    seal = _seal(key, run_id, exporter, without_seal(variables))
    return hmac.compare_digest(seal, variables.get(SEAL, ""))


def without_seal(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a destination without the seal, which no exporter knows."""
    unsealed = dict(variables)
    unsealed.pop(SEAL, None)
    return unsealed


def names_file(value: str) -> bool:
    """Return whether *value* leads to a file or folder, where the user of this process would write."""
    return value.startswith("/") or (":" in value and not names_server("", value))


def names_server(variable: str, value: str) -> bool:
    """Return whether *value* leads to a server, which may get credentials; files and plain names do not.

    In doubt it does: credentials must not go where nobody named a server.
    """
    if variable in _SERVERS_WITHOUT_ADDRESS:
        return bool(value)
    try:
        scheme = urlsplit(value).scheme.partition("+")[0]
    except (
        ValueError
    ):  # not an address that anything could be sent to, but not a file either
        return True
    return scheme not in _LOCAL_SCHEMES or value.startswith("databricks")


def _seal(key: bytes, run_id: str, exporter: str, variables: Mapping[str, str]) -> str:
    """Return the seal of *variables* by *key*.

    Run and exporter are in it, so that a seal copied to another destination does not fit.
    """
    fields = [run_id, exporter]
    for name, value in sorted(variables.items()):
        fields += (name, value)
    seal = hmac.new(key, digestmod=hashlib.sha256)
    for field in fields:
        # "replace" as the segment header stores them.
        part = field.encode("utf-8", "replace")
        # With its length, so that no two lists of fields are the same bytes.
        seal.update(b"%d:%s" % (len(part), part))
    return seal.hexdigest()


@cache
def _user_key() -> bytes | None:
    """Return the key of this user, made at first; ``None`` where it cannot be stored or another user could read it.

    ``None`` too for a user without a home, as a container with any user id may have.
    """
    with contextlib.suppress(OSError, RuntimeError):
        folder = _state_folder()
        path = folder / "otel-bridge.key"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make_key(path)
        return _read_key(path)
    return None


def _state_folder() -> Path:
    """Return the folder for the state of this user's programs.

    A relative ``XDG_STATE_HOME`` is ignored, as its specification demands.

    Raises:
        RuntimeError: The user is not known and ``HOME`` is not set.
    """
    named = os.environ.get("XDG_STATE_HOME", "")
    if named.startswith("/"):
        return Path(named)
    # Not $HOME: programs change it, and a seal must be found again.
    with contextlib.suppress(KeyError):
        return Path(pwd.getpwuid(os.geteuid()).pw_dir) / ".local" / "state"
    return Path.home() / ".local" / "state"


def _make_key(path: Path) -> None:
    """Store a new key; of two processes that do so at once the first one's stays.

    Raises `OSError` where the folder takes no files or hard links. The file gets its name once it is whole, so
    that no process reads half a key.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def _read_key(path: Path) -> bytes | None:
    """Return the key in the file at *path*; ``None`` when another user could read or have written it, or it is cut off.

    Raises:
        OSError: It cannot be opened, as a link at its name.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        private = (
            stat.S_ISREG(status.st_mode)
            and status.st_uid == os.geteuid()
            and not status.st_mode & 0o077
        )
        key = file.read(_KEY_BYTES) if private else b""
    if len(key) == _KEY_BYTES:
        return key
    return None
