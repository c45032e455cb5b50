"""``otel-bridge serve`` as a process, and what its run folder says."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import Report, read_report
from support.otlp.otlp_samples import RUN, metrics_request, row, who
from support.trainers.command_runs import BIN
from support.waiting import ANSWER_S, HANG_S


class Service:
    """A running service; *before*: what it said ahead of its first line about where it receives."""

    def __init__(self, process: subprocess.Popen[str], first: str, before: str) -> None:
        self.process, self.first, self.before = process, first, before
        endpoints = re.findall(r"http://[^\s;]+", first)
        self.grpc, self.http = endpoints[0], endpoints[-1]

    def send(self, *seqs: int) -> int:
        body = metrics_request((who(), [row(seq, {"loss": seq / 2}) for seq in seqs]))
        asked = urllib.request.Request(
            f"{self.http}/v1/metrics", body, {"Content-Type": "application/x-protobuf"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
                status: int = answer.status
                return status
        except HTTPError as exc:
            return exc.code

    def end(self, times: int = 1) -> tuple[int, str]:
        """Send SIGTERM, *times*, each once the one before was noticed; returns the exit code and what was said."""
        said = ""
        assert self.process.stderr is not None
        for _ in range(times):
            self.process.send_signal(signal.SIGTERM)
            while "shutting down: refusing" not in said:
                line = self.process.stderr.readline()
                assert line, f"it ended with {self.process.wait(HANG_S)}: {said}"
                said += line
        rest = self.process.communicate(timeout=HANG_S)[1]
        return self.process.returncode, said + rest


@contextmanager
def service(
    cwd: Path, env: Mapping[str, str], *options: str, files: int | None = None
) -> Iterator[Service]:
    """Run a service; *files*: how many it may have open."""
    call = [
        str(BIN / "otel-bridge"),
        "serve",
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        *options,
    ]
    if files is not None:
        call = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *call]
    process = subprocess.Popen(
        call, cwd=cwd, env=dict(env), stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        before, first = "", process.stderr.readline()
        while first and "receives at" not in first:
            before, first = before + first, process.stderr.readline()
        assert first, before
        yield Service(process, first, before)
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


def folder_of(cwd: Path) -> RunFolder:
    return RunFolder(cwd / ".otel-bridge", RUN)


def exporter_is(state: str, name: str = "otlp") -> Callable[[Report], bool]:
    return lambda report: (
        name in report.exporters and report.exporters[name].state == state
    )


def written_rows(folder: RunFolder, exporter: str) -> int:
    report = read_report(folder)
    found = None if report is None else report.exporters.get(exporter)
    return 0 if found is None else found.rows
