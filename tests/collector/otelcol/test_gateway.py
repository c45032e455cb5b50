"""Agent and gateway as a site runs them: where each run goes, and what Prometheus and the archive get."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.records import run_id_of
from support.collector.otelcol_chain import chain
from support.collector.otelcol_jobs import Jobs, held
from support.collector.otelcol_programs import TOKEN, bridge, collector, running
from support.free_ports import free_pair, free_port
from support.trainers.e2e_jobs import ended, lines, no_bridge_left, until
from support.waiting import ANSWER_S

pytestmark = pytest.mark.slow


def records(base: Path) -> list[dict[str, object]]:
    """What ``file`` wrote, less the positions and the time at which the run's end was seen."""
    return [
        {key: value for key, value in line.items() if key != "position"}
        for line in lines(base)
    ]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    found = Jobs(tmp_path)
    with no_bridge_left(tmp_path):
        yield found


@pytest.mark.long
def test_each_run_stays_at_one_bridge_and_one_that_is_away_gets_all_of_its_rows_later(
    tmp_path: Path, jobs: Jobs
) -> None:
    with chain(tmp_path, "file", bridges=2) as site:
        ends = [tmp_path / "bridge-0", tmp_path / "bridge-1"]
        names: list[str] = []
        while not all(
            held(base) for base in ends
        ):  # which run goes where, the ports decide
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
        run_id_of("site", name): list(range(steps))
        for (name, _), steps in logged.items()
    }


def test_prometheus_gets_the_last_value_of_each_role_and_no_step(
    tmp_path: Path, jobs: Jobs
) -> None:
    with chain(tmp_path, "file") as site:
        for role in ("trainer", "explorer"):
            jobs.start("ppo", site.trainer(), role)
        logged = jobs.finish()
        until(lambda: ended(tmp_path / "bridge-0"))

        found = scraped(site.scrape_port)

    def labels(role: str) -> str:
        return f'project="site",rank="0",role="{role}",run="ppo"'

    own = {
        series: value
        for series, value in found.items()
        if series.startswith(("loss", "lr", "rl"))
    }
    assert own == {
        **{
            f"loss{{{labels(role)}}}": (steps - 1) / 2
            for (_, role), steps in logged.items()
        },
        **{f"lr{{{labels(role)}}}": 1e-3 for _, role in logged},
    }


def test_the_archive_brings_another_bridge_to_the_same_records(
    tmp_path: Path, jobs: Jobs
) -> None:
    with chain(tmp_path, "file") as site:
        jobs.start("ppo", site.trainer())
        logged = jobs.finish()
        until(lambda: ended(tmp_path / "bridge-0"))
        assert site.gateway.stop() == 0
    port = free_pair()
    with running(bridge(tmp_path / "other", port, "file")):
        where = {
            "BRIDGE": f"127.0.0.1:{port}",
            "BRIDGE_INSECURE": "true",
            "GATEWAY_ARCHIVE": site.archive,
        }
        with running(collector(tmp_path, "replay", 0, **where)):
            until(lambda: ended(tmp_path / "other"))

    assert held(tmp_path / "other") == {
        run_id_of("site", "ppo"): list(range(logged["ppo", "trainer"]))
    }
    # The pipelines of a Collector are independent: a config, which is a log record, may arrive behind rows.
    found, wanted = (
        sorted(map(repr, records(tmp_path / where))) for where in ("other", "bridge-0")
    )
    assert found == wanted


def test_a_companys_own_collector_keeps_its_prometheus_and_feeds_the_bridge(
    tmp_path: Path, jobs: Jobs
) -> None:
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
        where = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{taken}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        jobs.start("ppo", where)
        logged = jobs.finish()["ppo", "trainer"]
        until(lambda: ended(tmp_path / "bridge"))

        found = scraped(scrape)

    assert held(tmp_path / "bridge") == {run_id_of("site", "ppo"): list(range(logged))}
    assert {
        series: value for series, value in found.items() if series.startswith("loss")
    } == {"loss{}": (logged - 1) / 2}


def test_the_gateway_lets_nobody_in_without_the_token(
    tmp_path: Path, jobs: Jobs
) -> None:
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
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S
    ) as answer:
        text = answer.read().decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            kept = [
                one
                for one in labels.rstrip("}").split(",")
                if not one.startswith(_OF_THE_EXPORTER)
            ]
            found[f"{name}{{{','.join(sorted(kept))}}}"] = float(value)
    return found


_OF_THE_EXPORTER = ("job=", "instance=", "otel_scope_")
