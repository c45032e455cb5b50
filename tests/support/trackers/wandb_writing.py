"""A process that writes a job to W&B and may be killed: ``python -m support.trackers.wandb_writing <job file>``."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Record, RolloutRecord, Row
from otel_bridge.testing import deliver, open_writer, samples
from otel_bridge.testing.memory import MemoryTable
from otel_bridge_wandb import exporter


@dataclass(frozen=True)
class WritingJob:
    """Write *records* in windows of *window*, pausing, and note in `progress` how far it came."""

    environment: dict[str, str]
    run: RunInfo
    memory: Path
    records: Sequence[Record]
    window: int
    pause_s: float


def long_job(steps: int, rollouts_every: int) -> list[Record]:
    records: list[Record] = []
    for step in range(1, steps + 1):
        records.append(samples.row(step, {"loss": float(step)}))
        if rollouts_every and step % rollouts_every == 0:
            records += [samples.rollout(n, step=step) for n in range(2)]
    return samples.placed(records)


def keys_of(records: Sequence[Record]) -> dict[str, str]:
    return {
        key: str(row.axis)
        for row in records
        if isinstance(row, Row) and row.axis
        for key in row.values
    }


def rollout_ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records if isinstance(record, RolloutRecord)]


def write(job: WritingJob) -> None:
    settings = exporter.read_settings(job.environment, job.memory.parent)
    writer = open_writer(exporter, job.run, settings, MemoryTable(job.memory))
    held = writer.durable() or 0
    print("open", held, flush=True)
    due = [record for record in job.records if record.position > held]
    for at in range(0, len(due), job.window):
        deliver(writer, due[at : at + job.window])
        print(
            "wrote",
            due[min(at + job.window, len(due)) - 1].position,
            writer.durable(),
            flush=True,
        )
        time.sleep(job.pause_s)
    writer.close()
    print("closed", flush=True)


if __name__ == "__main__":
    write(pickle.loads(Path(sys.argv[1]).read_bytes()))
