"""What W&B's offline file, MLflow's client and Trackio's store show of one run, in one shape.

Trackio reads its folder once a process, so each folder is read in a process of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status
from otel_bridge.testing import Contents
from otel_bridge.testing.contents import value_text
from support.trackers import mlflow_reading, trackio_store, wandb_reading
from support.trackers.wandb_offline import offline_directories, read_offline_run

TESTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ShownRollout:
    """One rollout as every tracker shows it."""

    key: str
    step: int
    reward: float | None
    messages: int
    tool_calls: int
    answer: str


@dataclass
class Shown:
    """One run as a tracker shows it.

    Attributes:
        scalars: Key, step and value as text, sorted; doubles stand as often as they are there.
        times_ms: Key and step to the time shown.
        distributions: Key and step to minimum and maximum.
        counts: Key and step to a distribution's count; empty where the tracker keeps none.
        conversations: Rollout to its messages, where the tracker keeps them as such.
    """

    scalars: list[tuple[str, int | None, str]]
    times_ms: dict[tuple[str, int | None], int | None]
    distributions: dict[tuple[str, int | None], tuple[float, float]]
    counts: dict[tuple[str, int | None], int | None]
    rollouts: dict[str, ShownRollout]
    config: dict[str, str]
    status: Status | None
    conversations: dict[str, list[Any]] = field(default_factory=dict)

    def steps(self, role: str) -> list[int | None]:
        """Steps of *role*, in the order of their values' times."""
        prefix = f"{role}/"
        times = {
            step: when
            for (key, step), when in self.times_ms.items()
            if key.startswith(prefix)
        }
        return sorted(times, key=lambda step: times[step] or 0)

    def series(self, key: str) -> list[float]:
        return [float(value) for name, _, value in self.scalars if name == key]

    @property
    def roles(self) -> set[str]:
        return {key.partition("/")[0] for key, _, _ in self.scalars}


def wandb_offline(root: Path, run_id: str) -> Shown:
    """The offline directory below *root* (``WANDB_DIR``)."""
    contents = wandb_reading.offline_contents(root, run_id)
    rollouts: dict[str, ShownRollout] = {}
    for directory in offline_directories(root, run_id):
        for key, cells in read_offline_run(directory).tables.items():
            for cell in cells:
                if not key.endswith("_late"):
                    assert cell["trace"] not in rollouts
                    rollouts[str(cell["trace"])] = _rollout(
                        _whole_key(key), cell, cell["messages"], cell["tools"] or 0
                    )
    return _shown(contents, rollouts)


def mlflow(uri: str, run: RunInfo) -> Shown:
    """The run in the MLflow server or database at *uri*, read by its client."""
    api = mlflow_reading.client(uri)
    contents = mlflow_reading.contents(uri, run, traces=False)
    rollouts: dict[str, ShownRollout] = {}
    conversations: dict[str, list[Any]] = {}
    for found in mlflow_reading.runs_of(uri, run):
        for trace in _pages(api, found):
            root = next(span for span in trace.data.spans if span.parent_id is None)
            given, choices = (
                (root.inputs or {}).get("messages", []),
                (root.outputs or {}).get("choices", []),
            )
            messages = [*given, *(choice["message"] for choice in choices)]
            trace_id = trace.info.trace_id.removeprefix("tr-")
            tags = trace.info.tags
            cell = {
                "step": int(tags["step"]),
                "reward": float(tags["reward"]) if "reward" in tags else None,
                "answer": messages[-1]["content"] if messages else "",
            }
            tools = sum(
                span.name.startswith("execute_tool") for span in trace.data.spans
            )
            assert trace_id not in rollouts
            rollouts[trace_id] = _rollout(
                tags["mlflow.traceName"], cell, len(messages), tools
            )
            conversations[trace_id] = messages
    return _shown(contents, rollouts, conversations)


def _pages(api: Any, found: Any) -> Iterable[Any]:
    token = None
    while True:
        place = [found.info.experiment_id]
        page = api.search_traces(
            locations=place, run_id=found.info.run_id, max_results=100, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def trackio(folder: Path, run: RunInfo) -> Shown:
    """The run in Trackio's *folder* (``TRACKIO_DIR``), read by Trackio's own store in a process of its own."""
    env = {**os.environ, "TRACKIO_DIR": str(folder), "TRACKIO_TEST_DIR": str(folder)}
    printed = "from support.trackers import shown_runs; shown_runs.print_trackio(*sys.argv[1:])"
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); {printed}"
    command = [sys.executable, "-c", code, run.project, run.name, run.id]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def print_trackio(project: str, name: str, run_id: str) -> None:
    sys.stdout.buffer.write(
        pickle.dumps(_trackio_here(RunInfo(run_id, project, name, Path())))
    )


def _trackio_here(run: RunInfo) -> Shown:
    from trackio.sqlite_storage import SQLiteStorage

    contents = trackio_store.held(run)
    rollouts: dict[str, ShownRollout] = {}
    conversations: dict[str, list[Any]] = {}
    for trace in SQLiteStorage.get_traces(run.project, run_id=run.id):
        if trace["key"].endswith("/late"):
            continue
        metadata, messages = (
            trace["metadata"],
            [_without_preview(message) for message in trace["messages"]],
        )
        tools = sum(span["kind"] == "tool" for span in trace["spans"])
        cell = {**metadata, "answer": messages[-1]["content"] if messages else ""}
        assert metadata["trace_id"] not in rollouts
        rollouts[metadata["trace_id"]] = _rollout(
            trace["key"], cell, len(messages), tools
        )
        conversations[metadata["trace_id"]] = messages
    return _shown(contents, rollouts, conversations)


def _rollout(
    key: str, cell: Mapping[str, Any], messages: Any, tools: Any
) -> ShownRollout:
    reward = cell.get("reward")
    return ShownRollout(
        key=key,
        step=int(cell["step"]),
        reward=None if reward is None else float(reward),
        messages=int(messages),
        tool_calls=int(tools),
        answer=str(cell["answer"] or ""),
    )


def _whole_key(key: str) -> str:
    """A W&B table is closed after a hundred increments and goes on as ``<key>_2``."""
    head, _, number = key.rpartition("_")
    return head if number.isdigit() else key


def _without_preview(message: dict[str, Any]) -> dict[str, Any]:
    """*message* without the part that the exporter adds for Trackio's list."""
    match message["content"]:
        case [{"type": "preview_of_the_answer"}]:
            return {**message, "content": None}
    return message


def _shown(
    contents: Contents, rollouts: dict[str, ShownRollout], conversations: Any = None
) -> Shown:
    return Shown(
        scalars=sorted(
            (one.key, one.step, value_text(one.value)) for one in contents.scalars
        ),
        times_ms={(one.key, one.step): one.time_unix_ms for one in contents.scalars},
        distributions={
            (one.key, one.step): (one.min, one.max) for one in contents.distributions
        },
        counts={
            (one.key, one.step): one.count
            for one in contents.distributions
            if one.count is not None
        },
        rollouts=rollouts,
        config=contents.config,
        status=contents.status,
        conversations=conversations or {},
    )
