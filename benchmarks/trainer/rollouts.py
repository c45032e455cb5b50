"""The caller's time of ``log_rollouts``: a kept rollout of 6 messages of 4 KB and 5 spans, and one that is left out."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks import peers
from benchmarks.results import Result, median

_ROUNDS = 15


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory() as folder:
        peers.prepare(Path(folder))
        os.environ["OTEL_BRIDGE_OFFLINE"] = "1"
        import otel_bridge

        job = otel_bridge.init(
            project="bench", name="rollouts", role="explorer", exporters="trackio"
        )
        kept_us = median([_kept(job, step) for step in range(_ROUNDS)])
        batch_ms, left_us = _batch(job)
        lists_ms, decoded = _generations(job)
        job.finish(timeout_s=0.0)
    return [
        Result(
            "log_rollouts, a kept rollout",
            kept_us,
            None,
            "us",
            "<= 200 us",
            kept_us <= 200,
        ),
        Result(
            "log_rollouts, a left-out rollout",
            left_us,
            None,
            "us",
            "<= 2 us",
            left_us <= 2,
        ),
        Result(
            "log_rollouts of 1,024, cap 16",
            batch_ms,
            None,
            "ms",
            "<= 4 ms",
            batch_ms <= 4,
        ),
        Result(
            "log_generations of 1,024, cap 16, decoding left out",
            lists_ms,
            None,
            "ms",
            "<= 4 ms",
            lists_ms <= 4,
        ),
        Result(
            "log_generations of 1,024, cap 16: decoded",
            decoded,
            None,
            "",
            "16",
            decoded == 16,
        ),
    ]


def _rollout(number: int) -> object:
    import otel_bridge

    text = f"{number} " + "lorem ipsum dolor sit amet " * 150
    text = text[:4096]
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "calculator", "arguments": '{"a": 1}'},
    }
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "calculator", "content": text},
        {"role": "assistant", "content": text},
        {"role": "assistant", "content": text},
    ]
    return otel_bridge.Rollout(
        messages, reward=float(number % 7), group=str(number // 8), sample=number % 8
    )


def _kept(job: object, step: int) -> float:
    rollouts = [_rollout(number) for number in range(16)]
    began = time.perf_counter()
    job.log_rollouts(rollouts, step=step)  # type: ignore[attr-defined]
    return (time.perf_counter() - began) / 16 * 1e6


def _batch(job: object) -> tuple[float, float]:
    few, many = (
        [_rollout(number) for number in range(16)],
        [_rollout(number) for number in range(1024)],
    )
    times: dict[int, list[float]] = {16: [], 1024: []}
    for step in range(100, 100 + _ROUNDS):
        for rollouts in (few, many):
            began = time.perf_counter()
            job.log_rollouts(rollouts, step=step)  # type: ignore[attr-defined]
            times[len(rollouts)].append(time.perf_counter() - began)
    small, large = median(times[16]), median(times[1024])
    return large * 1e3, (large - small) / (1024 - 16) * 1e6


def _generations(job: object) -> tuple[float, int]:
    """Return the time of a call with 24 KB a sample as parallel lists, and how many samples were decoded."""
    text = ("lorem ipsum dolor sit amet " * 800)[: 5 * 4096]
    prompts, answer = [f"{number} {text}" for number in range(128)], "x" * 4096
    ids, rewards = (
        [[1, 2, 3] for _ in range(1024)],
        [float(number % 7) for number in range(1024)],
    )
    calls: list[int] = []

    def decode(tokens: list[int]) -> str:
        calls.append(len(tokens))
        return answer

    times = []
    for step in range(200, 200 + _ROUNDS):
        calls.clear()
        began = time.perf_counter()
        job.log_generations(  # type: ignore[attr-defined]
            prompts=prompts,
            response_token_ids=ids,
            rewards=rewards,
            decode=decode,
            step=step,
        )
        times.append(time.perf_counter() - began)
    return median(times) * 1e3, len(calls)
