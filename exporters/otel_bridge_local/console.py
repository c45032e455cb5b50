"""The exporter ``console``: prints one line per row or rollout on standard output.

Under ``otel-bridge run`` that is the terminal. A bridge that runs by itself prints to the log file
of its run folder. What cannot be printed is a `RetryableError`: the bridge prints it again later.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO, TypeVar

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import ExporterSettings, RunInfo, RunWriter, WriterMemory
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.machine import this_host
from otel_bridge.records import (
    Alert,
    Distribution,
    Evaluation,
    Json,
    MediaRecord,
    PlainTrace,
    Position,
    RolloutRecord,
    Row,
    Scalar,
    Status,
    Value,
)
from otel_bridge.settings import LAUNCHER
from otel_bridge.text.printable import printable
from otel_bridge.values.mappings import present

R = TypeVar("R", Alert, Row, RolloutRecord, PlainTrace, Evaluation, MediaRecord)
_WIDTH = 80
"""Most characters of a text on a line."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Holds how the process was started; the console has no settings of its own.

    Attributes:
        launched: Whether `otel-bridge run`, which prints on the terminal, started the process.
    """

    launched: bool = False

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> ConsoleSettings:
        """Read whether ``otel-bridge run`` started this process. Any text counts, so that nothing is raised."""
        del cwd
        return cls(launched=bool(LAUNCHER.read(env)))

    @property
    def destination(self) -> Mapping[str, str]:
        """Return an empty mapping, because there is only one standard output."""
        return {}

    def view(self, run: RunInfo) -> str:
        """Return the command that follows the log of a bridge that runs by itself.

        Empty if it prints on a terminal.
        """
        folder = RunFolder.at(run.folder)
        # Under `run`, lines are already on the user's terminal.
        if not _is_stdout(folder.log_path) and (self.launched or _serves(folder)):
            return ""
        return f"tail -f {shlex.quote(str(folder.log_path))}"


def _is_stdout(log: Path) -> bool:
    """Return whether this process prints into *log*, as a bridge that runs by itself does."""
    try:
        return os.path.samestat(os.fstat(1), log.stat())
    except OSError:
        # Standard output is closed, or the log was never made: this process does not print there.
        return False


def _serves(folder: RunFolder) -> bool:
    """Return whether this process is the bridge of *folder*; ``False`` if none has held it yet."""
    holder = folder.holder()
    if holder is None:
        return False
    host = this_host()
    process = (os.getpid(), host.name, host.boot_id)
    return (holder.pid, holder.host, holder.boot_id) == process


def open_console(
    run: RunInfo, settings: ExporterSettings, memory: WriterMemory
) -> ConsoleRunWriter:
    """Return a writer on this process's standard output."""
    del settings, memory
    return ConsoleRunWriter(run, sys.stdout)


class ConsoleRunWriter(RunWriter):
    """Writes one run as text; after a kill or an error, lines may be printed again.

    The protocol's own methods: what was printed counts as durable, and standard output belongs to
    the process and stays open.
    """

    def __init__(self, run: RunInfo, stream: TextIO) -> None:
        self._name = run.name
        self._stream = stream
        # The log of a bridge has the encoding of its locale, which may lack characters of a text.
        self._encoding = getattr(stream, "encoding", None) or "utf-8"

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Print a line for each of *rows*."""
        self._print_each(rows, _row_text)

    def write_rollouts(self, rollouts: Sequence[RolloutRecord]) -> None:
        """Print a line for each of *rollouts*, with the last message."""
        self._print_each(rollouts, _rollout_text)

    def write_traces(self, traces: Sequence[PlainTrace]) -> None:
        """Print a line for each of *traces*: role, name, number of spans, duration, first error."""
        self._print_each(traces, _trace_text)

    def write_media(self, media: Sequence[MediaRecord]) -> None:
        """Print a line for each of *media*: key, kinds and sizes."""
        self._print_each(media, _media_text)

    def write_evaluations(self, values: Sequence[Evaluation]) -> None:
        """Print a line for each of *values*."""
        self._print_each(values, _evaluation_text)

    def write_config(self, role: str | None, config: Mapping[str, Json]) -> None:
        """Print the number of config entries, without their values."""
        name = role or "the run"
        self._print([f"{self._name} config of {name}: {len(config)} entries"])

    def write_alerts(self, alerts: Sequence[Alert]) -> None:
        """Print a line for each of *alerts*."""
        self._print_each(alerts, _alert_text)

    def write_summary(self, role: str | None, values: Mapping[str, Scalar]) -> None:
        """Print *values*."""
        del role
        self._print([f"{self._name} summary: {_clipped(_pairs(values))}"])

    def end(self, status: Status) -> None:
        """Print the end."""
        self._print([f"{self._name} run {status.value}"])

    def _print_each(self, records: Sequence[R], text_of: Callable[[R], str]) -> None:
        """Print the time and the text of each of *records*.

        Raises as `_print`, for the first of them.
        """
        if records:
            lines: list[str] = []
            for record in records:
                lines.append(f"{_clock(record)} {self._name} {text_of(record)}")
            self._print(lines, records[0].position)

    def _print(self, lines: Sequence[str], position: Position | None = None) -> None:
        """Print *lines* at once.

        Raises:
            RetryableError: The stream cannot be written, or was closed. It names *position*, since
                a buffer does not state which of its lines were shown.
        """
        printed: list[str] = []
        for line in lines:
            encoded = printable(line).encode(self._encoding, "backslashreplace")
            printed.append(f"{encoded.decode(self._encoding)}\n")
        try:
            self._stream.writelines(printed)
            self._stream.flush()
            # A command that works without its output keeps the error, and raises nothing.
            failure = getattr(self._stream, "failure", None)
            if isinstance(failure, OSError):
                raise failure
        except (OSError, ValueError) as exc:
            raise RetryableError(
                f"standard output cannot be written: {exc}", position=position
            ) from exc


def _clock(record: R) -> str:
    """Return the local time of *record*, of one that took time that of its end."""
    if isinstance(record, (RolloutRecord, PlainTrace)):
        time_unix_ns = record.end_unix_ns
    else:
        time_unix_ns = record.time_unix_ns
    return datetime.fromtimestamp(time_unix_ns / 1e9).strftime("%H:%M:%S.%f")[:-3]


def _row_text(row: Row) -> str:
    return f"{_axis(row)}{_pairs(row.values)}"


def _rollout_text(rollout: RolloutRecord) -> str:
    """Return step, key, known facts and the beginning of the last message of *rollout*."""
    answer = None
    if rollout.messages:
        answer = rollout.messages[-1].get("content")
    facts = {
        "group": rollout.group,
        "reward": rollout.reward,
        "finish": rollout.finish_reason,
    }
    facts_text = _pairs(present(facts))
    return f"{_axis(rollout)}{rollout.key} {facts_text} {_clipped(answer)}"


def _trace_text(trace: PlainTrace) -> str:
    """Return role, name, number of spans, duration and the first error of *trace*."""
    took_ms = (trace.end_unix_ns - trace.start_unix_ns) / 1e6
    error = next((span.error for span in trace.spans if span.error), None)
    summary = f"trace {trace.name} spans={len(trace.spans)} took={took_ms:.1f}ms"
    if error:
        summary += f" error={_clipped(error)}"
    if trace.role:
        return f"{trace.role} {summary}"
    return summary


def _media_text(record: MediaRecord) -> str:
    """Return step, key and items of *record*; no items where the content policy allows none."""
    items = " ".join(
        f"{item.kind}[{len(item.data)} bytes] {_clipped(item.caption)}"
        for item in record.items
    )
    return f"{_axis(record)}{record.key} {items}"


def _evaluation_text(evaluation: Evaluation) -> str:
    """Return rollout, name and value of *evaluation*; the label of one that has no number."""
    value: Json = evaluation.value
    if value is None:
        value = evaluation.label
    return f"{evaluation.rollout_id} {evaluation.name}={_clipped(value)}"


def _alert_text(alert: Alert) -> str:
    step = ""
    if alert.step is not None:
        step = f"step={alert.step} "
    return f"{step}{alert.level.upper()}: {_clipped(f'{alert.title} {alert.text}')}"


def _axis(record: Row | RolloutRecord | MediaRecord) -> str:
    """Return the step of *record* with its axis, and a space behind it; nothing without one."""
    if record.axis:
        return f"{record.axis}={record.step} "
    return ""


def _pairs(values: Mapping[str, Value | Scalar]) -> str:
    return " ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: Value | Scalar) -> str:
    """Return a number in six digits, a distribution by its count and range, anything else as it is."""
    if isinstance(value, Distribution):
        return f"[{value.count} values, {value.min:.6g} to {value.max:.6g}]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _clipped(text: Json) -> str:
    """Return the beginning of *text* on one line; nothing of ``None``."""
    if text is None:
        return ""
    one_line = " ".join(str(text).split())
    if len(one_line) <= _WIDTH:
        return one_line
    return one_line[: _WIDTH - 1] + "…"
