"""A service under fire for as long as asked: ``python -m benchmarks.soak --minutes 60``.

Clients of many runs and roles send rows over HTTP and begin new runs as old ones end; a tracker goes away and comes
back; the service is killed and started again. At the end every acknowledged row must be in the tracker. Nothing may
grow with the number of rows: files, threads and memory are held to what the runs open at one time need. In a long soak,
of five minutes and more, kills are rare, so that lives are long: there memory is also compared between the two halves
of a life, and the half in which more runs were open may take what those need.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs

from benchmarks.collector.service import FREE, OFF, Service
from benchmarks.soak.storm import storm
from otel_bridge import semconv
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from otel_bridge.records import Json
from support.conformance import messages

_ROLES = ("trainer", "explorer", "evaluator")
_CLIENTS = 4
_RUNS_AT_A_TIME = 3
_BATCH, _KEYS, _BATCHES_OF_A_RUN = 25, 10, 60
_PAUSE_S = 0.05
_KEPT_OPEN_S = 90.0
_WINDOW_ROWS = 6_000
_AWAY_EVERY_S, _AWAY_S = 67.5, 22.5
"""The tracker is there first: a third of the time it is away, and about a third of the kills fall into that."""
_BETWEEN_KILLS_S, _LONG_S, _LONG_LIFE_S = 45.0, 300.0, 300.0
_TELLING_ROWS = 200_000
"""What grows with fewer rows is not seen beside the runs that come and go."""
_RSS, _RSS_A_RUN = 208 << 20, 5 << 19
"""Measured in ten minutes, when all that waited for the tracker goes out at once: 192 MiB and 2.5 MiB a run."""
_MORE_MEMORY = 1.25
_CLOSES_S = 10.0
"""How long after its end a run is closed at the latest."""
_OLD_REPORTS_S = 10.0
"""After a kill every run of late is looked at anew; until then the reports tell of the life before."""
_CLOSING_RUNS = _CLIENTS * _RUNS_AT_A_TIME
"""Runs that have just ended may still be open."""
_T0 = 1_800_000_000_000_000_000
_FILES, _FILES_A_RUN, _FILES_ASLEEP, _THREADS, _THREADS_A_RUN = 64, 18, 4, 16, 2


@dataclass(frozen=True)
class Sample:
    """The service at one count of rows."""

    life: int
    age_s: float
    rows: int
    rss: int
    files: int
    threads: int
    disk: int
    undelivered: int
    """Runs that are sent, end, ended a moment ago, or wait for the tracker: their folders are open."""
    young: int
    """Runs begun in this life of late: a receiver keeps their segments open for a minute, and the bridge its locks."""


@dataclass
class Sent:
    """What was acknowledged: rows of each run by id, and how many in all. Any thread."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: dict[str, set[str]] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)
    count: int = 0
    refused: dict[int | str, int] = field(default_factory=dict)

    def took(self, run: str, ids: set[str]) -> None:
        with self.lock:
            self.rows.setdefault(run, set()).update(ids)
            self.begun.setdefault(run, time.monotonic())
            self.count += len(ids)

    def refuse(self, why: int | str) -> None:
        with self.lock:
            self.refused[why] = self.refused.get(why, 0) + 1


class Target:
    """``otel-bridge serve``, started again after each kill at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lives = folder, 0
        self.address, self._began_s = FREE, 0.0
        self.start()

    def start(self) -> None:
        self.lives, self._began_s = self.lives + 1, time.monotonic()
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "PYTHONPATH": str(self.folder / "site"),
            "SOAK_FOLDER": str(self.folder / "tracker"), "OTEL_BRIDGE_LIVENESS_TIMEOUT_S": "20",
        }  # fmt: skip
        self._life = Service(
            self.folder, env, exporters="soak,console", grpc=OFF, http=self.address
        )
        self.address = self._life.http

    def kill(self) -> None:
        self._life.kill()

    def end(self) -> int:
        return self._life.end(timeout_s=180)

    def sample(self, sent: Sent) -> Sample | None:
        now_s, rows = time.monotonic(), sent.count
        since_s, age_s = max(self._began_s, now_s - _KEPT_OPEN_S), now_s - self._began_s
        if self.lives > 1 and age_s < _OLD_REPORTS_S:
            return None
        with sent.lock:
            young = sum(began_s > since_s for began_s in sent.begun.values())
        with suppress(psutil.Error):
            seen = self._life.process
            with seen.oneshot():
                rss, files, threads = (
                    seen.memory_info().rss,
                    seen.num_fds(),
                    seen.num_threads(),
                )
            return Sample(
                self.lives,
                age_s,
                rows,
                rss,
                files,
                threads,
                self._disk(),
                self._undelivered(),
                young,
            )
        return None

    def _undelivered(self) -> int:
        reports = [read_report(folder) for folder in run_folders(self.folder / "runs")]
        young_ns = time.time_ns() - int(_CLOSES_S * 1e9)
        return sum(
            one is None or not one.ended or one.time_unix_ns > young_ns
            for one in reports
        )

    def _disk(self) -> int:
        total = 0
        for path in (self.folder / "runs").rglob("*"):
            with suppress(OSError):
                total += path.stat().st_size
        return total


def main() -> None:
    """Soak; exits 1 when a row is missing or something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--seconds-between-kills",
        type=float,
        help="default: 45, and up to 300 in a long soak",
    )
    parser.add_argument(
        "--storm",
        action="store_true",
        help="real trackers, three roles, everything killed: see storm.py",
    )
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the storm; printed"
    )
    asked = parser.parse_args()
    folder, seconds = (
        Path(tempfile.mkdtemp(prefix="otel-bridge-soak-")),
        asked.minutes * 60,
    )
    if asked.storm:
        print(f"storm with --seed {asked.seed}")
        faults = storm(folder, seconds, asked.seed)
    else:
        faults = soak(
            folder, seconds, asked.seconds_between_kills or _between_kills_s(seconds)
        )
    for line in faults:
        print(f"✗ {line}")
    if faults:
        print(f"all of it is in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    print(
        "✓ everything arrived, once"
        if asked.storm
        else "✓ every row arrived, nothing grew"
    )


def _between_kills_s(seconds: float) -> float:
    """Return how long a life is: in a long soak so long that there are halves to compare."""
    return min(seconds / 3, _LONG_LIFE_S) if seconds >= _LONG_S else _BETWEEN_KILLS_S


def soak(folder: Path, seconds: float, between_kills_s: float) -> list[str]:
    """Run it in *folder*; return what is wrong, one line each."""
    _install(folder)
    (folder / "tracker").mkdir()
    service, sent = Target(folder), Sent()
    try:
        with _clients(service, sent) as stop:
            samples = list(_trouble(service, sent, seconds, between_kills_s))
            stop.set()
        (folder / "tracker" / "away").unlink(missing_ok=True)
        code = _everything_ends(service)
    finally:
        service.kill()
    print(
        f"{sent.count:,} rows of {len(sent.rows)} runs, {service.lives} lives, refused {sent.refused or 'none'}"
    )
    faults = [*_missing(folder, sent), *_grown(samples)]
    return (
        faults
        if code == 0
        else [*faults, f"serve ended with {code}: look at service.log"]
    )


def _install(folder: Path) -> None:
    info = folder / "site" / "soak_tracker-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("soak_tracker.py"), folder / "site")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: soak-tracker\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[otel_bridge.exporters]\nsoak = soak_tracker:exporter\n"
    )


def _trouble(
    service: Target, sent: Sent, seconds: float, between_kills_s: float
) -> Iterator[Sample]:
    """Take the tracker away and bring it back, kill the service and start it again; yield a sample a window."""
    began = last_kill = time.monotonic()
    away, window = service.folder / "tracker" / "away", 0
    while (now := time.monotonic()) - began < seconds:
        gone = (now - began) % _AWAY_EVERY_S > _AWAY_EVERY_S - _AWAY_S
        away.touch() if gone else away.unlink(missing_ok=True)
        if now - last_kill > between_kills_s:
            service.kill()
            service.start()
            last_kill = time.monotonic()
        if sent.count // _WINDOW_ROWS > window:
            window = sent.count // _WINDOW_ROWS
            if not gone and (found := service.sample(sent)) is not None:
                yield found
        time.sleep(0.2)


@contextmanager
def _clients(service: Target, sent: Sent) -> Iterator[threading.Event]:
    stop, numbers = threading.Event(), itertools.count(1)
    threads = [
        threading.Thread(target=_client, args=(service, sent, numbers, stop))
        for _ in range(_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _client(
    service: Target, sent: Sent, numbers: Iterator[int], stop: threading.Event
) -> None:
    session = requests.Session()
    while not stop.is_set():
        runs = [f"soak-{next(numbers)}" for _ in range(_RUNS_AT_A_TIME)]
        for batch in range(_BATCHES_OF_A_RUN):
            for run, role in itertools.product(runs, _ROLES):
                body, ids = _rows(run, role, batch)
                if not _send(service, session, sent, stop, ("metrics", body)):
                    return
                sent.took(run, ids)
            if stop.wait(_PAUSE_S):
                break
        for run, role in itertools.product(runs, _ROLES):
            if not _send(service, session, sent, stop, ("logs", _end(run, role))):
                return


def _send(
    service: Target,
    session: requests.Session,
    sent: Sent,
    stop: threading.Event,
    what: tuple[str, bytes],
) -> bool:
    """Send until it is acknowledged, as every client does; ``False``: it was not, and the soak is over."""
    signal_name, body = what
    headers = {"Content-Type": "application/x-protobuf"}
    while True:
        try:
            answer = session.post(
                f"http://{service.address}/v1/{signal_name}",
                body,
                headers=headers,
                timeout=10,
            )
        except requests.RequestException as exc:
            sent.refuse(type(exc).__name__)
        else:
            if answer.status_code == 200:
                return True
            sent.refuse(answer.status_code)
        if stop.wait(0.2):
            return False


def _rows(run: str, role: str, batch: int) -> tuple[bytes, set[str]]:
    """Return rows as our own emitter makes them, and their ids."""
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add(resource=messages.resource(_who(run, role)))
    ids: set[str] = set()
    for number in range(_BATCH):
        seq = batch * _BATCH + number + 1
        ids.add(f"m:{run}-{role}:{seq}")
        scope = part.scope_metrics.add(scope=messages.OURS)
        at_step = messages.pairs({semconv.STEP: seq})
        for key in range(_KEYS):
            gauge = scope.metrics.add(name=f"actor/metric_{key}").gauge
            gauge.data_points.add(
                as_double=seq / 7, time_unix_nano=_T0 + seq, attributes=at_step
            )
        said = messages.pairs({semconv.STEP: seq, semconv.SEQ: seq})
        mark = scope.metrics.add(name=semconv.ROW).gauge
        mark.data_points.add(as_int=_KEYS, time_unix_nano=_T0 + seq, attributes=said)
    return request.SerializeToString(), ids


def _end(run: str, role: str) -> bytes:
    seq = _BATCH * _BATCHES_OF_A_RUN
    said: dict[str, Json] = {
        semconv.RUN_STATUS: "finished",
        semconv.EVENT_SEQ: 1,
        semconv.SEQ: seq,
    }
    scope = ScopeLogs(
        scope=messages.OURS,
        log_records=[messages.event(semconv.EVENT_END, time.time_ns(), said)],
    )
    part = ResourceLogs(resource=messages.resource(_who(run, role)), scope_logs=[scope])
    return ExportLogsServiceRequest(resource_logs=[part]).SerializeToString()


def _who(run: str, role: str) -> dict[str, Json]:
    return {
        semconv.RUN_ID: run, semconv.PROJECT: "soak", semconv.RUN_NAME: run, semconv.ROLE: role,
        semconv.INSTANCE_ID: f"{run}-{role}",
    }  # fmt: skip


def _everything_ends(service: Target) -> int:
    """End the service until nothing remains: a drain has a limit, the next one goes on."""
    for _ in range(5):
        code = service.end()
        if code == 0:
            return 0
        service.start()
    return service.end()


def _missing(folder: Path, sent: Sent) -> Iterator[str]:
    twice = 0
    for run, ids in sent.rows.items():
        path = folder / "tracker" / run
        lines = path.read_text().split() if path.exists() else []
        lost = ids - set(lines)
        twice += len(lines) - len(set(lines))
        if lost:
            yield f"{run}: {len(lost)} of {len(ids)} acknowledged rows never reached the tracker, e.g. {min(lost)}"
    # This tracker cannot tell what it holds, so what was written just before a kill comes again.
    print(f"rows that the kills brought twice: {twice}")


def _grown(samples: list[Sample]) -> Iterator[str]:
    """Compare files, threads and memory with what open runs need, and memory of the halves of a long life."""
    compared = 0
    for life, group in itertools.groupby(samples, key=lambda sample: sample.life):
        given = list(group)
        yield from _beyond_need(life, given)
        # Before that a process imports, fills its bounded caches, and has not yet as many runs open as later.
        warm = [one for one in given if one.age_s >= _KEPT_OPEN_S]
        if len(warm) >= 4 and warm[-1].rows - warm[0].rows >= _TELLING_ROWS:
            compared += 1
            yield from _more_later(life, warm)
    if samples:
        print(
            f"largest disk {max(one.disk for one in samples):,} bytes; lives compared by halves: {compared}"
        )


def _beyond_need(life: int, given: list[Sample]) -> Iterator[str]:
    for what, fixed, for_a_run, seen in (
        (
            "open files",
            _FILES,
            _FILES_A_RUN,
            [one.files - _FILES_ASLEEP * one.young for one in given],
        ),
        ("threads", _THREADS, _THREADS_A_RUN, [one.threads for one in given]),
        ("bytes of memory", _RSS, _RSS_A_RUN, [one.rss for one in given]),
    ):
        limits = [
            fixed + for_a_run * (one.undelivered + _CLOSING_RUNS) for one in given
        ]
        rows = given[-1].rows - given[0].rows
        print(
            f"life {life}, {rows:,} rows: {what} {max(seen):,}, at most {max(limits):,}"
        )
        over = [
            f"{count} {what}, at most {limit}"
            for count, limit in zip(seen, limits, strict=True)
            if count > limit
        ]
        if over:
            yield f"life {life}: {over[0]} for the runs that are open"


def _more_later(life: int, warm: list[Sample]) -> Iterator[str]:
    """Compare medians: the peak after an outage may fall into either half."""
    halves = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    before, after = (statistics.median(one.rss for one in half) for half in halves)
    runs_before, runs_after = (
        statistics.median(one.undelivered for one in half) for half in halves
    )
    print(
        f"life {life}, {warm[-1].rows - warm[0].rows:,} warm rows: memory {before:,.0f} → {after:,.0f} bytes"
    )
    if after > before * _MORE_MEMORY + _RSS_A_RUN * max(runs_after - runs_before, 0):
        yield f"life {life}: memory grew from {before:,.0f} to {after:,.0f} bytes from one half of its life to the next"


if __name__ == "__main__":
    main()
