"""Play a recorded job to one exporter through the real bridge, in a process of its own; with kills, if asked.

``python -m support.conformance.play <file>`` is that process. What a tracker keeps in its process (its
folder, its threads) thus ends with it, and a kill is a real one.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from otel_bridge.bridge.exporter_environment import ExporterEnvironment
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.exporter import (
    SIGNALS,
    Exporter,
    ExporterSettings,
    RunInfo,
    RunWriter,
    WriterMemory,
)
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.machine import this_host
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import SegmentWriter
from otel_bridge.records import Evaluation, Record, RolloutRecord, Row
from otel_bridge.testing.child import load_target
from otel_bridge.testing.delivery import write
from support.conformance.job import ConformanceJob, Segment

TIMEOUT_S = 150.0
_TESTS = Path(__file__).resolve().parents[2]
"""Where `support` is found by the bridge's process."""
NAME = "subject"
"""What the exporter under test is called here."""


@dataclass(frozen=True, slots=True)
class Play:
    """Describes what the child does.

    Attributes:
        target: Where the exporter is, ``module:attribute``.
        environment: Variables that say where it delivers.
        folder: The run folder.
        kill_at: Records after which the process kills itself, before the bridge reads them; 0: never.
    """

    target: str
    environment: Mapping[str, str]
    folder: Path
    kill_at: int = 0


def lay(job: ConformanceJob, base: Path) -> RunFolder:
    """Write the segments of *job* as its processes, all dead now, left them; return the run folder."""
    folder = RunFolder(base, job.run_id)
    folder.create()
    for segment in job.segments:
        writer = SegmentWriter(folder.segments_dir, _header(job, segment))
        for frame in segment.frames:
            writer.append(
                frame.signal, frame.payload, frame.append_unix_ns, whole=frame.whole
            )
        writer.close()
    return folder


def play(
    target: str, environment: Mapping[str, str], folder: RunFolder, *, kill_at: int = 0
) -> None:
    """Let a bridge deliver *folder* to the exporter at *target* and end.

    Args:
        target: ``module:attribute`` of the exporter.
        environment: Variables that say where it delivers; added to this process's own.
        folder: The run folder, see `lay`.
        kill_at: The bridge kills itself after so many records; 0: it ends when all is delivered.

    Raises:
        AssertionError: Not all was delivered, or the bridge failed; the message holds its log.
    """
    file = folder.path / f"play-{kill_at}.pickle"
    file.write_bytes(
        pickle.dumps(Play(target, dict(environment), folder.path, kill_at))
    )
    command = [sys.executable, "-m", "support.conformance.play", str(file)]
    path = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))
    # The job sends evaluations of rollouts after their step has closed.
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "OTEL_BRIDGE_STEP_STARTUP_S": "0",
        **environment,
    }
    done = subprocess.run(
        command,
        env=env,
        cwd=folder.base,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode not in ({0, -signal.SIGKILL} if kill_at else {0}):
        raise AssertionError(
            f"the bridge ended with {done.returncode}: {done.stderr.decode(errors='replace')[-4000:]}"
        )
    report = read_report(folder)
    if not kill_at and (report is None or not report.ended):
        raise AssertionError(
            f"not all is delivered: {report}; {done.stderr.decode(errors='replace')[-4000:]}"
        )


def _header(job: ConformanceJob, segment: Segment) -> SegmentHeader:
    host = this_host()
    return SegmentHeader(
        instance_id=segment.instance_id,
        run_id=job.run_id,
        project=job.project,
        run_name=job.name,
        kind=segment.kind,
        resource=segment.resource,
        exporters={},
        destinations={},
        host=host.name,
        boot_id=host.boot_id,
        pid=0,  # no process: it is dead
        start_ticks=0,
        created_unix_ns=segment.frames[0].append_unix_ns,
        role=segment.role,
    )


class _Killing:
    """Kills its process in the middle of a writer's call, or right after it, before anything is remembered."""

    def __init__(self, writer: RunWriter, at: int) -> None:
        self._writer, self._left = writer, at

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    def write_rows(self, rows: Sequence[Row]) -> None:
        self._written(rows)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        self._written(rollouts)

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        self._written(values)

    def _written(self, records: Sequence[Record]) -> None:
        write(self._writer, records[: self._left])
        self._left -= len(records)
        if self._left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    """Do what lies pickled at ``argv[0]``."""
    job: Play = pickle.loads(Path(argv[0]).read_bytes())  # written by play
    exporter = load_target(job.target)
    if job.kill_at:
        exporter = dataclasses.replace(exporter, open=_killing(exporter, job.kill_at))
    env = bridge_environment(os.environ)
    read = BridgeOptions.read(env, Path.cwd())
    options = dataclasses.replace(
        read,
        exporter_env=ExporterEnvironment(env, Path.cwd(), load=lambda _: exporter),
        exporters=dict.fromkeys(SIGNALS, (NAME,)),
        closing=True,
    )
    folder = RunFolder.at(job.folder)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    host = BridgeSupervisor(
        folder.base, options, folders=lambda: [folder], until_done=True, log_line=say
    )
    host.serve()
    sys.stderr.flush()
    if host.hanging:
        os._exit(1)
    return 0


def _killing(
    exporter: Exporter, at: int
) -> Callable[[RunInfo, ExporterSettings, WriterMemory], RunWriter]:
    def opened(
        run: RunInfo, settings: ExporterSettings, memory: WriterMemory
    ) -> RunWriter:
        return cast("RunWriter", _Killing(exporter.open(run, settings, memory), at))

    return opened


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
