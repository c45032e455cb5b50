"""Start of the bridge of a run folder: detached, with only a cleaned environment of the training process.

A short intermediate process starts its own session, forks and ends; the trainer waits for it (about
15 ms). So the bridge is never the trainer's child, whatever children the trainer waits for or
drops.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_bridge.emit.config.capture_env import is_capture_folder, without_capture
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.settings import (
    LAUNCHER,
    LAUNCHER_DESTINATIONS,
    LAUNCHER_EXPORTERS,
    NO_BRIDGE,
)

_INTERPRETER = re.compile(r"(python|pypy)[0-9.]*t?(\.exe)?", re.IGNORECASE)
_AUTO_INSTRUMENTATION = os.path.join(
    "opentelemetry", "instrumentation", "auto_instrumentation"
)
_LONGEST_START_S = 10.0
# The training goes before the bridge where both want one core (docs/decisions/0009).
_NICE = 5

# Variables of the training process that would affect the bridge, which is an isolated interpreter
# with its own SDKs, without rank or accelerator. OTEL_EXPORTER_OTLP_* stay: they name the endpoint
# and headers of `otlp`.
# An inherited WANDB_SERVICE makes wandb refuse the run: its id is "in use".
_DROPPED = frozenset(
    {
        "WANDB_SERVICE",
        "LD_PRELOAD",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        LAUNCHER.name,
        LAUNCHER_EXPORTERS.name,
        LAUNCHER_DESTINATIONS.name,
    }
)
# `opentelemetry-instrument` would load its SDK in the bridge through PYTHONPATH.
_DROPPED_PREFIXES = ("PYTHON", "MASTER_", "CUDA_", "OTEL_")
_KEPT_PREFIXES = ("OTEL_BRIDGE_", "OTEL_EXPORTER_OTLP_")

# -S: site is imported after the fork, where no process waits. It finds editable installs and
# virtual environments.
_BOOTSTRAP = f"""
import os, sys
os.setsid()
try:
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
except (OSError, ValueError):
    os.closerange(3, 4096)
if os.fork():
    os._exit(0)
os.umask(0o077)
os.nice({_NICE})
try:  # where the kernel groups by session, niceness counts within the group only, and the group has one of its own
    with open("/proc/self/autogroup", "w") as group:
        group.write("{_NICE}")
except OSError:
    pass
import json, site
site.main()
given, *arguments = json.loads(sys.argv[1])
sys.path[:] = given + [path for path in sys.path if path not in given]
sys.argv[:] = ["otel-bridge", *arguments]
from otel_bridge.bridge.main import main
sys.exit(main(arguments))
"""


def start_bridge(
    folder: RunFolder,
    env: Mapping[str, str],
    *,
    python: str | None = None,
    companions: str | None = None,
) -> None:
    """Start a bridge for *folder*; the bridge exits by itself when another holds the lock.

    By ``posix_spawn``, which runs no fork handlers of the program. Returns once the intermediate
    process has ended, about 15 ms later.

    Args:
        folder: An existing run folder; the bridge's output goes to its log file.
        env: Environment for the bridge; it is cleaned first.
        python: Interpreter of another environment, which does not get this process's module search
            path.
        companions: Mark of the process whose other runs the bridge serves too; see
            `RunFolder.companions_dir`.

    Raises:
        JournalError: No interpreter can be started, or the system refused.
    """
    executable = python or interpreter()
    if executable is None:
        raise JournalError(
            f"sys.executable is {sys.executable!r}: no Python interpreter to start the bridge with"
        )
    folder_and_mark = [
        os.fsdecode(folder.path),
        *([] if companions is None else [companions]),
    ]
    # As ASCII: folders of the search path may have names that are not UTF-8.
    arguments = json.dumps([[] if python else bridge_path(sys.path), *folder_and_mark])
    # Never follow a link or wait for the reader of a FIFO: this is the training process.
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        pid = os.posix_spawn(
            executable,
            [executable, "-I", "-S", "-c", _BOOTSTRAP, arguments],
            bridge_environment(env),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.fspath(folder.log_path), log_flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            # Signals that the trainer blocks or ignores would stay so in the bridge.
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as exc:
        raise JournalError(
            f"{executable} cannot be started: {exc.strerror or exc}"
        ) from exc
    _wait_for(pid)


def interpreter() -> str | None:
    """Return the Python interpreter for the bridge; ``None`` in a frozen or embedding program.

    There ``sys.executable`` is the program itself, which would train again.
    """
    executable = sys.executable
    if (
        not executable
        or getattr(sys, "frozen", False)
        or not os.access(executable, os.X_OK)
    ):
        return None
    if _INTERPRETER.fullmatch(os.path.basename(executable)):
        return executable
    return None


def bridge_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* without the variables that concern only the training process."""
    variables = {NO_BRIDGE.name: "1"}
    for name, value in without_capture(env).items():
        is_foreign = name.startswith(_DROPPED_PREFIXES) and not name.startswith(
            _KEPT_PREFIXES
        )
        if not is_foreign and name not in _DROPPED:
            variables.setdefault(name, value)
    return variables


def bridge_path(path: Sequence[str]) -> list[str]:
    """Return this process's module search *path* without folders of the user's scripts, for the bridge.

    A ``mlflow.py`` beside the training script is not the tracker. ``site`` adds the paths of
    editable installs again. The capture's folder and that of ``opentelemetry-instrument`` go too:
    they would act in the bridge. So do relative folders once the working folder was deleted.
    """
    left_out = {"", *_script_folders()}
    entries: list[str] = []
    for entry in path:
        whole = ""
        # Also in the middle of a training, where a bridge that was killed is replaced.
        with contextlib.suppress(OSError):  # the working folder was deleted
            whole = os.path.abspath(entry) if entry else ""
        if (
            whole in left_out
            or whole.endswith(_AUTO_INSTRUMENTATION)
            or is_capture_folder(whole)
        ):
            continue
        entries.append(whole)
    package_folder = os.fspath(Path(__file__).resolve().parents[3])
    # Last in the path, so that this package hides no other module when it runs from a checkout.
    if package_folder in entries:
        return entries
    return [*entries, package_folder]


def _script_folders() -> set[str]:
    """Return the working folder and those of the script, from which Python imports the user's modules.

    A script behind a link has two, an interactive session none.
    """
    folders: set[str] = set()
    with contextlib.suppress(OSError):  # the working folder was deleted
        folders.add(os.getcwd())
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(script, str):
        # A profiler names its script as it was given, which may be relative.
        with contextlib.suppress(OSError):
            folders |= {
                os.path.dirname(os.path.abspath(script)),
                os.path.dirname(os.path.realpath(script)),
            }
    return folders


def _wait_for(pid: int) -> None:
    """Wait for the intermediate, which ends as soon as it has forked.

    After ten seconds it is killed. Polled, because a blocking wait has no limit of time, and the
    trainer must not hang. Whether the bridge itself has started, its lock and its log show later.
    """
    deadline = time.monotonic() + _LONGEST_START_S
    # A program that ignores SIGCHLD, or waits for any child, has already reaped it.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                # The training goes on; `BridgeStarter.ensure` tries again.
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(0.001)
