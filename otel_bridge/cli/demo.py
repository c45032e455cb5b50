"""``otel-bridge demo``: run a small real RL job and deliver it to local trackers.

An `OtelBridgeError` that passes (an exporter that is not installed, a directory that cannot be used,
a bridge that does not start) ends the command with one line and exit code 1 (`cli.main`).
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import click

from otel_bridge import exporter, settings
from otel_bridge.cli.directory import made
from otel_bridge.cli.output import work_without_output
from otel_bridge.cli.status.view import show, warnings
from otel_bridge.cli.terminal import Terminal
from otel_bridge.errors import ConfigError, JournalError, MissingExtraError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import Report, last_line, read_report
from otel_bridge.records import axis_of, run_id_of
from otel_bridge.text.command_line import command_line
from otel_bridge.text.wait_display import Amount, WaitDisplay, records_in_trackers

PROJECT = "otel-bridge-demo"
_TRACKER_PREFIXES = (
    "OTEL_",
    "WANDB_",
    "MLFLOW_",
    "TRACKIO_",
    "SLURM_",
    "TORCHELASTIC_",
)
_FEATURED = (
    "explorer/rollouts/reward/mean",
    "evaluator/accuracy",
    "trainer/loss",
    "trainer/kl",
    "trainer/entropy",
    "trainer/lineage/staleness/mean",
    "trainer/tokens/mismatch/k3",
    "explorer/time/step",
    "trainer/time/step",
)
"""What the first section of each tracker shows."""
_PAUSE_S = 0.1
_SILENCE_S = 180.0
"""Seconds without progress in any tracker after which the demo stops waiting.

A slow machine may take long in all.
"""
_START_S = 10.0
"""Seconds that a run folder may have neither a bridge nor a report."""


@click.command(
    "demo", epilog="Example: otel-bridge demo --steps 20 --exporters trackio"
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Training steps.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of all random numbers of the job.",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path("otel-bridge-demo"),
              show_default=True, help="Folder of all output.")  # fmt: skip
@click.option(
    "--exporters",
    default="wandb,mlflow,trackio",
    show_default=True,
    help="Where to show the run.",
)
def command(steps: int, seed: int, directory: Path, exporters: str) -> None:
    """Run a small real RL job: two explorers, a trainer and an evaluator, one run in every tracker.

    All output is below --dir. The demo needs no account, no server and no network.
    """
    work_without_output()
    if importlib.util.find_spec("numpy") is None:
        raise MissingExtraError(
            "the demo needs numpy, for its policy, and the trackers that it shows: pip install 'otel-bridge[all]' numpy"
        )
    chosen = settings.names(exporters)
    for name in chosen:
        if name == exporter.OTLP:
            raise ConfigError(
                "the demo shows runs in trackers; --exporters takes wandb, mlflow, trackio, console, file"
            )
        # At once: a missing exporter would otherwise show only after the job.
        exporter.load(name)
    # Absolute, because the roles and their bridge may have other working folders.
    directory = made(directory.resolve(), help_text="set --dir")
    name = f"arithmetic-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    env = demo_environment(directory, name, chosen)
    folder = RunFolder(directory / "runs", run_id_of(PROJECT, name))
    console = Terminal()
    console.print_line(f"{PROJECT}/{name} → {', '.join(chosen)}", "bold")
    # As an exception, so that the job's context ends its roles.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        failures = _run(console, folder, steps=steps, seed=seed, env=env)
    except _Interrupted as exc:
        watch = command_line("status", folder.base)
        console.print_line(
            f"interrupted; the bridge delivers what was logged, to watch it: {watch}"
        )
        sys.exit(128 + exc.number)
    sys.exit(_closing(console, folder, failures))


class _Interrupted(KeyboardInterrupt):
    """Raised in the main thread when SIGINT or SIGTERM arrives."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _interrupt(number: int, _frame: object) -> None:
    """Handle SIGINT and SIGTERM: by an exception, so that each ``with`` on the way ends what it began."""
    raise _Interrupted(number)


def demo_environment(
    directory: Path, name: str, exporters: tuple[str, ...]
) -> dict[str, str]:
    """Return the roles' environment, in which everything is stored below *directory*.

    It is this process's environment without the variables of the user's own trackers and
    schedulers.
    """
    inherited = settings.environment().items()
    return {
        # The user's trackers, and a job that this shell may be part of, must not get the run.
        **{
            key: value
            for key, value in inherited
            if not key.startswith(_TRACKER_PREFIXES)
        },
        settings.DIR.name: str(directory / "runs"),
        settings.EXPORTERS.name: ",".join(exporters),
        settings.PROJECT.name: PROJECT,
        settings.RUN_NAME.name: name,
        settings.QUIET.name: "1",
        settings.FEATURED.name: ",".join(_FEATURED),
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory / 'mlflow.db'}",
        "TRACKIO_DIR": str(directory / "trackio"),
        "WANDB_DIR": str(directory),
        "WANDB_CACHE_DIR": str(
            directory / "wandb" / "cache"
        ),  # else wandb writes its own log to the home folder
        "WANDB_MODE": "offline",
    }


def _run(
    console: Terminal,
    folder: RunFolder,
    *,
    steps: int,
    seed: int,
    env: Mapping[str, str],
) -> Mapping[str, str]:
    """Run the job and wait for its delivery, with progress.

    Return the roles that failed, with their ends. Whatever is raised, also `_Interrupted`, first
    stops the roles that still run.

    Raises:
        JournalError: No bridge starts, as `_Started.report` finds.
        OSError: A role cannot be started.
    """
    from otel_bridge.demo.job import Job, steps_of_roles  # noqa: PLC0415  # needs numpy

    totals = steps_of_roles(steps)
    with (
        tempfile.TemporaryDirectory(prefix="otel-bridge-demo-") as exchange,
        console.wait_display() as display,
    ):
        started = _Started(folder)
        with Job(Path(exchange), steps=steps, seed=seed, env=env) as job:
            while job.running():
                display.show(partial(_amounts, started.report(), totals))
                time.sleep(_PAUSE_S)
            failures = dict(job.failures())
        _deliver(display, started)
    return failures


def _amounts(report: Report | None, totals: Mapping[str, int]) -> dict[str, Amount]:
    """Return the steps of each role and the records of each tracker in *report*, or what is waited for without one."""
    if report is None:
        return {"the start of the roles and the bridge": Amount()}
    steps = {
        f"{role} step": Amount(report.steps.get(axis_of(role), 0), total)
        for role, total in totals.items()
    }
    return {**steps, **records_in_trackers([report])}


class _Started:
    """Reads the run's report, and raises when no bridge starts that would write one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._alone_s: float | None = None

    def report(self) -> Report | None:
        """Return the report, or ``None`` while there is none yet.

        Raises:
            JournalError: The folder has data, and no bridge has held it for `_START_S`.
        """
        report = read_report(self._folder)
        if (
            report is not None
            or not self._folder.segments()
            or probe(self._folder.lock_path)
        ):
            self._alone_s = None
            return report
        now_s = time.monotonic()
        self._alone_s = self._alone_s or now_s
        if now_s - self._alone_s > _START_S:
            raise JournalError(
                f"the bridge does not start: {last_line(self._folder.log_path)}"
            )
        return None


def _deliver(display: WaitDisplay, started: _Started) -> None:
    """Wait until each tracker is done or blocked, or until nothing progressed for `_SILENCE_S`.

    Raises:
        JournalError: No bridge starts, as `_Started.report` finds.
    """
    delivered: list[tuple[str, int, int]] = []
    last_progress_s = time.monotonic()
    while time.monotonic() - last_progress_s < _SILENCE_S:
        report = started.report()
        display.show(partial(_amounts, report, {}))
        if report is not None:
            trackers = list(report.exporters.values())
            if report.settled:
                return
            counts = [
                (tracker.state, tracker.written, tracker.durable)
                for tracker in trackers
            ]
            # Any change counts: a slow tracker is not a stopped one.
            if counts != delivered:
                delivered = counts
                last_progress_s = time.monotonic()
        time.sleep(_PAUSE_S)


def _closing(console: Terminal, folder: RunFolder, failures: Mapping[str, str]) -> int:
    """Print the table and return the exit code: 0 when all is delivered and no role failed.

    1 also if anything was dropped: the demo shows that nothing is lost.
    """
    state = show(console, folder)
    report = state.report
    if report is None:
        console.print_line(f"nothing was delivered; look at {folder.log_path}", "red")
        return 1
    for role, end in failures.items():
        console.print_line(f"{role} failed: {end}", "red")
    if not report.ended and state.bridge_alive:
        watch = command_line("status", folder.base)
        console.print_line(
            f"not everything is delivered yet; the bridge goes on, to watch it: {watch}"
        )
    elif not report.ended:
        drain = command_line("drain", folder.path)
        console.print_line(f"not everything is delivered yet; to continue: {drain}")
    # A demo that lost something has failed, even if all the rest was delivered.
    if report.ended and not failures and not warnings(report):
        return 0
    return 1
