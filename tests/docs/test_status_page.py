"""The pages have every field of ``status --json`` and of ``/status``, with the type that a real service gives it."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest

from otel_bridge.settings import ALERTS
from support.bridge.bridge_doubles import report_when
from support.collector.service_process import folder_of, service
from support.trainers.command_runs import BIN, environment
from support.waiting import ANSWER_S

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
TYPES: Final = {
    dict: "object",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}


def fields(page: str, heading: str) -> dict[str, str]:
    """The types of the fields of the table below *heading*, by name."""
    section = (DOCS / page).read_text("utf-8").partition(f"{heading}\n")[2]
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows is not None, heading
    cells = [line.split("|")[1:3] for line in rows[0].splitlines()[2:]]
    return {
        name: kind.strip()
        for names, kind in cells
        for name in re.findall(r"`(\w+)`", names)
    }


def check(found: Mapping[str, object], page: str, heading: str) -> None:
    """Assert that *found* has the fields below *heading*, in their order and of their types."""
    documented = fields(page, heading)
    assert list(found) == list(documented)
    for name, value in found.items():
        kind = documented[name]
        assert (
            kind.endswith(" or null")
            if value is None
            else TYPES[type(value)] == kind.removesuffix(" or null")
        ), name


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``status --json`` prints of a run at a service, and ``/status`` of the service."""
    tmp_path = tmp_path_factory.mktemp("service")
    env = environment(tmp_path, **{ALERTS.name: "trainer/loss>0.1"})
    with service(tmp_path, env, "--exporters", "file") as running:
        running.send(1)
        report_when(
            folder_of(tmp_path),
            lambda report: report.exporters["file"].rows == 1 and report.alerts == 1,
        )
        call = [str(BIN / "otel-bridge"), "status", running.http, "--json"]
        line = subprocess.run(
            call, env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        with urllib.request.urlopen(
            f"{running.http}/status", timeout=ANSWER_S
        ) as answer:
            return json.loads(line), json.loads(answer.read())


def only(values: object) -> dict[str, Any]:
    (value,) = cast("dict[str, dict[str, Any]]", values).values()
    return value


def test_the_fields_of_a_line_are_those_of_the_page(
    shown: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    line, _ = shown

    check(line, "commands.md", "### Fields of status --json")
    check(only(line["held"]), "commands.md", "#### Fields of held")
    assert list(line["bytes"]) == ["segments", "ledger", "files"]


def test_the_fields_of_the_report_are_those_of_the_page(
    shown: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    report: dict[str, Any] = shown[0]["report"]

    check(report, "run-folder.md", "## report.json")
    check(only(report["processes"]), "run-folder.md", "### Fields of a process")
    check(only(report["exporters"]), "run-folder.md", "### Fields of an exporter")
    assert [list(report[name]) for name in ("bridge", "waiting", "last_alert")] == [
        ["pid", "host", "boot_id"],
        ["rows", "traces", "rollouts", "steps"],
        ["title", "level", "time_unix_ns"],
    ]
    assert report["roles"] == {"trainer": {"alive": 1, "processes": 1}}
    assert (
        list(report["steps"])
        == list(report["rows_by_axis"])
        == list(report["row_times"])
        == ["trainer/step"]
    )


def test_the_fields_of_the_page_of_a_service_are_those_of_the_page(
    shown: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    line, found = shown

    check(found, "commands.md", "#### Fields of /status")
    assert [list(run) for run in found["runs"]] == [list(line)]
    assert list(found["room"]) == ["used_bytes", "limit_bytes", "of_disk"]
