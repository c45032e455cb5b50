"""Memory of a service: 100 runs, 5 roles each, 100 keys a row, one row a minute of a simulated hour; and its start-up.

Nothing waits for the hour: rows carry its times and come as fast as they are taken. Resident memory, threads and open
files are read at every tenth of the hour; they are bounded when the last tenths need no more than the first half did.
"""

from __future__ import annotations

import http.client
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.collector.service import Service, service
from benchmarks.results import Result, median, reported
from otel_bridge import semconv
from otel_bridge.emit.encode.protobuf import message
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.conformance import messages
from support.encoded_rows import encode_row

RUNS = int(os.environ.get("MEMORY_RUNS", "100"))
MINUTES = int(os.environ.get("MEMORY_MINUTES", "60"))
EXPORTERS = os.environ.get("MEMORY_EXPORTERS", "file")
_ROLES = ("trainer", "explorer", "evaluator", "reward", "judge")
_KEYS = [f"part_{key % 7}/metric_{key}" for key in range(100)]
_LOOKS = 10
_GROWTH = 1.2
_STARTS = 5
_T0 = 1_800_000_000_000_000_000
_MINUTE_NS = 60_000_000_000


@dataclass(frozen=True, slots=True)
class _Look:
    rss_mb: float
    threads: int
    files: int


def run() -> list[Result]:
    """Measure."""
    starts = [_started_s() for _ in range(_STARTS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        _service(folder, EXPORTERS) as serving,
    ):
        first = _look(serving.process)
        looks = _hour(serving, Path(folder, "runs"))
    return [_start_up(starts), *_memory(first, looks)]


def _start_up(starts: Sequence[float]) -> Result:
    took_s = median(starts)
    return Result(
        "start-up, no tracker",
        took_s,
        None,
        "s",
        "<= 1 s until it takes data",
        took_s <= 1.0,
    )


def _memory(first: _Look, looks: Sequence[_Look]) -> list[Result]:
    half = max(one.rss_mb for one in looks[: len(looks) // 2])
    last, highest = looks[-1], max(one.rss_mb for one in looks)
    what = f"{RUNS} runs x {len(_ROLES)} roles x {len(_KEYS)} keys, {MINUTES} min"
    goal = f"<= {_GROWTH:g} times the first half's"
    shown = " ".join(f"{one.rss_mb:.0f}" for one in looks)
    return [
        reported("memory when it begins", first.rss_mb, "MB"),
        Result(
            f"memory, {what} ({shown})",
            highest,
            None,
            "MB",
            goal,
            highest <= _GROWTH * half,
        ),
        reported("memory a run", (highest - first.rss_mb) / RUNS, "MB"),
        Result(
            "threads",
            last.threads,
            None,
            "",
            "<= 2 a run + 40",
            last.threads <= 2 * RUNS + 40,
        ),
        Result(
            "open files",
            last.files,
            None,
            "",
            "<= 20 a run + 60",
            last.files <= 20 * RUNS + 60,
        ),
    ]


def _hour(serving: Service, base: Path) -> list[_Look]:
    """Send the hour, a minute of all runs at a time; at each tenth wait until it is written, then look."""
    clients = [_Run(number) for number in range(RUNS)]
    connection = http.client.HTTPConnection(serving.http, timeout=60)
    looks: list[_Look] = []
    for minute in range(MINUTES):
        for client in clients:
            connection.request("POST", "/v1/metrics", client.request(minute), _PROTOBUF)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"HTTP {answer.status}")
        if (minute + 1) * _LOOKS % MINUTES < _LOOKS:
            _wait_until_written(base, (minute + 1) * len(_ROLES))
            looks.append(_look(serving.process))
    return looks


_PROTOBUF = {"Content-Type": "application/x-protobuf"}


class _Run:
    """The five processes of one run."""

    def __init__(self, number: int) -> None:
        self._resources = {role: _resource(number, role) for role in _ROLES}

    def request(self, minute: int) -> bytes:
        """Return one row of each role."""
        time_ns = _T0 + minute * _MINUTE_NS
        values = {key: (minute + at) / 7 for at, key in enumerate(_KEYS)}
        parts: list[bytes] = []
        for role in _ROLES:
            scope = encode_row(values, time_ns, minute, None, minute + 1)
            parts.append(
                message(1, message(1, self._resources[role]) + message(2, scope))
            )
        return b"".join(parts)


def _resource(number: int, role: str) -> bytes:
    return messages.resource({
        semconv.PROJECT: "memory", semconv.RUN_NAME: f"run-{number}", semconv.ROLE: role,
        semconv.INSTANCE_ID: f"{number}-{role}",
    }).SerializeToString()  # fmt: skip


def _wait_until_written(base: Path, rows: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        reports = [read_report(folder) for folder in run_folders(base)]
        if len(reports) == RUNS and all(
            one is not None
            and one.rows == rows
            and all(e.written == one.position for e in one.exporters.values())
            for one in reports
        ):
            return
        time.sleep(0.2)
    raise RuntimeError("not all is written in time")


def _look(process: psutil.Process) -> _Look:
    return _Look(
        process.memory_info().rss / 1e6, process.num_threads(), process.num_fds()
    )


def _started_s() -> float:
    """Return how long a service takes until it says that it receives."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with _service(folder, ""):
            return time.monotonic() - began


def _service(folder: str, exporters: str) -> AbstractContextManager[Service]:
    env = {**os.environ, "OTEL_BRIDGE_FSYNC": "0", "OTEL_BRIDGE_DRAIN_TIMEOUT_S": "0.1"}
    return service(Path(folder), env, exporters=exporters)
