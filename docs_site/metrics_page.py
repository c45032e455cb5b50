"""Makes the page ``docs/service-metrics.md`` from the service's own metrics; ``make docs`` writes it."""

from __future__ import annotations

import sys

from prometheus_client import Metric

from otel_bridge.bridge.supervisor import SupervisorState
from otel_bridge_collector.telemetry.counters import Counters
from otel_bridge_collector.telemetry.service_metrics import (
    of_host,
    of_receiver,
    of_runs,
)

_HEAD = """\
# Metrics of the service

`otel-bridge serve` shows them at [`/metrics`](service.md#metrics). `make docs` generates this page.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    metrics = [
        *of_receiver(Counters(), open_runs=0, syncs=0),
        *of_host(SupervisorState(0, 0, 0.0, 0.0, 0)),
        *of_runs({}, 0, unread={}),
    ]
    return _HEAD + "".join(map(_line, metrics))


def _line(metric: Metric) -> str:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)
    return f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
