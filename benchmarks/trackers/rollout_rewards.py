"""What the rewards of rollouts add to their traces in MLflow: five spans and three rewards each, 50 a call.

A database: with rewards against the spans alone. A server: with rewards in the call that starts the trace, against the
spans and then one call for each reward, as servers before MLflow 3.13 get them. Each round takes both, in turn.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import otel_bridge_mlflow
from benchmarks.mlflow_server import mlflow_server
from benchmarks.results import Result, median
from otel_bridge.exporter import RunInfo
from otel_bridge.records import RolloutRecord
from otel_bridge.testing import MemoryTable, open_writer, samples
from otel_bridge_mlflow.traces.assessments import AssessmentWriter
from otel_bridge_mlflow.writer import MlflowRunWriter

_ROLLOUTS = 50
_ROUNDS = 12
_WARM = 2


def run() -> list[Result]:
    """Measure."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        database = _database(Path(folder))
        server = _server(Path(folder))
    return [
        _result(
            "ms a rollout into an MLflow database, with rewards",
            "its spans alone",
            database,
            1.6,
        ),
        _result(
            "ms a rollout into an MLflow server, with rewards",
            "spans, then a call each",
            server,
            0.7,
        ),
    ]


def _result(
    what: str, peer: str, pairs: Sequence[tuple[float, float]], goal: float
) -> Result:
    ratio = median([ours / theirs for ours, theirs in pairs])
    ours = median([pair[0] for pair in pairs])
    theirs = median([pair[1] for pair in pairs])
    return Result(
        f"{what} (ours / {peer} = {ratio:.2f})",
        ours,
        theirs,
        "ms",
        f"<= {goal:g}",
        ratio <= goal,
    )


def _writer(folder: Path, address: str) -> tuple[MlflowRunWriter, RunInfo]:
    exporter = otel_bridge_mlflow.exporter
    settings = exporter.read_settings({"MLFLOW_TRACKING_URI": address}, folder)
    run = samples.run_info(folder, "bench")
    writer = open_writer(exporter, run, settings, MemoryTable())
    assert isinstance(writer, MlflowRunWriter)
    return writer, run


def _database(folder: Path) -> list[tuple[float, float]]:
    writer, _ = _writer(folder, f"sqlite:///{folder}/bench.db")

    def spans_alone(rollouts: Sequence[RolloutRecord]) -> None:
        with patch.object(AssessmentWriter, "rewards", lambda _writer, _rollout: []):
            writer.write_rollouts(rollouts)

    return _pairs(writer.write_rollouts, spans_alone)


def _server(folder: Path) -> list[tuple[float, float]]:
    with mlflow_server(folder) as address:
        writer, run = _writer(folder, address)
        connection = writer._connection
        abilities = dataclasses.replace(connection.abilities, starts_traces=False)
        old = dataclasses.replace(connection, abilities=abilities)
        one_by_one = MlflowRunWriter(old, writer._run, run, MemoryTable())
        return _pairs(writer.write_rollouts, one_by_one.write_rollouts)


def _pairs(
    ours: Callable[[Sequence[RolloutRecord]], None],
    theirs: Callable[[Sequence[RolloutRecord]], None],
) -> list[tuple[float, float]]:
    """Return ms a rollout of each round, ours and theirs; each is first in turn, because the database grows."""
    pairs = []
    for number in range(_ROUNDS):
        times: dict[bool, float] = {}
        for is_ours in (number % 2 == 0, number % 2 == 1):
            rollouts = _rollouts(f"{number}-{is_ours}")
            began = time.perf_counter()
            (ours if is_ours else theirs)(rollouts)
            times[is_ours] = (time.perf_counter() - began) * 1e3 / len(rollouts)
        pairs.append((times[True], times[False]))
    return pairs[_WARM:]


def _rollouts(seed: str) -> list[RolloutRecord]:
    return samples.placed(
        [
            _with_five_spans(samples.rollout(number, seed=seed))
            for number in range(_ROLLOUTS)
        ]
    )


def _with_five_spans(rollout: RolloutRecord) -> RolloutRecord:
    """Return *rollout*, which has four spans and three rewards, with one span more."""
    last = rollout.spans[-1]
    span_id = hashlib.md5(last.id.encode(), usedforsecurity=False).hexdigest()[:16]
    return dataclasses.replace(
        rollout, spans=[*rollout.spans, dataclasses.replace(last, id=span_id)]
    )
