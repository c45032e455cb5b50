"""One service, all three trackers: what a row costs from OTLP to W&B, MLflow and Trackio at once, and who waits.

CPU of the whole process tree (W&B's own process too) from the first request until the run has ended in every tracker,
against the sum of what the same rows cost through each tracker's own bulk path, and one decode of the same requests.
And how fast each tracker gets on while all three are busy, beside what it does alone behind the same service.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.child import printed
from benchmarks.collector.ingest import cpu_s
from benchmarks.collector.service import OFF, Service, service
from benchmarks.peers import below
from benchmarks.results import Result
from benchmarks.trackers.three_trackers_load import end_request, requests
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import ExporterReport, read_report

ROWS = int(os.environ.get("THREE_ROWS", "6000"))
_WARM_ROWS = 200
_IN_FLIGHT = 4
_GOAL = 1.3
_FAIR = 1 / 6
"""Half of an even share."""
_WAIT_S = 120.0
TRACKERS = ("wandb", "mlflow", "trackio")
_PEERS = {"wandb": "wandb", "mlflow": "mlflow_batches", "trackio": "trackio_bulk"}
_SERVICE = "/opentelemetry.proto.collector.{0}.v1.{1}Service/Export"

_PEER = """
import sys
from pathlib import Path
from benchmarks import peers
name, rows = sys.argv[1], int(sys.argv[2])
peers.prepare(Path(sys.argv[3]))
import psutil
from benchmarks.collector.ingest import cpu_s
from benchmarks.trackers.three_trackers_load import rows_of
tracker = name.partition("_")[0]
__import__(tracker)
with getattr(peers, name)() as log:  # warm: the tracker's own process runs, its tables are there
    log({"warm": 1.0}, 0)
values = list(rows_of(rows))
process = psutil.Process()
began = cpu_s(process)
with getattr(peers, name)() as log:
    for step, row in enumerate(values): log(row, step)
print(cpu_s(process) - began)
"""
_DECODE = """
import sys, time
from benchmarks.trackers.three_trackers_load import decode, requests
sent = requests("run", int(sys.argv[1]))
began = time.process_time()
for data in sent: decode(data)
print(time.process_time() - began)
"""


@dataclass(frozen=True, slots=True)
class _Served:
    """One run through the service.

    Attributes:
        cpu_s: Of the process tree, from the first request until the run has ended everywhere.
        rates: Tracker to rows a second until the first of them had all.
        shares: Tracker to the part of the rows that it had then.
    """

    cpu_s: float
    rates: Mapping[str, float]
    shares: Mapping[str, float]


def run() -> list[Result]:
    """Measure."""
    peers, together = _peers_s(), _served(TRACKERS)
    ratio = together.cpu_s / sum(peers.values())
    parts = ", ".join(f"{name} {took:.2f}" for name, took in peers.items())
    what = (
        f"CPU of {ROWS:,} rows into all three (ours / sum = {ratio:.2f}; sum: {parts})"
    )
    results = [
        Result(
            what,
            together.cpu_s,
            sum(peers.values()),
            "s",
            f"<= {_GOAL:g} times the sum",
            ratio <= _GOAL,
        )
    ]
    first = max(together.shares, key=lambda name: together.shares[name])
    for name in TRACKERS:
        alone = _served((name,)).rates[name]
        rate, share = together.rates[name], together.shares[name]
        had = f"{rate / alone:.2f} of alone, {share:.0%} when {first} had all"
        what = f"rows/s into {name} beside two others ({had})"
        results.append(
            Result(
                what,
                rate,
                alone,
                "rows/s",
                f">= {_FAIR:.2f} of alone",
                rate >= _FAIR * alone,
            )
        )
    return results


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def _peers_s() -> dict[str, float]:
    """Return the CPU seconds of each tracker's own bulk path, and of one decode."""
    took = {"decode": float(printed(_DECODE, None, str(ROWS)))}
    for tracker, peer in _PEERS.items():
        with _folder() as folder:
            took[tracker] = float(printed(_PEER, None, peer, str(ROWS), folder))
    return took


def _served(trackers: Sequence[str]) -> _Served:
    with (
        _folder() as folder,
        _service(folder, trackers) as serving,
        grpc.insecure_channel(serving.grpc) as channel,
    ):
        base = Path(folder, "runs")
        _send(channel, "warm", _WARM_ROWS)
        _until_ended(base, trackers)
        cpu, began = cpu_s(serving.process), time.monotonic()
        _send(channel, "run", ROWS)
        at, rows = _until_ended(base, trackers, watched="run")
        cpu = cpu_s(serving.process) - cpu
    rates = {name: rows[name] / (at - began) for name in trackers}
    return _Served(cpu, rates, {name: rows[name] / ROWS for name in trackers})


def _send(channel: grpc.Channel, name: str, rows: int) -> None:
    export = channel.unary_unary(_SERVICE.format("metrics", "Metrics"), None, None)
    with ThreadPoolExecutor(_IN_FLIGHT) as senders:
        for answer in [
            senders.submit(export, data, 60.0) for data in requests(name, rows)
        ]:
            answer.result()
    channel.unary_unary(_SERVICE.format("logs", "Logs"), None, None)(
        end_request(name, rows), 60.0
    )


def _until_ended(
    base: Path, trackers: Sequence[str], *, watched: str = ""
) -> tuple[float, dict[str, int]]:
    """Wait until all runs have ended in every tracker.

    Returns:
        When the first tracker had all rows of the run *watched*, and how many each had then.
    """
    first: tuple[float, dict[str, int]] = (0.0, {})
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        reports = {
            report.name: report
            for report in map(read_report, run_folders(base))
            if report is not None
        }
        if watched in reports and not first[1]:
            rows = {name: one.rows for name, one in reports[watched].exporters.items()}
            if ROWS in rows.values():
                first = (
                    time.monotonic(),
                    {**rows, "mlflow": _rows_in_mlflow(base.parent / "mlflow.db")},
                )
        if {*reports} >= {"warm", watched or "warm"} and all(
            _all_ended(report.exporters, trackers) for report in reports.values()
        ):
            return first
        time.sleep(0.02)
    raise RuntimeError(f"not ended in {_WAIT_S:.0f} s")


def _rows_in_mlflow(database: Path) -> int:
    """Count in its store: the report counts a thousand rows at a time."""
    if not database.exists():
        return 0
    with contextlib.closing(sqlite3.connect(database)) as sql:
        return (
            int(
                sql.execute(
                    "SELECT count(*) FROM metrics WHERE key LIKE '%metric/0'"
                ).fetchone()[0]
            )
            - _WARM_ROWS
        )


def _all_ended(
    exporters: Mapping[str, ExporterReport], trackers: Sequence[str]
) -> bool:
    return {*exporters} == {*trackers} and all(
        one.state == "ended" for one in exporters.values()
    )


def _service(folder: str, trackers: Sequence[str]) -> AbstractContextManager[Service]:
    return service(
        Path(folder), below(Path(folder)), exporters=",".join(trackers), http=OFF
    )
