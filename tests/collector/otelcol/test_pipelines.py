"""The pipelines for the stock Collector: each is valid, and none has what loses data."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.collector.otelcol_programs import OTELCOL, collector_environment, program
from support.waiting import HANG_S

PIPELINES = ["agent", "gateway", "kafka", "existing-collector", "replay", "engines"]
BESIDE_THE_WAY = {"prometheus", "file/archive"}
"""Exporters that no run depends on."""


def config(name: str) -> dict[str, Any]:
    return yaml.safe_load((OTELCOL / f"{name}.yaml").read_text("utf-8"))


def on_the_way(name: str) -> dict[str, Any]:
    return {
        key: found
        for key, found in config(name)["exporters"].items()
        if key not in BESIDE_THE_WAY
    }


def keys(value: Any) -> set[str]:
    """Every key below *value*."""
    if isinstance(value, dict):
        return set(value).union(*map(keys, value.values()))
    return set().union(*map(keys, value)) if isinstance(value, list) else set()


def test_every_pipeline_file_is_tested_here() -> None:
    assert sorted(path.stem for path in OTELCOL.glob("*.yaml")) == sorted(
        [*PIPELINES, "builder"]
    )


@pytest.mark.parametrize("name", PIPELINES)
def test_the_collector_finds_it_valid_also_with_little_memory(
    name: str, tmp_path: Path
) -> None:
    chosen: dict[str, str] = {}
    for who in ("AGENT", "GATEWAY", "KAFKA", "EXISTING", "ENGINES"):
        chosen[f"{who}_QUEUE"] = str(tmp_path / who)
        chosen[f"{who}_MEMORY_MIB"] = "100"
    command = [
        program("otelcol"),
        "validate",
        "--config",
        str(OTELCOL / f"{name}.yaml"),
    ]

    done = subprocess.run(
        command,
        env=collector_environment(**chosen),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", PIPELINES)
def test_every_limit_of_a_queue_and_of_memory_is_a_variable(name: str) -> None:
    whole = config(name)
    limits = [one.get("limit_mib") for one in whole.get("processors", {}).values()]
    for exporter in on_the_way(name).values():
        limits.append(exporter["sending_queue"].get("queue_size"))

    for limit in filter(None, limits):
        assert str(limit).startswith("${env:")


@pytest.mark.parametrize("name", PIPELINES)
def test_nothing_acknowledges_what_only_memory_holds_or_cuts_rows(name: str) -> None:
    whole = config(name)

    assert not any(
        one.partition("/")[0] == "batch" for one in whole.get("processors", {})
    )
    assert keys(whole).isdisjoint({"batch", "max_size"})
    for key, exporter in on_the_way(name).items():
        queue = exporter["sending_queue"]
        assert (
            queue.get("enabled") is False or queue["storage"] in whole["extensions"]
        ), key
        assert queue.get("enabled") is False or queue["sizer"] == "bytes", key


@pytest.mark.parametrize("name", PIPELINES)
def test_no_request_is_ever_given_up(name: str) -> None:
    given_up = {
        key: exporter["retry_on_failure"]["max_elapsed_time"]
        for key, exporter in on_the_way(name).items()
    }

    assert set(given_up.values()) == {0}


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "engines"])
def test_all_three_signals_go_the_whole_way(name: str) -> None:
    pipelines = config(name)["service"]["pipelines"]
    ways = {
        exporter: {
            key.partition("/")[0]
            for key, one in pipelines.items()
            if exporter in one["exporters"]
        }
        for exporter in on_the_way(name)
    }

    assert ways == {key: {"metrics", "traces", "logs"} for key in on_the_way(name)}


@pytest.mark.parametrize(
    "name", [name for name in PIPELINES if name not in {"replay", "engines"}]
)
def test_large_rollouts_are_not_refused(name: str) -> None:
    protocols = config(name)["receivers"]["otlp"]["protocols"]

    assert protocols["grpc"]["max_recv_msg_size_mib"] == 64
    assert (
        protocols.get("http", {"max_request_body_size": 64 << 20})[
            "max_request_body_size"
        ]
        == 64 << 20
    )


@pytest.mark.parametrize(
    ("name", "branch"),
    [("gateway", "metrics/prometheus"), ("existing-collector", "metrics")],
)
def test_only_the_branch_of_prometheus_loses_its_steps(name: str, branch: str) -> None:
    whole = config(name)
    pipelines = whole["service"]["pipelines"]

    (transform,) = {
        one
        for found in pipelines.values()
        for one in found.get("processors", [])
        if "transform" in one
    }
    (statements,) = whole["processors"][transform]["metric_statements"]
    assert [
        key
        for key, found in pipelines.items()
        if transform in found.get("processors", [])
    ] == [branch]
    assert pipelines[branch]["exporters"] == ["prometheus"]
    assert {
        'delete_key(attributes, "rl.step")',
        'delete_key(attributes, "rl.seq")',
    } <= set(statements["statements"])


def test_the_queue_of_the_load_balancer_is_its_own_and_not_its_exporters() -> None:
    balancer = config("gateway")["exporters"]["load_balancing/bridges"]

    assert balancer["sending_queue"]["storage"] == "file_storage/queue"
    assert balancer["protocol"]["otlp"]["sending_queue"] == {"enabled": False}
    assert balancer["protocol"]["otlp"]["retry_on_failure"] == {"enabled": False}
    assert balancer["routing_attributes"] == ["rl.run.id"]


@pytest.mark.parametrize("name", PIPELINES)
def test_no_secret_stands_in_a_file_and_only_the_gateway_listens_to_others(
    name: str,
) -> None:
    text = (OTELCOL / f"{name}.yaml").read_text("utf-8")

    assert set(re.findall(r"Bearer (\S+)", text)) <= {"${env:OTEL_BRIDGE_TOKEN}"}
    assert ("0.0.0.0" in text) is (name == "gateway")


def test_modules_of_the_builder_are_pinned_to_one_release() -> None:
    manifest = config("builder")
    modules = [
        one["gomod"].split()
        for kind, ones in manifest.items()
        if kind != "dist"
        for one in ones
    ]

    assert {version for path, version in modules if "/confmap/" not in path} == {
        f"v{manifest['dist']['version']}"
    }
    assert len({path for path, _ in modules}) == len(modules)
