"""``otel-bridge drain``: deliver the records in run folders, four processes at a time.

An `OtelBridgeError` that passes ends the command, or the process of one folder, with one line and
exit code 1, a `WrongCallError` with 2 (`cli.main`). Records that are not delivered stay in their
folders.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from otel_bridge import settings
from otel_bridge.bridge.exporter_environment import TRUST_OPTION
from otel_bridge.bridge.ingest.segment_reader import SEGMENT_GAPS
from otel_bridge.bridge.ledger.exporter_state import ExporterState
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.serving.run_outcome import Outcome, RunStatus
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.cli.delivery_summary import undelivered_reason
from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.output import end_process, work_without_output
from otel_bridge.cli.run_folders import existing_folders, headers_of
from otel_bridge.cli.serve.directory_lock import service_of
from otel_bridge.cli.status.view import show
from otel_bridge.cli.terminal import Terminal
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.emit.config.exporters import choose
from otel_bridge.exporter import NONE, OTLP, SIGNALS, available, load, unknown
from otel_bridge.journal.folder import LockHolder, RunFolder
from otel_bridge.journal.machine import this_host
from otel_bridge.journal.report import ReportCache, read_report
from otel_bridge.text.wait_display import Amount, records_in_trackers

_CODE = """
import sys
sys.path[:] = filter(None, sys.path)
from otel_bridge.cli import main
main(sys.argv[1:])
"""
"""Drains one folder in a process of its own.

``-c`` puts the working folder first in the search path: a ``mlflow.py`` there is not the tracker.
"""
AT_A_TIME = 4
_FRESH_S = 60.0
"""Seconds after its last heartbeat in which a bridge of another machine counts as running."""
_REASON = "reason: "
"""Begins the last line that the process of a folder sends: why not everything is delivered."""
_STOP_S = 10.0
"""Seconds that writers may take to close after a signal."""
_PAUSE_S = 0.1
"""Seconds between two updates of the progress bars."""
_STDERR = 2
"""Descriptor of messages of a folder that is drained without a command above it."""
_RETRY_S = 20.0
"""Seconds that a tracker which does not answer is tried: a person waits, and the records stay."""


@click.command(
    "drain", epilog="Example: otel-bridge drain /scratch/me/runs --exporters mlflow"
)
@click.argument(
    "directories", nargs=-1, metavar="[DIR]...", type=click.Path(path_type=Path)
)
@click.option(
    "--exporters",
    default="",
    help="Deliver to these exporters instead of those that the folders name.",
)
@click.option(
    "--discard",
    multiple=True,
    metavar="NAME",
    help="Give up the records that the exporter NAME still lacks; may be given several times.",
)
@click.option(
    TRUST_OPTION,
    "trusts_folders",
    is_flag=True,
    help="Send your credentials also to servers that folders of other people or machines name.",
)
@click.option("--folder", "single", type=click.Path(path_type=Path), hidden=True)
@click.option("--messages-fd", type=int, default=_STDERR, hidden=True)
def command(
    directories: tuple[Path, ...],
    exporters: str,
    discard: tuple[str, ...],
    *,
    trusts_folders: bool,
    single: Path | None,
    messages_fd: int,
) -> None:
    """Deliver the records in run folders; exits with 0 when all is written and every run is ended.

    DIR holds run folders, is one, or is the folder above (default: OTEL_BRIDGE_DIR, else
    .otel-bridge here). Each run is delivered to the exporters that its programs named. --exporters
    and the trackers' own variables override them. Credentials are taken from the environment of
    this command, and go only to servers that you named: here, or in programs that you ran on this
    machine. Records stay until every exporter that the programs named has them, or until --discard
    gives them up for an exporter. A tracker that does not answer is tried for 20 s, or for
    OTEL_BRIDGE_RETRY_AFTER_EXIT_S. While an exporter lacks records, the exit code is 1.
    """
    # A closed pipe must not stop a delivery in its middle.
    work_without_output()
    chosen = settings.names(exporters)
    discarded = settings.names(",".join(discard))
    if single is not None:
        messages = _Messages(messages_fd)
        _drain_folder(
            single, chosen, discarded, messages, trusts_folders=trusts_folders
        )
    _require_usable(chosen, discarded)
    # Once, and not in the process of each folder.
    _named_here(chosen, settings.environment(), Path.cwd())
    folders: list[RunFolder] = []
    for directory in directories or (None,):
        folders += existing_folders(directory)
    if not folders:
        return
    # Before any folder is drained: giving up records cannot be undone.
    _require_known(discarded, folders)
    drains = Drains(Terminal(), exporters, discarded, trusts_folders=trusts_folders)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drains.stop)
    sys.exit(1 if any(drains.drain(folders)) else 0)


def _require_usable(exporters: Sequence[str], discarded: Sequence[str]) -> None:
    """Refuse a name in both ``--exporters`` and ``--discard``, and exporters that cannot be loaded.

    Raises:
        WrongCallError: A name is in both.
        ConfigError: An exporter is unknown or not installed.
    """
    ambiguous = sorted({*exporters} & {*discarded})
    if ambiguous:
        raise WrongCallError(
            f"{', '.join(ambiguous)}: in --exporters and in --discard; name each in one of them"
        )
    for name in exporters:
        if name not in {OTLP, NONE}:
            # Before any folder: a name that is not installed would fail in each of them.
            load(name)


def _require_known(discarded: Sequence[str], folders: Sequence[RunFolder]) -> None:
    """Refuse a name in ``--discard`` that is neither an exporter nor named by a run.

    A run may name an exporter that is no longer installed.

    Raises:
        click.ClickException: There is such a name.
    """
    for name in set(discarded) - set(available()):
        # A typing error would seem to have discarded something.
        if not any(name in _names_in(folder) for folder in folders):
            raise click.ClickException(
                f"--discard {name}: no run here names it, and {unknown(name)}"
            )


def _names_in(folder: RunFolder) -> set[str]:
    """Return the exporters that the processes of *folder* and its earlier bridges named.

    Of the processes those of the first segments: a directory may hold thousands. Empty if neither
    headers nor a report can be read.
    """
    names: set[str] = set()
    for header in filter(None, headers_of(folder)):
        names.update(*header.exporters.values())
    report = read_report(folder)
    if report is not None:
        names.update(
            report.exporters,
            report.former,
            report.owed,
            report.discarded,
            report.evicted,
        )
    return names


class Drains:
    """Drains each folder in a process of its own: trackers keep credentials per process.

    Args:
        console: Terminal that shows each run when its process has ended.
        exporters: Deliver to these, separated by commas; empty: to those that the folder names.
        discard: Exporters whose undelivered records are given up.
        trusts_folders: Whether servers that other people's folders name get credentials.
    """

    def __init__(
        self,
        console: Terminal,
        exporters: str = "",
        discard: Sequence[str] = (),
        *,
        trusts_folders: bool = False,
    ) -> None:
        self._console = console
        self._options = ["--exporters", exporters] if exporters else []
        for name in discard:
            self._options += ["--discard", name]
        if trusts_folders:
            self._options.append(TRUST_OPTION)
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = threading.Event()

    def drain(self, folders: Sequence[RunFolder]) -> list[int]:
        """Drain *folders*, show how much is left, and return the exit codes of their processes.

        `AT_A_TIME`, since each process imports its trackers and needs their memory. Raises as
        `_drain_one`, once the other folders are done.
        """
        reports = ReportCache()
        with (
            self._console.wait_display() as display,
            ThreadPoolExecutor(AT_A_TIME) as pool,
        ):
            drains = [pool.submit(self._drain_one, folder) for folder in folders]
            while wait(drains, timeout=_PAUSE_S).not_done:
                display.show(partial(_amounts, folders, drains, reports))
        return [drain.result() for drain in drains]

    def _drain_one(self, folder: RunFolder) -> int:
        """Drain one folder in a thread of the pool; return the exit code of its process.

        0 when all is delivered; else the reason is printed after the table of the run. After `stop`
        the process of a folder that was still in the queue starts, and is stopped at once.

        Raises:
            OSError: No process or pipe can be made, as at a limit of the system.
        """
        # Messages come by a pipe: only this process knows where its progress bars are.
        reads, writes = os.pipe()
        command = [sys.executable, "-c", _CODE, "drain", *self._options]
        command += ["--folder", str(folder.path), "--messages-fd", str(writes)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(writes,)
            )
        except BaseException:
            os.close(reads)
            raise
        finally:
            # Else this process keeps the pipe open, and its end would never be read.
            os.close(writes)
        self._running.append(process)
        # `stop` may have been called before this process was listed.
        if self._stopped.is_set():
            process.terminate()
        reason = self._print_messages(reads)
        process.wait()
        self._running.remove(process)
        show(self._console, folder)
        if process.returncode:
            # A process that was killed sends no reason.
            reason = reason or f"exit code {process.returncode}"
            self._console.print_line(
                f"{folder.path}: not everything is delivered: {reason}"
            )
        return process.returncode

    def _print_messages(self, descriptor: int) -> str:
        """Print the lines that a process sends, until it exits.

        Return its reason, empty without one.
        """
        reason = ""
        with open(descriptor, encoding="utf-8", errors="replace") as messages:
            for line in messages:
                if line.startswith(_REASON):
                    reason = line.removeprefix(_REASON).strip()
                else:
                    self._console.print_line(line.rstrip("\n"))
        return reason

    def stop(self, _number: int, _frame: object) -> None:
        """Handle SIGTERM and SIGINT: stop every process; each commits and closes its writers.

        A further signal gives their writers `_STOP_S` anew.
        """
        self._stopped.set()
        # A copy: threads of the pool remove theirs when they end.
        for process in self._running.copy():
            process.terminate()


def _amounts(
    folders: Sequence[RunFolder], drains: Sequence[Future[int]], reports: ReportCache
) -> dict[str, Amount]:
    """Return how many of *folders* are done, and how many of all records each tracker has."""
    done = sum(drain.done() for drain in drains)
    read = filter(None, map(reports.read, folders))
    runs = {"runs": Amount(done, len(folders))}
    return runs | records_in_trackers(read)


class _Messages:
    """Sends lines of the process of one folder to the command that started it.

    A line on stderr would be written across the progress bars of the command.

    Args:
        descriptor: Pipe to the command, or stderr.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A process of a tracker that outlives this one would keep the pipe open; stderr it needs.
        if descriptor != _STDERR:
            os.set_inheritable(descriptor, False)

    def log(self, line: str) -> None:
        """Send one line, from any thread.

        Raises:
            OSError: The command that started this process has died. Then the supervisor's thread
                drops the line and goes on. The last line of this process ends it with a traceback,
                which goes to no terminal any more.
        """
        os.write(self._descriptor, f"{line}\n".encode("utf-8", "backslashreplace"))

    def end(self, reason: str, *, hangs: bool = False) -> NoReturn:
        """Exit with 0, or, when something remains, with 1 after *reason*.

        A writer that *hangs* is left behind.
        """
        if reason:
            self.log(_REASON + reason)
        # A writer or a disk that hangs must not keep this process from exiting.
        end_process(1 if reason else 0, hangs=hangs)


def _drain_folder(
    path: Path,
    exporters: Sequence[str],
    discard: Sequence[str],
    messages: _Messages,
    *,
    trusts_folders: bool,
) -> NoReturn:
    """Deliver one folder, and end this process: with 0, or with 1 and what remains.

    With 1 also if *path* is not a run folder, another bridge or service delivers it, or data of it
    was found damaged, since a person must learn of that even where all else is delivered.

    Raises:
        ConfigError: A setting or an exporter cannot be used; the command prints it and ends with 1.
    """
    folder = RunFolder.at(path.resolve())
    if not folder.exists():
        messages.end(f"{folder.path} is not a run folder")
    # Before the lease: two bridges of different machines need not see each other's lock.
    server = _other_server(folder)
    if server:
        messages.end(server)
    collect_less_often()
    options = dataclasses.replace(
        _options(folder, exporters, trusts_folders=trusts_folders),
        discard=tuple(discard),
    )
    names = _names_in(folder)
    if options.exporters is not None:
        names = _of_any_signal(options.exporters)
    # The exporter `console` prints; what a tracker prints is left out.
    if "console" not in names:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    host = BridgeSupervisor(
        folder.base,
        options,
        folders=lambda: [folder],
        until_done=True,
        log_line=messages.log,
    )

    def stop(_number: int, _frame: object) -> None:
        host.request_stop(_STOP_S)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    damage_before = _damage(folder)
    host.start()
    # Without a limit: what a tracker still takes is worth waiting for, and retries have their own.
    while not host.wait(1.0):
        run = host.progress().get(folder.run_id)
        if run is not None and _only_lives(run, options.retry_after_exit_s):
            break
    # Before the report is read: closing writers may still confirm records.
    status = host.stop(_STOP_S).get(folder.run_id)
    requested = _of_any_signal(options.exporters or {})
    reason = undelivered_reason(
        read_report(folder), status, host.hanging, requested=requested
    )
    damage = _damage_since(damage_before, folder)
    messages.end(
        "; ".join(filter(None, (reason, damage))),
        hangs=bool(host.hanging or host.alive),
    )


def _other_server(folder: RunFolder) -> str:
    """Return who else delivers *folder*, and what to do; empty if no process does.

    A bridge of this machine that serves one run is requested to hand it over instead
    (``takeover``). Raises as `service_of`.
    """
    holder = _remote_holder(folder)
    if holder and time.time() - holder.heartbeat_unix_ns / 1e9 < _FRESH_S:
        return (
            f"a bridge on {holder.host} serves this folder; "
            "run drain there, or wait until that bridge has exited"
        )
    service = service_of(folder.base)
    if service:
        return (
            f"the service of {folder.base} ({service}) delivers this run; "
            "watch `status`, or stop the service first"
        )
    return ""


def _damage(folder: RunFolder) -> Counter[str]:
    """Return what the bridges of *folder* counted as damaged so far, by its text.

    Empty without a report.
    """
    report = read_report(folder)
    if report is None:
        return Counter()
    return Counter({
        "damaged stretches of its segments could not be read": report.drops.get(SEGMENT_GAPS, 0),
        "rows are missing in its segments": report.missing_rows,
    })  # fmt: skip


def _damage_since(damage_before: Counter[str], folder: RunFolder) -> str:
    """Return what was found damaged since `_damage` returned *damage_before*; empty when nothing was.

    What earlier bridges counted is old news: it would keep each further drain from ending with 0.
    """
    # A difference of counters holds what is above 0.
    new_damage = _damage(folder) - damage_before
    lines = [f"{count} {text}" for text, count in new_damage.items()]
    if lines:
        return f"{', and '.join(lines)}; everything else is delivered"
    return ""


def _options(
    folder: RunFolder, exporters: Sequence[str], *, trusts_folders: bool
) -> BridgeOptions:
    """Return the options of the bridge that delivers *folder* once.

    Those that are not set differ from a job's.

    Raises:
        ConfigError: A setting, or an exporter that the environment names, cannot be used.
    """
    env = settings.environment()
    cwd = Path.cwd()
    job = BridgeOptions.read(bridge_environment(env), cwd)
    # The default of a job is longer: there no person waits.
    retry_is_set = bool(env.get(settings.RETRY_AFTER_EXIT_S.name, "").strip())
    return dataclasses.replace(
        job,
        exporter_env=dataclasses.replace(
            job.exporter_env, from_segments=True, trusts_folders=trusts_folders
        ),
        exporters=_named_here(exporters, env, cwd),
        retry_after_exit_s=job.retry_after_exit_s if retry_is_set else _RETRY_S,
        # Nothing follows the last living process, so that incomplete data is released at once.
        closing=True,
        takeover=True,
        exclusive=_remote_holder(folder) is not None,
    )


def _named_here(
    exporters: Sequence[str], env: Mapping[str, str], cwd: Path
) -> Mapping[str, tuple[str, ...]] | None:
    """Return the exporters that the call or its environment names, by signal.

    It is ``None`` when the folder decides.

    Raises:
        ConfigError: A variable that names exporters cannot be used, or one of these is not
            installed.
    """
    # The call wins over the environment, and that over the folder.
    if exporters:
        return dict.fromkeys(SIGNALS, tuple(exporters))
    by_signal = choose(None, env, cwd).by_signal
    if any(by_signal.values()):
        return by_signal
    return None


def _of_any_signal(exporters: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the exporters of all signals."""
    return set[str]().union(*exporters.values())


def _only_lives(run: RunStatus, retry_s: float) -> bool:
    """Return whether only live processes keep *run* open: all else is delivered, blocked, or failing for *retry_s*."""
    # A process that lives may log for days; what it has appended so far is delivered.
    if run.outcome is not Outcome.BUSY or run.unread or not run.living:
        return False
    return all(
        exporter.state == "blocked"
        or exporter.has_all(run.position)
        or _gave_up(exporter, retry_s)
        for exporter in run.exporters.values()
    )


def _gave_up(exporter: ExporterState, retry_s: float) -> bool:
    """Return whether an exporter has failed for *retry_s*.

    The bridge itself retries as long as a process lives.
    """
    failing_since_s = exporter.failing_since_s
    return failing_since_s is not None and time.monotonic() - failing_since_s >= retry_s


def _remote_holder(folder: RunFolder) -> LockHolder | None:
    """Return the other machine whose bridge held the folder's lease last, ``None`` for this one."""
    holder = folder.holder()
    if holder is None or holder.boot_id == this_host().boot_id:
        return None
    return holder
