"""Chooses the base directory: ``OTEL_BRIDGE_DIR``, else ``.otel-bridge`` in the working folder, if on a local disk."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.journal.files import create_regular
from otel_bridge.journal.machine import network_file_system
from otel_bridge.setting_parsers import absolute_path
from otel_bridge.settings import DIR

DEFAULT_NAME = ".otel-bridge"
_SHARED_TEMPORARY = ("/var/tmp", "/tmp")  # noqa: S108  # a folder of this user is created there, 0700


@dataclass(frozen=True, slots=True)
class BaseDir:
    """Holds the base directory, and why it was chosen.

    Attributes:
        path: The base directory, absolute.
        instead_of: The default directory, when `path` replaces it because it is on a network file
            system.
        file_system: Type of that file system, e.g. ``nfs4``; also set when `path` itself had to be
            on one.
    """

    path: Path
    instead_of: Path | None = None
    file_system: str | None = None


def working_folder() -> Path:
    """Return the working folder.

    Raises:
        ConfigError: It was deleted: relative folders and destinations have no place.
    """
    try:
        return Path.cwd()
    except OSError as exc:
        raise ConfigError(
            f"the working folder cannot be read: {exc.strerror}; change to one that exists"
        ) from exc


def base_dir(env: Mapping[str, str], cwd: Path) -> Path:
    """Return the base directory, as `find_base` chooses it."""
    return find_base(env, cwd).path


def find_base(
    env: Mapping[str, str], cwd: Path, *, mountinfo: str | None = None
) -> BaseDir:
    """Choose the base directory; nothing is created.

    A directory that ``OTEL_BRIDGE_DIR`` names is used, wherever it is. A default directory on a
    network file system is replaced by one on a local disk, because record locks and SQLite need a
    local disk.

    Without a local folder that can be made the default is used on its network file system all the
    same.

    Args:
        env: The environment.
        cwd: The working folder.
        mountinfo: Text of ``/proc/self/mountinfo``; read from there when not given.

    Raises:
        ConfigError: The name of the directory is not UTF-8, or begins with ``~`` and a user who is
            not known.
    """
    base = _find_base(env, cwd, mountinfo)
    try:
        os.fspath(base.path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"the name of the run directory, {os.fspath(base.path)!a}, is not UTF-8, or this Python reads names as "
            f"something else (PYTHONUTF8=1 changes that); set {DIR.name} to a folder whose name is UTF-8"
        ) from None
    return base


def _find_base(env: Mapping[str, str], cwd: Path, mountinfo: str | None) -> BaseDir:
    """Return the base directory; its name may not be UTF-8.

    An explicit one stays where a person wants it, also on a network file system. Raises
    `ConfigError` for a ``~`` without a home.
    """
    explicit_path = DIR.read(env)
    if explicit_path:
        path = absolute_path(DIR.name, explicit_path, cwd)
        return BaseDir(path, None, network_file_system(path, mountinfo))
    default = Path(os.path.abspath(cwd / DEFAULT_NAME))
    kind = network_file_system(default, mountinfo)
    if kind is None:
        return BaseDir(default)
    for state in _state_folders(env):
        if network_file_system(state, mountinfo) is None and _can_be_made(state):
            return BaseDir(state / _key(default), default, kind)
    return BaseDir(default, None, kind)


def _state_folders(env: Mapping[str, str]) -> list[Path]:
    """Return the folders to try on a local disk, best first: those that outlive a reboot before temporary ones."""
    mine = f"otel-bridge-{os.getuid()}"
    folders = [
        Path(env.get("XDG_STATE_HOME", ""), "otel-bridge"),
        Path(env.get("HOME", ""), ".local/state/otel-bridge"),
        Path(env.get("TMPDIR", ""), mine),
        *(Path(folder, mine) for folder in _SHARED_TEMPORARY),
    ]
    # Without a variable, or with a relative one, the folder would depend on where the program is.
    return [folder for folder in folders if folder.is_absolute()]


def _can_be_made(path: Path) -> bool:
    """Return whether *path* is this user's and writable, or can be created in the nearest folder that exists.

    A folder of another user is refused: its links could redirect what is written there. ``False``
    for a folder that cannot be looked at.
    """
    # os.path, because `Path.exists` raises where this user may not enter a folder above.
    nearest = path
    while not os.path.exists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if nearest == path and path.stat().st_uid != os.getuid():
        return False
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _key(path: Path) -> str:
    # The same path gives the same name on two machines, which is safe: each has its own disk.
    parent = path.parent.name or "root"
    return f"{parent[:60]}-{sha256(os.fsencode(path)).hexdigest()[:16]}"


# The owner of a folder is checked before anything is written into it: another user's folder could
# hold links that redirect the writes.
#
# A folder of this user or of root is used (``/var/lib``, an ``emptyDir`` of Kubernetes). Root uses
# a folder of any user, as a container does with a mounted one. It does not use a folder that
# another user created in a directory to which everyone may write (``/tmp``). Some file systems give
# every file to one user (``all_squash``, a user namespace): a file that is created there shows it.


def why_not_ours(path: Path, *, may_be_link: bool = False) -> str:
    """Return in one line why *path* must not be used; empty when it may be used, or does not exist.

    Links of another user could redirect what this process writes, or, as root, deletes.

    Args:
        path: A base directory or run folder.
        may_be_link: Whether *path* may be a symbolic link, because a person named it.
    """
    try:
        own_status = os.lstat(path)
        status = os.stat(path) if may_be_link else own_status
    except OSError:
        return ""  # it does not exist, or creating it will raise the error
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link, expected a folder; remove it"
    for parent in (path, *path.parents):
        owner = _planted_by(parent)
        if owner is not None:
            return (
                f"{parent} belongs to {_name_of(owner)} and is where every user may create folders, so that its links "
                f"may lead elsewhere; this process is {_name_of(os.geteuid())}: use your own folder, e.g. of mktemp -d"
            )
    me = os.geteuid()
    if me == 0 or status.st_uid in {me, 0} or _gives_all_to(status.st_uid, path):
        return ""
    return (
        f"{path} belongs to {_name_of(status.st_uid)}, who could redirect what is written there; this process is "
        f"{_name_of(me)}: use a folder of your own, or one that root created"
    )


def _planted_by(path: Path) -> int | None:
    """Return the owner of a folder that another user created where everyone may write, else ``None``.

    ``None`` also for a folder that does not exist.
    """
    try:
        owner = os.lstat(path).st_uid
        above = os.stat(path.parent)
    except OSError:
        return None
    # With the sticky bit (/tmp) or without: there others may even replace what is there.
    everybody = bool(above.st_mode & stat.S_IWOTH) and path.parent != path
    if everybody and owner not in {os.geteuid(), 0}:
        return owner
    return None


def _gives_all_to(owner: int, path: Path) -> bool:
    """Return whether a file that this process creates in *path* belongs to *owner* too.

    Some file systems give every file to one user (``all_squash``). ``False`` when no file can be
    created. Owners mean nothing there, so that a folder of this user must not be refused.
    """
    probe = path / f".owner.{os.getpid()}.tmp"
    try:
        descriptor = create_regular(probe)
    except OSError:
        return False
    try:
        return os.fstat(descriptor).st_uid == owner
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            probe.unlink()


def _name_of(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
