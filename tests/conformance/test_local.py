"""The recorded job in the files of the exporter ``file``."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status
from otel_bridge.testing import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_configs,
)
from support.conformance.suite import ConformanceSuite, ReadShown
from support.conformance.truth import Shown


class TestFile(ConformanceSuite):
    target = "otel_bridge_local:file"

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def read(self) -> ReadShown:
        return shown


def shown(run: RunInfo) -> Shown:
    contents, rows, configs, status = Contents(), 0, {}, None
    files = sorted((run.folder / "file").glob("records-*.jsonl"))
    for line in (
        orjson.loads(line) for file in files for line in file.read_bytes().splitlines()
    ):
        if line["kind"] == "row":
            rows += 1
            for key, value in line["values"].items():
                if isinstance(value, dict):
                    spread = HeldDistribution(
                        key, line["step"], value["min"], value["max"], value["count"]
                    )
                    contents.distributions.append(spread)
                else:
                    contents.scalars.append(HeldScalar(key, line["step"], float(value)))
        elif line["kind"] == "rollout":
            contents.rollouts.append(HeldRollout(line["id"], line["reward"]))
        elif line["kind"] == "evaluation":
            contents.evaluations.append(
                (line["rollout_id"], line["name"], line["value"])
            )
        elif line["kind"] == "config":
            configs[line["role"]] = line["config"]
        elif line["kind"] == "end":
            status = Status(line["status"])
    held = Contents(
        contents.scalars,
        contents.distributions,
        contents.rollouts,
        contents.evaluations,
        flat_configs(configs.items()),
        status,
    )
    return Shown(held, rows)
