"""``kafka.yaml`` with a real broker: trainers → Collector → Kafka → Collector → bridge."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.records import run_id_of
from support.collector import kafka_broker
from support.collector.otelcol_jobs import Jobs, held
from support.collector.otelcol_programs import bridge, collector, running
from support.free_ports import free_pair, free_port
from support.trainers.e2e_jobs import ended, no_bridge_left, until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.environ.get("CI") != "true",
        reason="a Kafka broker takes most of a minute: only with CI=true",
    ),
]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with no_bridge_left(tmp_path):
        yield Jobs(tmp_path)


def test_a_run_keeps_its_partition_and_loses_nothing_while_broker_collector_and_bridge_are_killed(
    tmp_path: Path, jobs: Jobs
) -> None:
    kafka = kafka_broker.broker(tmp_path)
    port, taken = free_pair(), free_port()
    through = collector(
        tmp_path,
        "kafka",
        taken,
        KAFKA_IN_GRPC=f"127.0.0.1:{taken}",
        KAFKA_IN_HTTP=f"127.0.0.1:{free_port()}",
        KAFKA_BROKERS=json.dumps([f"127.0.0.1:{kafka.port}"]),
        KAFKA_QUEUE=tmp_path / "queue",
        BRIDGE=f"127.0.0.1:{port}",
        BRIDGE_INSECURE="true",
    )
    where = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{taken}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    runs = [("a", "trainer"), ("a", "explorer"), ("b", "trainer")]
    with running(kafka), running(bridge(tmp_path / "bridge", port, "file")) as end:
        kafka_broker.make_topics(kafka)
        with running(through):
            for name, role in runs:
                jobs.start(name, where, role)
            until(lambda: len(held(tmp_path / "bridge")) == 2)
            kafka.kill()
            jobs.go_on()
            through.kill()
            kafka.start()
            end.kill()
            through.start()
            jobs.go_on()
            end.start()
            logged = jobs.finish()

            until(
                lambda: (
                    held(tmp_path / "bridge", "explorer").get(run_id_of("site", "a"))
                    == _all(logged["a", "explorer"])
                )
            )
            until(lambda: held(tmp_path / "bridge")
                  == {run_id_of("site", name): _all(logged[name, "trainer"]) for name in ("a", "b")})  # fmt: skip
            until(lambda: ended(tmp_path / "bridge"))
            messages = kafka_broker.consumed(kafka)

    keys = sorted(key for _, key in messages)
    assert keys == sorted([run_id_of("site", "a"), run_id_of("site", "b")]), (
        "each in one partition, of all topics"
    )


def _all(steps: int) -> list[int]:
    return list(range(steps))
