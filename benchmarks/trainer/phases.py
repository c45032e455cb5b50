"""The caller's time of one phase, beside a row of ten keys and the loop without it; and of one that is not recorded."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.results import Result, median

_ROUNDS = 15
_CALLS = 1000


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        peers.prepare(Path(folder))
        os.environ["OTEL_BRIDGE_OFFLINE"] = "1"
        import otel_bridge

        job = otel_bridge.init(
            project="bench", name="phases", role="trainer", exporters="trackio"
        )
        row = {f"metric/{index}": index + 0.5 for index in range(10)}
        calls: dict[str, Callable[[int], object]] = {
            "phase": lambda step: _phase(job, step),
            "row": lambda step: job.log(row, step=step),
            "nothing": float,
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(
            _ROUNDS
        ):  # alternating, so that whatever else the machine does is beside all of them
            for name, call in calls.items():
                times[name].append(_time_us(call, number))
        job.finish(timeout_s=0.0)
        off = median(
            [
                _time_us(lambda step: _phase(None, step), number)
                for number in range(_ROUNDS)
            ]
        )
    loop_us = median(times["nothing"])
    phase_us, row_us = median(times["phase"]) - loop_us, median(times["row"]) - loop_us
    return [
        Result("phase()", phase_us, None, "us", "<= 15 us", phase_us <= 15),
        Result(
            "phase(), rows of ten keys",
            phase_us,
            row_us,
            "us",
            "<= 2 rows",
            phase_us <= 2 * row_us,
        ),
        Result(
            "phase() without a run, rows",
            off - loop_us,
            row_us,
            "us",
            "<= 0.2 rows",
            off - loop_us <= row_us / 5,
        ),
    ]


def _phase(job: Any, step: int) -> None:
    import otel_bridge

    with (
        otel_bridge.phase("generate", step)
        if job is None
        else job.phase("generate", step=step)
    ):
        pass


def _time_us(call: Callable[[int], object], step: int) -> float:
    began = time.perf_counter()
    for _ in range(_CALLS):
        call(step)
    return (time.perf_counter() - began) / _CALLS * 1e6
