"""One Kafka broker on loopback, its jars fetched by Maven: for a test of what goes through Kafka."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from support.collector.otelcol_programs import Service, cache, collector_environment
from support.free_ports import free_port
from support.waiting import HANG_S

POM = Path(__file__).resolve().parents[2] / "clients" / "kafka" / "pom.xml"
VERSION = "4.1.0"
TOPICS = ("otlp_metrics", "otlp_spans", "otlp_logs")
PARTITIONS = 4
_UUID = "4L6g3nShT-eMCtK--X86sw"
_HEAP = ["-Xmx400m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def _jars() -> str:
    """The class path, fetched once."""
    for name in ("java", "mvn"):
        if shutil.which(name) is None:
            pytest.skip(f"no {name} on this machine: a Kafka broker needs it")
    place = cache() / "kafka" / VERSION
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=place.parent))
        fetch = [
            "mvn",
            "-q",
            "-B",
            "-f",
            str(POM),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={work}",
        ]
        done = subprocess.run(
            fetch, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert done.returncode == 0, done.stdout
        with suppress(OSError):  # another test run was first
            work.rename(place)
        shutil.rmtree(work, ignore_errors=True)
    return f"{place}/*"


def broker(folder: Path) -> Service:
    """A broker that keeps its topics in *folder*; `make_topics` once it runs."""
    jars, port, control = _jars(), free_port(), free_port()
    properties = folder / "server.properties"
    properties.write_text(
        f"""
        process.roles=broker,controller
        node.id=1
        controller.quorum.voters=1@127.0.0.1:{control}
        controller.listener.names=CONTROLLER
        listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
        advertised.listeners=PLAINTEXT://127.0.0.1:{port}
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
        log.dirs={folder}/topics
        num.partitions={PARTITIONS}
        message.max.bytes=8388608
        offsets.topic.replication.factor=1
        offsets.topic.num.partitions=1
        transaction.state.log.replication.factor=1
        transaction.state.log.min.isr=1
        group.initial.rebalance.delay.ms=0
        """
    )
    java = ["java", *_HEAP, "-cp", jars]
    _run(
        [*java, "kafka.tools.StorageTool", "format", "-t", _UUID, "-c", str(properties)]
    )
    return Service(
        [*java, "kafka.Kafka", str(properties)],
        collector_environment(),
        port,
        folder / "kafka.log",
    )


def make_topics(of: Service) -> None:
    """Make the three topics with equal numbers of partitions."""
    command = [
        "java",
        *_HEAP,
        "-cp",
        _jars(),
        "org.apache.kafka.tools.TopicCommand",
        "--create",
    ]
    where = [
        "--bootstrap-server",
        f"127.0.0.1:{of.port}",
        "--partitions",
        str(PARTITIONS),
    ]
    made = [
        subprocess.Popen(
            [*command, *where, "--topic", topic], stdout=subprocess.DEVNULL
        )
        for topic in TOPICS
    ]
    assert [one.wait(60) for one in made] == [0, 0, 0]


def consumed(of: Service) -> set[tuple[str, str]]:
    """Partition and key of every message in the three topics, at least one; the consumer ends when it is idle."""
    where = [
        "--bootstrap-server",
        f"127.0.0.1:{of.port}",
        "--include",
        "|".join(TOPICS),
        "--from-beginning",
    ]
    shown = ["print.key=true", "print.partition=true", "print.value=false"]
    options = [part for one in shown for part in ("--property", one)]
    command = [
        "java",
        *_HEAP,
        "-cp",
        _jars(),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *where,
        *options,
    ]
    # On a busy machine a consumer may be idle because the broker has not yet given it its partitions.
    for idle_ms in (4_000, 60_000):
        done = subprocess.run(
            [*command, "--timeout-ms", str(idle_ms)],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert "Processed a total of" in done.stderr, done.stdout + done.stderr
        if done.stdout:
            break
    return {
        (partition, key)
        for partition, key in (line.split("\t") for line in done.stdout.splitlines())
    }


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
