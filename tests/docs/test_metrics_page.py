"""The table of docs/service.md has every metric of a real ``/metrics``: name, type, unit, labels and meaning."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import pytest

from otel_bridge.settings import MAX_KEYS
from otel_bridge_collector.error_table import TABLE, answer_to
from support.bridge.bridge_doubles import report_when
from support.collector.service_process import folder_of, service
from support.otlp.otlp_samples import metrics_request, row, who
from support.trainers.command_runs import environment
from support.waiting import ANSWER_S

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "service.md"
SECTION: Final = PAGE.read_text("utf-8").partition("\n### Metrics\n")[2].partition("\n### ")[0]
ROWS: Final = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| `.*$", SECTION, re.MULTILINE)
]


def ask(url: str, body: bytes | None = None) -> str:
    """The answer to a request, or its status if the request is refused."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/x-protobuf"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text: str = answer.read().decode()
            return text
    except HTTPError as exc:
        return str(exc.code)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``/metrics`` of a service that has a sample of each metric: it refused a request and dropped a value."""
    tmp_path = tmp_path_factory.mktemp("service")
    env = environment(tmp_path, **{MAX_KEYS.name: "1"})
    with service(tmp_path, env, "--exporters", "file") as running:
        ask(f"{running.http}/v1/metrics", metrics_request((who(), [row(1, {"loss": 0.5, "reward": 1.0})])))
        assert ask(f"{running.http}/v1/metrics") == "405"
        report_when(folder_of(tmp_path), lambda report: report.exporters["file"].rows == 1)
        return ask(f"{running.http}/metrics")


def test_the_table_has_name_type_labels_and_meaning_of_every_metric(scraped: str) -> None:
    described = re.findall(r"^# HELP (\w+) (.*)\n# TYPE \1 (\w+)$", scraped, re.MULTILINE)
    labels = {
        name: re.findall(r'(\w+)="', text) for name, text in re.findall(r"^(\w+)(\{.*\})? ", scraped, re.MULTILINE)
    }

    assert [[name, kind, shown, meaning] for name, kind, _, shown, meaning in ROWS] == [
        [f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels[name]), meaning]
        for name, meaning, kind in described
    ]


def test_a_unit_that_is_in_a_name_is_in_the_table(scraped: str) -> None:
    named = re.findall(r"^# TYPE (\w+_(seconds|bytes)\w*) ", scraped, re.MULTILINE)

    assert [[f"`{name}`", unit] for name, unit in named] == [
        [name, unit] for name, _, unit, _, _ in ROWS if unit in {"seconds", "bytes"}
    ]
    assert "" not in {unit for _, _, unit, _, _ in ROWS}


def test_every_reason_of_a_refusal_is_in_the_page() -> None:
    reasons = [reason for _, reason, *_ in TABLE] + [answer_to(ValueError()).reason]
    (listed,) = re.findall(r"^\* `reason` of a refused request: (.*)$", SECTION, re.MULTILINE)

    assert re.findall(r"`(\w+)`", listed) == reasons
