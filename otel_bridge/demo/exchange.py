"""How the roles hand over weights and batches: files put in place by rename, in one folder."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from otel_bridge.demo.learning import Episode
from otel_bridge.demo.policy import Policy

_PAUSE_S = 0.01


class Exchange:
    """Accesses a folder shared by the roles of one job.

    Args:
        folder: Created when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._stop = folder / "stop"

    def put_policy(self, policy: Policy) -> None:
        """Publish *policy* for explorer and evaluator, beside those before it."""
        partial = self._folder / f"policy.{os.getpid()}.tmp.npz"
        np.savez(partial, weights=policy.weights, version=policy.version)
        partial.replace(self._policy(policy.version))

    def policy(self) -> Policy | None:
        """Return the newest policy, ``None`` before the first."""
        newest = max(self._folder.glob("policy-*.npz"), default=None)
        return None if newest is None else _read_policy(newest)

    def await_policy(self, version: int) -> Policy | None:
        """Wait for the policy of *version* and return it; ``None`` when the job stops first."""
        path = self._policy(version)
        return _read_policy(path) if self._await(path) else None

    def put_batch(self, step: int, episodes: Sequence[Episode]) -> None:
        """Hand the batch of *step* to the trainer."""
        partial = self._folder / f"batch.{os.getpid()}.tmp"
        partial.write_bytes(pickle.dumps(tuple(episodes)))
        partial.replace(self._batch(step))

    def take_batch(self, step: int) -> tuple[Episode, ...] | None:
        """Wait for the batch of *step* and take it; ``None`` when the job stops first."""
        path = self._batch(step)
        if not self._await(path):
            return None
        # Our own explorer wrote it, in an otel-bridge folder.
        episodes: tuple[Episode, ...] = pickle.loads(path.read_bytes())  # noqa: S301
        path.unlink()
        return episodes

    @property
    def batches_waiting(self) -> int:
        """Return how many batches the trainer has not taken yet."""
        return sum(1 for _ in self._folder.glob("batch-*.pickle"))

    def wait_for_room(self, most: int) -> None:
        """Wait until fewer than *most* batches wait, or the job stops: bounds how stale a policy may be."""
        while self.batches_waiting >= most and not self.stopped:
            time.sleep(_PAUSE_S)

    def stop(self) -> None:
        """Tell every role that the job is over."""
        self._stop.touch()

    @property
    def stopped(self) -> bool:
        """Return whether the job is over."""
        return self._stop.exists()

    def _await(self, path: Path) -> bool:
        """Wait until *path* exists; return whether it does, or the job stopped first."""
        while not path.exists():
            if self.stopped:
                # Its process may have put it in place between the two looks, as its last act.
                return path.exists()
            time.sleep(_PAUSE_S)
        return True

    def _batch(self, step: int) -> Path:
        return self._folder / f"batch-{step:06d}.pickle"

    def _policy(self, version: int) -> Path:
        return self._folder / f"policy-{version:06d}.npz"


def _read_policy(path: Path) -> Policy:
    with np.load(path) as stored:
        return Policy(weights=stored["weights"], version=int(stored["version"]))
