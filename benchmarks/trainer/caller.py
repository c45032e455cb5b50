"""The caller's time of one ``log()`` of 10 and 100 float keys, alternating with each peer in one process."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks import peers
from benchmarks.results import Result, median

_ROUNDS = 7
_ROWS = {"ours": 4000, "trackio": 2000, "wandb": 300, "mlflow": 20}
_PAUSE_S = 0.0005
_TIMES = {
    "tight": {"trackio": 2, "wandb": 10, "mlflow": 500},
    "paced": {"trackio": 2, "wandb": 10},
}


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        peers.prepare(Path(folder))
        logs = {"ours": stack.enter_context(peers.ours())}
        for name in ("trackio", "wandb", "mlflow"):
            logs[name] = stack.enter_context(getattr(peers, name)())
        return [
            *_keys(logs, 10, "tight", 10.0),
            *_keys(logs, 10, "paced", None),
            *_keys(logs, 100, "tight", 70.0),
        ]


def _keys(
    logs: dict[str, peers.Log], keys: int, mode: str, most_us: float | None
) -> list[Result]:
    values = {f"metric/{index}": index + 0.5 for index in range(keys)}
    measure = _tight if mode == "tight" else _paced
    times: dict[str, list[float]] = {name: [] for name in logs}
    for name, log in logs.items():
        measure(log, values, 20 if name == "mlflow" else 200)  # warm
    for _ in range(_ROUNDS):
        for name, log in logs.items():
            rows = _ROWS[name] if mode == "tight" else min(_ROWS[name], 300)
            _settle()
            times[name].append(measure(log, values, rows))
    own = median(times["ours"])
    what = f"log() of {keys} keys, {mode}"
    results = []
    if most_us is not None:
        results.append(
            Result(what, own, None, "us", f"<= {most_us:g} us", own <= most_us)
        )
    if keys == 10:
        for name, factor in _TIMES[mode].items():
            peer = median(times[name])
            results.append(
                Result(
                    f"{what}, {name}",
                    own,
                    peer,
                    "us",
                    f">= {factor} times",
                    peer >= factor * own,
                )
            )
    return results


def _settle() -> None:
    """Wait until the threads that a peer has started are done with its rows: nobody is measured beside their work."""
    for _ in range(200):
        began = time.process_time()
        time.sleep(0.05)
        if time.process_time() - began < 0.002:
            return


def _tight(
    log: Callable[[dict[str, float], int], None], values: dict[str, float], rows: int
) -> float:
    began = time.perf_counter()
    for step in range(rows):
        log(values, step)
    return (time.perf_counter() - began) / rows * 1e6


def _paced(
    log: Callable[[dict[str, float], int], None], values: dict[str, float], rows: int
) -> float:
    times = []
    for step in range(rows):
        time.sleep(_PAUSE_S)
        began = time.perf_counter()
        log(values, step)
        times.append(time.perf_counter() - began)
    return median(times) * 1e6
