"""The page of the metrics has every metric of a real ``/metrics``: name, type, labels and meaning."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import pytest

from docs_site import metrics_page
from otel_bridge.settings import MAX_KEYS
from otel_bridge_collector.error_table import TABLE, answer_to
from support.bridge.bridge_doubles import report_when
from support.collector.service_process import folder_of, service
from support.otlp.otlp_samples import metrics_request, row, who
from support.trainers.command_runs import environment
from support.waiting import ANSWER_S

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = (DOCS / "service-metrics.md").read_text("utf-8")
ROWS: Final = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in re.findall(r"^\| `.*$", PAGE, re.MULTILINE)
]


def ask(url: str, body: bytes | None = None) -> str:
    """The answer to a request, or its status if the request is refused."""
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/x-protobuf"}
    )
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
        ask(
            f"{running.http}/v1/metrics",
            metrics_request((who(), [row(1, {"loss": 0.5, "reward": 1.0})])),
        )
        assert ask(f"{running.http}/v1/metrics") == "405"
        report_when(
            folder_of(tmp_path), lambda report: report.exporters["file"].rows == 1
        )
        return ask(f"{running.http}/metrics")


def test_the_table_has_name_type_labels_and_meaning_of_every_metric(
    scraped: str,
) -> None:
    described = re.findall(
        r"^# HELP (\w+) (.*)\n# TYPE \1 (\w+)$", scraped, re.MULTILINE
    )
    labels = {
        name: re.findall(r'(\w+)="', text)
        for name, text in re.findall(r"^(\w+)(\{.*\})? ", scraped, re.MULTILINE)
    }

    assert [
        [name, kind, sorted(re.findall(r"\w+", shown)), meaning]
        for name, kind, shown, meaning in ROWS
    ] == [
        [f"`{name}`", kind, sorted(labels[name]), meaning]
        for name, meaning, kind in described
    ]


def test_the_page_is_fresh() -> None:
    assert metrics_page.page() == PAGE, "run `make docs`"


def test_every_reason_of_a_refusal_is_in_the_page() -> None:
    reasons = [reason for _, reason, *_ in TABLE] + [answer_to(ValueError()).reason]
    (listed,) = re.findall(
        r"^\* `reason` of a refused request: (.*)$",
        (DOCS / "service.md").read_text("utf-8"),
        re.MULTILINE,
    )

    assert re.findall(r"`(\w+)`", listed) == reasons
