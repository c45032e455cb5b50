"""``otel-bridge demo``: run a small real RL job and deliver its rows and rollouts to local trackers."""

from __future__ import annotations

import importlib.util
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Final

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

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
from otel_bridge.text.command_line import command_line, runnable

PROJECT: Final = "otel-bridge-demo"
_TRACKER_PREFIXES: Final = ("OTEL_", "WANDB_", "MLFLOW_", "TRACKIO_", "SLURM_", "TORCHELASTIC_")
_PAUSE_S: Final = 0.1
_OPEN_ENDED: Final = "evaluator"
"""The role whose number of steps is not known in advance."""
_SILENCE_S: Final = 180.0
"""Seconds without progress in any tracker after which the demo stops waiting; a slow machine may take long in all."""
_LINE_S: Final = 10.0
"""Seconds between two lines of progress where the output is not a terminal."""
_START_S: Final = 10.0
"""Seconds that a run folder may have neither a bridge nor a report, before the demo reports that none starts."""


@click.command("demo", epilog="Example: otel-bridge demo --steps 20 --exporters trackio")
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True, help="Training steps.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random numbers of the job.")
@click.option("--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path("otel-bridge-demo"),
              show_default=True, help="Folder of all output.")  # fmt: skip
@click.option("--exporters", default="wandb,mlflow,trackio", show_default=True, help="Where to show the run.")
def command(steps: int, seed: int, directory: Path, exporters: str) -> None:
    """Run a small real RL job: an explorer, a trainer and an evaluator, one run in every tracker.

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
        exporter.load(name)
    directory = made(directory.resolve(), help_text="set --dir")
    name = f"arithmetic-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    env = demo_environment(directory, name, chosen)
    folder = RunFolder(directory / "runs", run_id_of(PROJECT, name))
    console = Terminal()
    console.print_line(f"{PROJECT}/{name} → {', '.join(chosen)}", "bold")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        failures = _run(console, folder, steps=steps, seed=seed, env=env)
    except _Interrupted as exc:
        watch = runnable(command_line("status", folder.base))
        console.print_line(f"interrupted; the bridge delivers what was logged, to watch it: {watch}")
        sys.exit(128 + exc.number)
    sys.exit(_closing(console, folder, failures))


class _Interrupted(KeyboardInterrupt):
    """Raised in the main thread when SIGINT or SIGTERM arrives."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _interrupt(number: int, _frame: object) -> None:
    raise _Interrupted(number)


def demo_environment(directory: Path, name: str, exporters: tuple[str, ...]) -> dict[str, str]:
    """Return the roles' environment, in which everything is stored below *directory*.

    It is this process's environment without the variables of the user's own trackers and schedulers.
    """
    inherited = settings.environment().items()
    return {
        **{key: value for key, value in inherited if not key.startswith(_TRACKER_PREFIXES)},
        settings.DIR.name: str(directory / "runs"),
        settings.EXPORTERS.name: ",".join(exporters),
        settings.PROJECT.name: PROJECT,
        settings.RUN_NAME.name: name,
        settings.QUIET.name: "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{directory / 'mlflow.db'}",
        "TRACKIO_DIR": str(directory / "trackio"),
        "WANDB_DIR": str(directory),
        "WANDB_CACHE_DIR": str(directory / "wandb" / "cache"),  # else wandb writes its own log to the home folder
        "WANDB_MODE": "offline",
    }


def _run(console: Terminal, folder: RunFolder, *, steps: int, seed: int, env: Mapping[str, str]) -> Mapping[str, str]:
    """Run the job and wait for its delivery, with progress; return the roles that failed, with their ends."""
    from otel_bridge.demo.job import ROLES, Job  # noqa: PLC0415  # needs numpy

    with tempfile.TemporaryDirectory(prefix="otel-bridge-demo-") as exchange, _DemoProgress(console) as progress:
        for role in ROLES:
            progress.add_role(role, steps=None if role == _OPEN_ENDED else steps)
        with Job(Path(exchange), steps=steps, seed=seed, env=env) as job:
            started = _Started(folder)
            while job.running():
                progress.show(started.report())
                time.sleep(_PAUSE_S)
            failures = dict(job.failures())
        _deliver(progress, started)
    return failures


class _DemoProgress:
    """Shows the roles' steps and the delivery: as bars on a terminal, else as a line every `_LINE_S`.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Terminal) -> None:
        columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._console = console
        self._bar = Progress(*columns, console=console)
        self._roles: dict[str, TaskID] = {}
        self._delivery: TaskID | None = None
        self._line_s = time.monotonic()

    def __enter__(self) -> _DemoProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()
        else:
            self._print_counts()

    def add_role(self, role: str, *, steps: int | None) -> None:
        """Add *role*, which makes *steps*; ``None`` if their number is not known."""
        self._roles[role] = self._bar.add_task(f"{role} step", total=steps)

    def show(self, report: Report | None, *, over: bool = False) -> None:
        """Show the steps and the delivery of *report*; when the job is *over*, the last step is the number of steps."""
        for role, task in self._roles.items():
            step = report.steps.get(axis_of(role), 0) if report else 0
            total = step if over and step and role == _OPEN_ENDED else None
            self._bar.update(task, completed=step, total=total)
        if report is not None:
            self._show_delivery(report)
        self._print_line()

    def _show_delivery(self, report: Report) -> None:
        """Show how many records all trackers have, as `status` counts them."""
        if self._delivery is None:
            self._delivery = self._bar.add_task("records in the trackers", total=None)
        trackers = report.exporters.values()
        written = sum(tracker.written for tracker in trackers)
        self._bar.update(self._delivery, total=report.position * len(trackers), completed=written)

    def _print_line(self) -> None:
        """Print one line of progress if the output is not a terminal and the last line is `_LINE_S` old."""
        now_s = time.monotonic()
        if self._console.is_terminal or now_s - self._line_s < _LINE_S:
            return
        self._line_s = now_s
        self._print_counts()

    def _print_counts(self) -> None:
        counts: list[str] = []
        for task in self._bar.tasks:
            total = "" if task.total is None else f"/{task.total:.0f}"
            counts.append(f"{task.description} {task.completed:.0f}{total}")
        self._console.print_line(", ".join(counts))


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
        if report is not None or not self._folder.segments() or probe(self._folder.lock_path):
            self._alone_s = None
            return report
        now_s = time.monotonic()
        self._alone_s = self._alone_s or now_s
        if now_s - self._alone_s > _START_S:
            raise JournalError(f"the bridge does not start: {last_line(self._folder.log_path)}")
        return None


def _deliver(progress: _DemoProgress, started: _Started) -> None:
    """Wait until each tracker has all records or is blocked, or until nothing progressed for `_SILENCE_S`."""
    delivered: list[tuple[str, int, int]] = []
    last_progress_s = time.monotonic()
    while time.monotonic() - last_progress_s < _SILENCE_S:
        report = started.report()
        progress.show(report, over=True)
        if report is not None:
            trackers = list(report.exporters.values())
            if report.ended or (trackers and all(tracker.state in {"blocked", "ended"} for tracker in trackers)):
                return
            counts = [(tracker.state, tracker.written, tracker.durable) for tracker in trackers]
            if counts != delivered:
                delivered = counts
                last_progress_s = time.monotonic()
        time.sleep(_PAUSE_S)


def _closing(console: Terminal, folder: RunFolder, failures: Mapping[str, str]) -> int:
    """Print the table and return the exit code: 0 when everything is delivered and no role failed, else 1."""
    report = read_report(folder)
    if report is None:
        console.print_line(f"nothing was delivered; look at {folder.log_path}", "red")
        return 1
    bridge_alive = probe(folder.lock_path)
    show(console, folder.run_id, report, live=bridge_alive)
    for role, end in failures.items():
        console.print_line(f"{role} failed: {end}", "red")
    if not report.ended and bridge_alive:
        watch = runnable(command_line("status", folder.base))
        console.print_line(f"not everything is delivered yet; the bridge goes on, to watch it: {watch}")
    elif not report.ended:
        drain = runnable(command_line("drain", folder.path))
        console.print_line(f"not everything is delivered yet; to continue: {drain}")
    lost = [line for line in warnings(report) if line]
    return 0 if report.ended and not failures and not lost else 1
