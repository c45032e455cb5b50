"""Agent and gateway as a site runs them: where each run goes, and what Prometheus and the archive get."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command_runs import values
from e2e_jobs import CLEAN, acked, ended, lines, no_bridge_left, script, start, until
from otelcol_chain import chain
from otelcol_programs import TOKEN, bridge, collector, free_pair, free_port, running

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import ExporterReport, read_report
from otel_bridge.records import run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

JOB = """
import time
name, role, acks = sys.argv[1], sys.argv[2], Acks(sys.argv[3])
run = otel_bridge.init("site", name, role=role, config={"lr": 0.1})
step = 0
while not os.path.exists(sys.argv[3] + ".stop"):
    acks.log(run, {"loss": step / 2, "lr": 1e-3}, step)
    step += 1
    time.sleep(0.01)
run.finish(timeout_s=60)
"""


class Jobs:
    """Trainers of several runs, each with a folder of its own, as on machines of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = script(folder / "train.py", JOB, acknowledging=True)
        self._jobs: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def start(self, name: str, where: Mapping[str, object], role: str = "trainer") -> None:
        """Start a trainer that knows nothing but *where* OTLP goes."""
        known = {variable: str(value) for variable, value in where.items()}
        env = {**CLEAN, "OTEL_BRIDGE_DIR": str(self._machine(name, role)), "OTEL_BRIDGE_QUIET": "1", **known}
        self._jobs[name, role] = start(self._code, env, name, role, str(self._folder / f"{name}-{role}"))

    def exporter(self, name: str) -> ExporterReport:
        """How the exporter ``otlp`` of a trainer's machine is."""
        folders = run_folders(self._machine(name, "trainer"))
        report = read_report(folders[0]) if folders else None
        return ExporterReport() if report is None else report.exporters.get("otlp", ExporterReport())

    def _machine(self, name: str, role: str) -> Path:
        return self._folder / f"machine-{name}-{role}"

    def acked(self, name: str, role: str = "trainer") -> int:
        return len(acked(self._folder / f"{name}-{role}"))

    def finish(self) -> dict[tuple[str, str], int]:
        """End them all; returns how many rows each logged."""
        until(lambda: all(self.acked(*who) > 50 for who in self._jobs))
        for name, role in self._jobs:
            (self._folder / f"{name}-{role}.stop").touch()
        for (name, role), job in self._jobs.items():
            _, errors = job.communicate(timeout=90)
            assert job.returncode == 0, (name, role, errors)
        return {who: self.acked(*who) for who in self._jobs}


def records(base: Path) -> list[dict[str, object]]:
    """What ``file`` wrote, less the positions and the time at which the run's end was seen."""
    return [{key: value for key, value in line.items() if key != "position"} for line in lines(base)]


def held(base: Path) -> dict[str, list[int]]:
    """Run id to the steps of its rows, as the bridge's exporter ``file`` holds them."""
    found = {folder.run_id: values(folder).get("trainer/loss", []) for folder in run_folders(base)}
    return {run_id: [step for step, _ in points if step is not None] for run_id, points in found.items() if points}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    found = Jobs(tmp_path)
    with no_bridge_left(tmp_path):
        yield found


def test_each_run_stays_at_one_bridge_and_one_that_is_away_gets_all_of_its_rows_later(
    tmp_path: Path, jobs: Jobs
) -> None:
    with chain(tmp_path, "file", bridges=2) as site:
        ends = [tmp_path / "bridge-0", tmp_path / "bridge-1"]
        names: list[str] = []
        while not all(held(base) for base in ends):  # which run goes where, the ports decide
            names.append(f"run-{len(names)}")
            jobs.start(names[-1], site.trainer())
            until(lambda: sum(len(held(base)) for base in ends) == len(names))
        before = [set(held(base)) for base in ends]
        site.bridges[0].kill()
        there = {name: jobs.acked(name) for name in names}
        until(lambda: all(jobs.acked(name) > there[name] + 100 for name in names))
        site.gateway.kill()
        site.gateway.start()
        site.bridges[0].start()

        logged = jobs.finish()
        until(lambda: all(ended(base) for base in ends))

    shown = [held(base) for base in ends]
    assert [set(found) for found in shown] == before
    assert {**shown[0], **shown[1]} == {
        run_id_of("site", name): list(range(steps)) for (name, _), steps in logged.items()
    }


def test_prometheus_gets_the_last_value_of_each_role_and_no_step(tmp_path: Path, jobs: Jobs) -> None:
    with chain(tmp_path, "file") as site:
        for role in ("trainer", "explorer"):
            jobs.start("ppo", site.trainer(), role)
        logged = jobs.finish()
        until(lambda: ended(tmp_path / "bridge-0"))

        found = scraped(site.scrape_port)

    def labels(role: str) -> str:
        return f'project="site",rank="0",role="{role}",run="ppo"'

    own = {series: value for series, value in found.items() if series.startswith(("loss", "lr", "rl"))}
    assert own == {
        **{f"loss{{{labels(role)}}}": (steps - 1) / 2 for (_, role), steps in logged.items()},
        **{f"lr{{{labels(role)}}}": 1e-3 for _, role in logged},
    }


def test_the_archive_brings_another_bridge_to_the_same_records(tmp_path: Path, jobs: Jobs) -> None:
    with chain(tmp_path, "file") as site:
        jobs.start("ppo", site.trainer())
        logged = jobs.finish()
        until(lambda: ended(tmp_path / "bridge-0"))
        assert site.gateway.stop() == 0
    port = free_pair()
    with running(bridge(tmp_path / "other", port, "file")):
        where = {"BRIDGE": f"127.0.0.1:{port}", "BRIDGE_INSECURE": "true", "GATEWAY_ARCHIVE": site.archive}
        with running(collector(tmp_path, "replay", 0, **where)):
            until(lambda: ended(tmp_path / "other"))

    assert held(tmp_path / "other") == {run_id_of("site", "ppo"): list(range(logged["ppo", "trainer"]))}
    assert records(tmp_path / "other") == records(tmp_path / "bridge-0")


def test_a_companys_own_collector_keeps_its_prometheus_and_feeds_the_bridge(tmp_path: Path, jobs: Jobs) -> None:
    port, taken, scrape = free_pair(), free_port(), free_port()
    own = collector(
        tmp_path,
        "existing-collector",
        taken,
        EXISTING_GRPC=f"127.0.0.1:{taken}",
        EXISTING_PROMETHEUS=f"127.0.0.1:{scrape}",
        EXISTING_QUEUE=tmp_path / "queue",
        BRIDGE=f"127.0.0.1:{port}",
        BRIDGE_INSECURE="true",
    )
    with running(bridge(tmp_path / "bridge", port, "file")), running(own):
        where = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{taken}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        jobs.start("ppo", where)
        logged = jobs.finish()["ppo", "trainer"]
        until(lambda: ended(tmp_path / "bridge"))

        found = scraped(scrape)

    assert held(tmp_path / "bridge") == {run_id_of("site", "ppo"): list(range(logged))}
    assert {series: value for series, value in found.items() if series.startswith("loss")} == {
        "loss{}": (logged - 1) / 2
    }


def test_the_gateway_lets_nobody_in_without_the_token(tmp_path: Path, jobs: Jobs) -> None:
    with chain(tmp_path, "file") as site:
        direct = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": site.gateway_endpoint,
            "OTEL_EXPORTER_OTLP_CERTIFICATE": site.certificate,
        }
        jobs.start("with", {**direct, "OTEL_BRIDGE_TOKEN": TOKEN})
        jobs.start("without", {**direct, "OTEL_BRIDGE_TOKEN": "wrong"})
        until(lambda: held(tmp_path / "bridge-0"))
        until(lambda: jobs.exporter("without").state == "blocked")

    assert set(held(tmp_path / "bridge-0")) == {run_id_of("site", "with")}
    assert "OTEL_BRIDGE_TOKEN" in jobs.exporter("without").help


def scraped(port: int) -> dict[str, float]:
    """What Prometheus would read, the labels that the exporter itself adds left out."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            kept = [one for one in labels.rstrip("}").split(",") if not one.startswith(_OF_THE_EXPORTER)]
            found[f"{name}{{{','.join(sorted(kept))}}}"] = float(value)
    return found


_OF_THE_EXPORTER = ("job=", "instance=", "otel_scope_")
