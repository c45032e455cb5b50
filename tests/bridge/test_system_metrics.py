"""System metrics: measured by the bridge, placed by time, prefixed by node; never a reason for a run to go on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from otel_bridge.bridge import system_metrics
from otel_bridge.bridge.options import BridgeOptions
from otel_bridge.bridge.supervisor import BridgeSupervisor
from otel_bridge.bridge.system_metrics import request
from otel_bridge.exporter import SIGNALS, RunInfo
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.records import Row, run_id_of
from otel_bridge_collector import Receiver, ReceiverSettings
from support.otlp.otlp_samples import LOGS, RECEIVER, RUN, Bench, end, logs, row, source
from support.trackers import conformance_reading, mlflow_reading
from support.trainers import e2e_jobs as job
from support.waiting import HANG_S

JOB = """
    import sys, threading
    import otel_bridge

    run = otel_bridge.init("maths", "ppo", role="trainer", system_metrics=True)
    run.log({"loss": 1.0}, step=1)
    sys.stdin.read()
    print(threading.active_count(), "psutil" in sys.modules)
    run.finish()
"""


def header(**attributes: object) -> SegmentHeader:
    resource = source("i1", "trainer", **attributes).resource
    return SegmentHeader(
        instance_id="i1", run_id=RUN, project="gsm8k", run_name="ppo", kind="process", resource=resource, exporters={},
        destinations={}, host="h", boot_id="b", pid=1, start_ticks=1, created_unix_ns=1,
    )  # fmt: skip


@pytest.mark.long
def test_the_bridge_measures_while_the_process_lives_and_every_tracker_shows_it(
    tmp_path: Path,
) -> None:
    base, uri = tmp_path / "base", mlflow_reading.database(tmp_path)
    trackers = {
        "MLFLOW_TRACKING_URI": uri, "TRACKIO_DIR": str(tmp_path / "trackio"), "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path / "wandb"),
    }  # fmt: skip
    env = job.environment(
        base,
        "file,wandb,mlflow,trackio",
        OTEL_BRIDGE_SYSTEM_METRICS_S="0.3",
        **trackers,
    )

    with job.no_bridge_left(base):
        process = job.start(job.script(tmp_path / "work" / "job.py", JOB), env)
        job.until(
            lambda: len([line for line in job.lines(base) if is_system(line)]) >= 2
        )
        out, err = process.communicate(timeout=HANG_S)
        job.until(lambda: job.ended(base))

    keys = {
        key for line in job.lines(base) if is_system(line) for key in line["values"]
    }
    assert (process.returncode, out.split()) == (0, [b"1", b"False"]), err.decode()
    assert job.status(base) == ["finished"]
    assert {
        "system/cpu.utilization/user", "system/memory.usage/used", "system/memory.utilization/used",
        "system/network.io/receive", "system/process.memory.usage/trainer", "system/process.cpu.utilization/trainer",
    } <= keys  # fmt: skip
    assert {key.partition("/")[0] for key in keys} == {"system"}
    run = RunInfo(run_id_of("maths", "ppo"), "maths", "ppo", tmp_path)
    for shown in (
        conformance_reading.wandb_offline(tmp_path / "wandb", run),
        conformance_reading.mlflow(uri, run),
        conformance_reading.trackio(tmp_path / "trackio", run),
    ):
        held = {scalar.key for scalar in shown.contents.scalars}
        assert held == {"trainer/loss", *keys}
        used = [
            scalar.value
            for scalar in shown.contents.scalars
            if scalar.key == "system/memory.usage/used"
        ]
        assert len(used) >= 2
        assert min(used) > 1e6


def is_system(line: dict[str, object]) -> bool:
    return line["kind"] == "row" and any(
        key.startswith("system/") for key in line["values"]
    )


def test_measurements_are_of_the_run_and_the_node_not_of_a_role_or_rank() -> None:
    bench = Bench()
    bench.open(source("i1"))

    near = bench.request(request(header(), {"cpu.utilization/user": 0.5}, 7))
    far = bench.request(
        request(header(rl_node_rank=2, rl_rank=3), {"cpu.utilization/user": 0.25}, 8)
    )
    again = bench.request(request(header(), {"cpu.utilization/user": 0.5}, 7))

    assert [
        (r.role, r.step, r.axis, r.time_unix_ns, dict(r.values))
        for r in (*near, *far)
        if isinstance(r, Row)
    ] == [
        (None, None, None, 7, {"system/cpu.utilization/user": 0.5}),
        (None, None, None, 8, {"system/node2/cpu.utilization/user": 0.25}),
    ]
    assert again == []


def test_a_measurement_that_comes_behind_the_end_opens_nothing_again() -> None:
    bench = Bench()
    bench.open(source("i1"))
    bench.metrics(source("i1"), row(1, {"loss": 1.0}))
    bench._all(
        [
            bench._frame(
                source("i1"), LOGS, logs(end("finished", 1, last_row=1)), whole=False
            )
        ]
    )
    assert bench.translator.status() == "finished"

    late = bench.request(
        request(header(), {"cpu.utilization/user": 0.5}, 7), sender=RECEIVER
    )

    assert (late, bench.translator.status()) == ([], "finished")


def test_devices_are_added_up_without_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counters = {
        name: SimpleNamespace(bytes_recv=received, bytes_sent=2 * received)
        for name, received in (("eth0", 5), ("eth1", 6), ("lo", 100))
    }
    monkeypatch.setattr(psutil, "net_io_counters", lambda *, pernic: counters)

    values = dict(system_metrics._machine())

    assert (values["network.io/receive"], values["network.io/transmit"]) == (11.0, 22.0)


def test_a_value_that_the_machine_does_not_have_costs_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_counters(*_: object, **__: object) -> None:
        raise OSError("no /proc/diskstats")

    monkeypatch.setattr(psutil, "disk_io_counters", no_counters)

    values = system_metrics.SystemSampler().take({os.getpid(): "trainer"})

    assert {
        "cpu.utilization/user", "memory.usage/used", "memory.utilization/used", "network.io/receive",
        "process.memory.usage/trainer",
    } <= values.keys()  # fmt: skip


def test_a_header_of_before_asks_for_no_measurements() -> None:
    asked = dataclasses.replace(header(), system_metrics_s=2.5)

    assert SegmentHeader.from_bytes(asked.to_bytes()).system_metrics_s == 2.5
    assert header().system_metrics_s == 0.0


@pytest.mark.slow
def test_a_machine_that_forwards_is_measured_there_and_shown_by_its_number(
    tmp_path: Path,
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    options = dataclasses.replace(
        BridgeOptions.read({}, tmp_path),
        exporters=dict.fromkeys(SIGNALS, ("file",)),
        local=False,
    )
    host, receiver = (
        BridgeSupervisor(there, options),
        Receiver(ReceiverSettings.from_environment({}, there)),
    )
    host.start()
    try:
        env = job.environment(
            here, "otlp", OTEL_BRIDGE_SYSTEM_METRICS_S="0.3", OTEL_BRIDGE_NODE_RANK="1",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.http_endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )  # fmt: skip
        with job.no_bridge_left(here):
            process = job.start(job.script(tmp_path / "work" / "job.py", JOB), env)
            job.until(lambda: any(is_system(line) for line in job.lines(there)))
            _, err = process.communicate(timeout=HANG_S)
            job.until(lambda: job.ended(there))
    finally:
        receiver.stop()
        host.stop()

    keys = {
        key for line in job.lines(there) if is_system(line) for key in line["values"]
    }
    assert process.returncode == 0, err.decode()
    assert job.status(there) == ["finished"]
    assert {key.partition("/")[2].partition("/")[0] for key in keys} == {"node1"}
    assert "system/node1/process.memory.usage/trainer" in keys


class Nvml:
    """NVML as far as it is asked: GPU 1 has fallen off the bus, GPU 2 knows no power."""

    NVML_TEMPERATURE_GPU = 0

    def __getattr__(self, name: str):
        given = {
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=4 << 30, total=16 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=75),
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPowerUsage": 250_000,
        }

        def ask(handle: int, *_: object) -> object:
            if handle == 1 or (handle == 2 and name == "nvmlDeviceGetPowerUsage"):
                raise RuntimeError("GPU is lost")
            return given[name]

        return ask


def test_gpus_report_what_they_can_and_a_lost_one_costs_no_other() -> None:
    values = system_metrics._of_gpus(Nvml(), [0, 1, 2])

    whole = {
        "utilization": 0.75,
        "memory.usage": float(4 << 30),
        "memory.utilization": 0.25,
        "temperature": 61.0,
    }
    assert values == {
        **{
            f"gpu.{name}/{number}": value
            for number in (0, 2)
            for name, value in whole.items()
        },
        "gpu.power/0": 250.0,
    }


def test_processes_of_one_role_are_added_up_and_dead_ones_left_out() -> None:
    taken = system_metrics.SystemSampler()
    taken.take({os.getpid(): "trainer"})

    alone = taken.take({os.getpid(): "trainer"})
    both = taken.take(
        {os.getpid(): "trainer", os.getppid(): "trainer", 2**22 + 1: "gone"}
    )

    key = "process.memory.usage/trainer"
    assert 0 < alone[key] < both[key]
    assert not [name for name in both if name.endswith("/gone")]
