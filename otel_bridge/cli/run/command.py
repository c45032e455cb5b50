"""``otel-bridge run -- CMD``: run CMD, and serve every run of its processes and stock SDKs.

An `OtelBridgeError` that passes comes before CMD is started, and ends the command with one line and
exit code 1 (`cli.main`). Later no error of a run or a tracker changes CMD's exit code.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from otel_bridge import settings
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.serving.process_limits import collect_less_often
from otel_bridge.bridge.serving.run_outcome import RunStatus
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.cli.delivery_summary import print_runs
from otel_bridge.cli.directory import made
from otel_bridge.cli.environment import own_environment
from otel_bridge.cli.output import end_process, work_without_output
from otel_bridge.cli.run.capture_table import CaptureTable
from otel_bridge.cli.run.child import Child, NotStartedError
from otel_bridge.cli.run.environment import (
    capture_of,
    child_environment,
    replaced_trackers,
)
from otel_bridge.cli.run.launched_runs import LaunchedRuns
from otel_bridge.cli.run.receiver import LauncherReceiver
from otel_bridge.cli.terminal import Terminal, echo
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.emit.config.exporters import choose
from otel_bridge.emit.config.identity import identify
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.journal.base_dir import base_dir
from otel_bridge.text.wait_display import records_in_trackers

DRAIN_S = 300.0
"""Seconds that delivery may take after the command, for whose exit a person or a scheduler waits."""
_STOP_S = 10.0
_READ_S = 10.0
"""Most seconds in which the last data is read: spans of one run may belong to another."""
_LAST_DATA_S = 0.5
"""Seconds after the command's exit in which its last data and ends are recorded."""


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: otel-bridge run --exporters trackio,mlflow -- python train.py",
)
@click.option(
    "--exporters",
    default="",
    help="Exporters of all signals, e.g. trackio,mlflow; overrides all variables.",
)
@click.option(
    "--new",
    "new_run",
    is_flag=True,
    help="Start a new run even if one of this name exists.",
)
@click.option(
    "--dir", "directory", default="", help="Where run folders are (OTEL_BRIDGE_DIR)."
)
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Receive OTLP here: gRPC on PORT, HTTP on PORT + 1.",
)
@click.option(
    "--capture",
    "captured",
    default="",
    metavar="NAMES",
    help="Capture what CMD logs to wandb, trackio or tensorboard, the rollouts of open_instruct, and the timers of "
    "slime. Without --tee the tracker itself gets nothing.",
)
@click.option(
    "--tee",
    is_flag=True,
    help="With --capture: the tracker itself gets everything as well.",
)
@click.argument("cmd", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def command(
    inherited: dict[str, str] | None,
    /,
    *,
    exporters: str,
    new_run: bool,
    directory: str,
    listen: str,
    captured: str,
    tee: bool,
    cmd: tuple[str, ...],
) -> None:
    """Run CMD and deliver what its processes emit to the trackers; returns CMD's exit code.

    Processes that use otel-bridge append to their run folders. Processes with a stock OpenTelemetry
    SDK send OTLP to a receiver on this machine. Both belong to the same run. With --capture,
    unchanged Python programs that log to W&B or Trackio, or write TensorBoard's event files, belong
    to it too.
    """
    work_without_output()
    env = own_environment(exporters=exporters, new_run=new_run, directory=directory)
    cwd = Path.cwd()
    base = base_dir(env, cwd)
    choice = choose(None, env, cwd)
    capture = capture_of(captured, {**env, **(inherited or {})}, choice, tee=tee)
    table = CaptureTable(capture)
    identity = identify(RunRequest(), env, cwd, script=_script_of(cmd))
    bridge_env = {**bridge_environment(env)}
    options = replace(
        BridgeOptions.read(bridge_env, cwd),
        exporters=choice.by_signal if choice.names or choice.refused else None,
        launcher=True,
        takeover=True,
    )
    records = bool(choice.names) or not choice.refused
    if records:  # else the directory would be left empty
        made(base)
    # Before the command: only folders from now on are its own.
    runs = LaunchedRuns(base)
    collect_less_often()
    host = BridgeSupervisor(
        base,
        options,
        folders=runs.folders,
        may_join=lambda _run, _other: True,
        log_line=_notify,
    )
    receiver = LauncherReceiver(env, base, listen)
    host.start()
    if line := replaced_trackers(capture, choice):
        _notify(line)
    child_env = child_environment(
        env, identity, choice, base=base, cwd=cwd, receiver=receiver
    )
    try:
        child = Child(cmd, child_env | table.environment)
    except NotStartedError:
        receiver.stop()
        host.stop()
        raise
    host.spare(child.pid)
    code = child.wait()
    # In place of the forwarding, since there is nothing left to forward to.
    give_up = _InterruptHandler(host)
    receiver.stop()
    runs.folders()  # folders that were opened since the last look
    # Before the ends: rows behind an end would reopen the run.
    host.read_all(_READ_S)
    runs.end(child.status())
    host.finish(child.status())
    _drain(host, give_up, settings.DRAIN_TIMEOUT_S.read(env))
    print_runs(Terminal(stderr=True), runs.folders(), host.progress(), host.hanging)
    table.show(Terminal(stderr=True), recorded=records)
    # A writer that hangs must not delay this process's exit, which others may wait for.
    end_process(code, hangs=bool(host.hanging or host.alive))


def _script_of(cmd: tuple[str, ...]) -> str:
    """Return the first Python file of CMD, which launchers such as torchrun start, else its program."""
    for word in cmd:
        if word.endswith(".py"):
            return word
    return cmd[0]


class _InterruptHandler:
    """Stops the delivery on Ctrl-C or SIGTERM once the command has exited.

    A signal takes effect after `allow`, because the ends of the command's processes are recorded
    before that.
    """

    def __init__(self, host: BridgeSupervisor) -> None:
        self._host = host
        self._asked = self._allowed = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def allow(self) -> None:
        """Stop at once on a signal from now on, and on one that arrived before."""
        self._allowed = True
        if self._asked:
            self._host.request_stop(_STOP_S)

    def _ask(self, _number: int, _frame: object) -> None:
        """Handle a signal.

        It is only noted until `allow`, and each one after that sets a new deadline.
        """
        self._asked = True
        if self._allowed:
            self._host.request_stop(_STOP_S)


def _drain(
    host: BridgeSupervisor, give_up: _InterruptHandler, timeout_s: float | None
) -> None:
    """Deliver what is left, and show how much that is, for at most *timeout_s*, else `DRAIN_S`.

    A signal has no effect in the first `_LAST_DATA_S`, in which the ends of processes are read: a
    run without them would be shown as killed. What remains is printed by the caller.
    """
    with Terminal(stderr=True).wait_display() as display:

        def show(runs: Mapping[str, RunStatus]) -> None:
            display.show(partial(records_in_trackers, runs.values()))

        if not host.wait(_LAST_DATA_S, on_progress=show):
            give_up.allow()
            host.wait(DRAIN_S if timeout_s is None else timeout_s, on_progress=show)
    host.stop(_STOP_S)


def _notify(line: str) -> None:
    """Print a line on stderr, which drops what it cannot write (`call_with_streams`)."""
    echo(f"otel-bridge: {line}", err=True)
