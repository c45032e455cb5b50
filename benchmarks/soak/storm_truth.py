"""What each tracker must show after a storm, against what the workers noted.

A row whose ``log()`` returned is there once; one that was begun and not acknowledged is there once at most. The same
holds for rollouts and late rewards. The trackers are read through their own APIs, by the readers of the tests.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.soak.storm_worker import LATE_AFTER
from otel_bridge.exporter import RunInfo
from otel_bridge.records import Status, run_id_of, trace_id_of
from support.trackers import conformance_reading, mlflow_reading, wandb_reading
from support.trackers.wandb_backend.server import WandbServer

if TYPE_CHECKING:
    from otel_bridge.testing import Contents

PROJECT = "storm"
SHOWN = 3
"""Faults of one kind that are listed."""


@dataclass
class Noted:
    """What one role's worker noted, by step."""

    begun: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    rollouts: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, journal: Path) -> Noted:
        """Read a worker's journal; a torn last line counts as not noted."""
        noted = cls()
        kinds = {
            "b": noted.begun,
            "r": noted.rows,
            "o": noted.rollouts,
            "l": noted.late,
        }
        for line in journal.read_text().split("\n")[:-1]:
            kinds[line[0]].add(int(line[2:]))
        return noted


@dataclass(frozen=True)
class Stores:
    """Where the trackers of one round keep their data; ``None``: that one is not part of it."""

    mlflow: str
    trackio: Path
    wandb_offline: Path | None
    wandb_online: WandbServer | None


def faults(name: str, stores: Stores, noted: Mapping[str, Noted]) -> list[str]:
    """Return what is wrong in any tracker, one line each."""
    run = RunInfo(run_id_of(PROJECT, name), PROJECT, name, stores.trackio)
    found: list[str] = []
    for tracker, contents in _contents(stores, run):
        found += [
            f"{name}: {tracker}: {line}"
            for line in _wrong(tracker, contents, run.id, noted)
        ]
    return found


def _contents(stores: Stores, run: RunInfo) -> Iterator[tuple[str, Contents]]:
    yield "mlflow", mlflow_reading.contents(stores.mlflow, run)
    yield "trackio", _trackio(stores.trackio, run)
    if stores.wandb_offline is not None:
        yield (
            "wandb offline",
            wandb_reading.offline_contents(stores.wandb_offline, run.id),
        )
    if stores.wandb_online is not None:
        yield (
            "wandb online",
            conformance_reading.wandb_online(stores.wandb_online, run).contents,
        )


def _trackio(directory: Path, run: RunInfo) -> Contents:
    """Read in a process of its own: Trackio takes its folder from a constant."""
    code = "from support.trackers import conformance_reading; conformance_reading.print_trackio()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(run),
        capture_output=True,
        env={
            "TRACKIO_TEST_DIR": str(directory),
            "TRACKIO_DIR": str(directory),
            "PYTHONPATH": str(conformance_reading.TESTS),
        },
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"Trackio's store in {directory} cannot be read: {done.stderr.decode()}"
        )
    shown: conformance_reading.Shown = pickle.loads(done.stdout)
    return shown.contents


def _wrong(
    tracker: str, contents: Contents, run_id: str, noted: Mapping[str, Noted]
) -> Iterator[str]:
    for role, one in noted.items():
        for key, factor in (("loss", 0.5), ("grad/norm", 2.0)):
            held = [
                (scalar.step, scalar.value)
                for scalar in contents.scalars
                if scalar.key == f"{role}/{key}"
            ]
            yield from _compare(
                f"{role}/{key}", Counter(step for step, _ in held), one.rows, one.begun
            )
            bad = [
                (step, value)
                for step, value in held
                if step is None or value != step * factor
            ]
            if bad:
                yield f"{role}/{key}: {len(bad)} with another value, e.g. {bad[:SHOWN]}"
        ids = {trace_id_of(run_id, f"{role}-{step}"): step for step in one.begun}
        rollouts = [rollout for rollout in contents.rollouts if rollout.id in ids]
        held_rollouts = Counter(ids[rollout.id] for rollout in rollouts)
        yield from _compare(
            f"rollouts of {role}", held_rollouts, one.rollouts, one.begun
        )
        wrong = [
            rollout.id
            for rollout in rollouts
            if (rollout.reward, rollout.messages) != (float(ids[rollout.id]), 2)
        ]
        if wrong:
            yield f"rollouts of {role}: {len(wrong)} with another reward or text, e.g. {wrong[:SHOWN]}"
        # A value that arrives before its rollout is written becomes a part of the rollout's reward.
        late = [
            (ids[rollout], value)
            for rollout, name, value in contents.evaluations
            if rollout in ids and name == "judge"
        ]
        late += [
            (ids[rollout.id], rollout.parts["judge"])
            for rollout in rollouts
            if "judge" in rollout.parts
        ]
        # A worker that was killed inside `log_rollouts` may have logged none: then the tracker refuses the late reward.
        wanted = one.late & one.rollouts
        yield from _compare(
            f"late rewards of {role}",
            Counter(step for step, _ in late),
            wanted,
            one.begun,
        )
        bad_late = [
            (step, value) for step, value in late if value != (step + LATE_AFTER) / 4
        ]
        if bad_late:
            yield f"late rewards of {role}: {len(bad_late)} with another value, e.g. {bad_late[:SHOWN]}"
    known = {
        trace_id_of(run_id, f"{role}-{step}")
        for role, one in noted.items()
        for step in one.begun
    }
    strange = [rollout.id for rollout in contents.rollouts if rollout.id not in known]
    if strange:
        yield f"{len(strange)} rollouts that nobody emitted, e.g. {strange[:SHOWN]}"
    if tracker != "trackio" and contents.status is not Status.FINISHED:
        yield f"the run is {contents.status}, every worker finished"


def _compare(
    what: str, held: Counter[int | None], acknowledged: set[int], begun: set[int]
) -> Iterator[str]:
    lost = sorted(acknowledged - set(held))
    if lost:
        yield f"{what}: {len(lost)} of {len(acknowledged)} acknowledged are missing, e.g. {lost[:SHOWN]}"
    twice = [step for step, times in held.items() if times > 1]
    if twice:
        yield f"{what}: {len(twice)} are there twice, e.g. {twice[:SHOWN]}"
    unknown = [step for step in held if step not in begun]
    if unknown:
        yield f"{what}: {len(unknown)} that were never begun, e.g. {unknown[:SHOWN]}"
