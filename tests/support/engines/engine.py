"""An inference engine's metrics: the families of two versions of vLLM and SGLang, by the client that they use.

``engine_families.json`` lists type, name, labels and bucket bounds, from vllm/v1/metrics/loggers.py and
sglang/srt/metrics/collector.py of each version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

FAMILIES: dict[str, list[Any]] = json.loads(
    Path(__file__).with_name("engine_families.json").read_text()
)
REASONS = ("stop", "length")
_HIDDEN = {"engine", "engine_type", "model_name", "tp_rank", "pp_rank"}


class Engine:
    """One engine of a version; `restart` begins to count again."""

    def __init__(self, version: str, seed: int = 0) -> None:
        self.version = version
        self._random = Random(seed)
        self.restart()

    def restart(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics = []
        for kind, name, labels, *bounds in FAMILIES[self.version]:
            types = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}
            more = {"buckets": bounds[0]} if bounds else {}
            metric = types[kind](
                name, "A family.", labels, registry=self.registry, **more
            )
            for values in _label_values(labels):
                if name.endswith("_info"):
                    # As vLLM: 1, or the time of the last request.
                    metric.labels(*values).set(1.8e9 if "lora" in name else 1)
                else:
                    self._metrics.append((kind, bounds, metric.labels(*values)))

    def work(self) -> None:
        """Count and observe something in every series."""
        for kind, bounds, metric in self._metrics:
            if kind == "gauge":
                metric.set(self._random.random())
            elif kind == "counter":
                metric.inc(self._random.randrange(1, 1_000))
            else:
                for _ in range(50):
                    metric.observe(
                        self._random.uniform(0, 1.2)
                        * bounds[0][self._random.randrange(len(bounds[0]))]
                    )

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def numbers(self) -> dict[tuple[str, str], Any]:
        """Return the numbers of each series, by type and by key: a value, or those up to each bound."""
        numbers: dict[tuple[str, str], Any] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                shown = [
                    f"{k}:{v}"
                    for k, v in sorted(sample.labels.items())
                    if k not in _HIDDEN and k != "le"
                ]
                key = family.name + (f"/{' '.join(shown)}" if shown else "")
                if sample.name.endswith(("_created", "_info")) or (
                    family.type == "histogram" and "le" not in sample.labels
                ):
                    continue
                if family.type == "histogram":
                    numbers.setdefault(("histogram", key), []).append(sample.value)
                else:
                    numbers[family.type, key] = sample.value
        return numbers

    def bounds(self, key: str) -> list[float]:
        return next(
            bounds[0]
            for _, name, _, *bounds in FAMILIES[self.version]
            if name == key.split("/", maxsplit=1)[0]
        )


def expected(
    engines: Sequence[tuple[Engine, Sequence[dict[tuple[str, str], Any]], float]],
) -> dict[str, float]:
    """Compute a row by hand: for each engine its numbers at successive times, and the seconds between first and last.

    All engines are of one version.
    """
    values: dict[str, float] = {}
    first, readings, _ = engines[0]
    for kind, key in readings[0]:
        if kind == "gauge":
            means = [
                float(np.mean([r[kind, key] for r in taken[1:]]))
                for _, taken, _ in engines
            ]
            values[key] = float(np.mean(means))
            if len(means) > 1:
                values[f"{key}/sum"] = sum(means)
            continue
        added = [
            np.subtract(taken[-1][kind, key], taken[0][kind, key])
            for _, taken, _ in engines
        ]
        if kind == "counter":
            values[f"{key}/per_s"] = sum(
                float(a) / seconds
                for a, (_, _, seconds) in zip(added, engines, strict=True)
            )
            continue
        cumulative = np.sum(added, axis=0)
        bounds = first.bounds(key)
        below = (
            1 - 1e-12
        )  # of two bounds with the same number of observations the lower one
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
            values[f"{key}/{name}"] = float(
                np.interp(
                    share * cumulative[-1] * below,
                    [0.0, *cumulative],
                    [0.0, *bounds, bounds[-1]],
                )
            )
    for part, whole in (
        ("vllm:gpu_prefix_cache_hits", "vllm:gpu_prefix_cache_queries"),
        ("vllm:prefix_cache_hits", "vllm:prefix_cache_queries"),
        ("vllm:spec_decode_num_accepted_tokens", "vllm:spec_decode_num_draft_tokens"),
        ("sglang:cached_tokens", "sglang:prompt_tokens"),
    ):
        if ("counter", part) in readings[0]:
            added = [
                sum(
                    taken[-1]["counter", name] - taken[0]["counter", name]
                    for _, taken, _ in engines
                )
                for name in (part, whole)
            ]
            values[f"{part}/ratio"] = added[0] / added[1]
    return values


def _label_values(labels: Sequence[str]) -> Iterator[list[str]]:
    """Yield the label values of each series of a family: one for each reason, else one."""
    for reason in REASONS if "finished_reason" in labels else ("",):
        yield [reason if label == "finished_reason" else "0" for label in labels]
