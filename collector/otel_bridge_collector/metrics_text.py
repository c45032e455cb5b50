"""Our own metrics -> the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_bridge_collector.counters import Counters

_PREFIX: Final = "otel_bridge_"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    labels: Mapping[str, str]
    value: float


def metric(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """Return the lines of one metric.

    Args:
        name: Without our prefix.
        kind: ``counter`` or ``gauge``.
        text: What it is.
        samples: Its values.
    """
    full = _PREFIX + name
    lines = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    for sample in samples:
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
        lines.append(f"{full}{{{labels}}} {_number(sample.value)}" if labels else f"{full} {_number(sample.value)}")
    return lines


def receiver_lines(counters: Counters, *, open_runs: int, syncs: int | None) -> Sequence[str]:
    """Return the receiver's own metrics.

    Args:
        counters: What it counted.
        open_runs: Runs whose segment is open.
        syncs: Syncs of the disk so far; ``None`` where nobody waits for them.
    """
    by_signal = [Sample({"signal": name}, count) for name, count in sorted(counters.requests.items())]
    by_reason = [Sample({"reason": name}, count) for name, count in sorted(counters.refused.items())]
    lines = [
        *metric("received_requests_total", "counter", "Requests appended and acknowledged.", by_signal),
        *metric("refused_requests_total", "counter", "Requests refused.", by_reason),
        *metric("rejected_items_total", "counter", "Items left out of requests.", [Sample({}, counters.rejected)]),
        *metric("appended_bytes_total", "counter", "Bytes appended.", [Sample({}, counters.appended_bytes)]),
        *metric("receiving_runs", "gauge", "Runs whose segment is open.", [Sample({}, open_runs)]),
    ]
    if syncs is not None:
        lines += metric("syncs_total", "counter", "Group syncs of the disk.", [Sample({}, syncs)])
    return lines


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
