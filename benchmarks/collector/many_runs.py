"""A service with more runs than may be at work at one time: how long until all are delivered, how much memory it takes.

``python -m benchmarks.collector.many_runs --runs 10000`` (the default limit of files), or with few files:
``--runs 200 --files 200``.
"""

from __future__ import annotations

import argparse
import http.client
import os
import resource
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from urllib.error import HTTPError

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from benchmarks.collector.service import OFF, Service
from benchmarks.results import Result, reported, show
from otel_bridge import semconv
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from otel_bridge.records import Json
from support.conformance import messages

RUNS = 200
ROWS = 3
_T0 = 1_800_000_000_000_000_000
_LOOK_S = 1.0
_LIMIT_S = 3_600.0


def run() -> list[Result]:
    """Return the results for a few hundred runs."""
    return measure(RUNS, exporters="file")


def measure(runs: int, *, exporters: str) -> list[Result]:
    """Send *runs* runs to a service and wait until all are delivered.

    Args:
        runs: How many.
        exporters: Names, with commas.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("OTEL_")
        }
        service = Service(folder, env, exporters=exporters, grpc=OFF)
        try:
            began_s = time.monotonic()
            refused = _send(service.http, runs)
            taken_s = time.monotonic() - began_s
            peak_bytes, unready, delivered = 0, 0, 0
            while delivered < runs and time.monotonic() - began_s < _LIMIT_S:
                time.sleep(_LOOK_S)
                delivered = _delivered(folder / "runs", exporters)
                peak_bytes = max(peak_bytes, service.process.memory_info().rss)
                unready += not _ready(service.http)
            took_s = time.monotonic() - began_s
        finally:
            service.kill()
    return [
        Result(
            "runs delivered", delivered, None, "runs", f"= {runs}", delivered == runs
        ),
        Result("/readyz other than 200", unready, None, "looks", "= 0", unready == 0),
        reported("requests refused and sent again", refused, "requests"),
        reported("until all are taken", taken_s, "s"),
        reported("until all are delivered", took_s, "s"),
        reported("memory at most", peak_bytes / 1e6, "MB"),
    ]


def _send(address: str, runs: int) -> int:
    """Send the rows of each run until they are acknowledged; return how many requests were refused."""
    connection, refused = http.client.HTTPConnection(address, timeout=60), 0
    for number in range(runs):
        while True:
            connection.request(
                "POST",
                "/v1/metrics",
                _body(number),
                {"Content-Type": "application/x-protobuf"},
            )
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            refused += 1
            time.sleep(_LOOK_S)
    connection.close()
    return refused


def _body(number: int) -> bytes:
    request = ExportMetricsServiceRequest()
    who: dict[str, Json] = {
        semconv.PROJECT: "bench", semconv.RUN_NAME: f"run-{number}", semconv.RUN_ID: f"run-{number:06d}",
        semconv.SERVICE_NAME: "trainer",
    }  # fmt: skip
    part = request.resource_metrics.add(resource=messages.resource(who))
    gauge = part.scope_metrics.add().metrics.add(name="loss").gauge
    for step in range(ROWS):
        said = messages.pairs({semconv.STEP: step, semconv.ROLE: "trainer"})
        gauge.data_points.add(
            as_double=step / 7, time_unix_nano=_T0 + step, attributes=said
        )
    return request.SerializeToString()


def _delivered(base: Path, exporters: str) -> int:
    names = exporters.split(",")
    reports = [read_report(folder) for folder in run_folders(base)]
    return sum(
        report is not None
        and all(
            name in report.exporters and report.exporters[name].rows == ROWS
            for name in names
        )
        for report in reports
    )


def _ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
            return bool(answer.status == 200)
    except HTTPError:
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table for the runs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument(
        "--files", type=int, default=None, help="limit of open files of the service"
    )
    parser.add_argument("--exporters", default="file")
    asked = parser.parse_args(arguments)
    if (
        asked.files is not None
    ):  # both limits: the service raises the soft one as far as it may
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked.files, asked.files))
    show(f"{asked.runs} runs", measure(asked.runs, exporters=asked.exporters))


if __name__ == "__main__":
    main()
