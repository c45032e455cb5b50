"""How the roles hand over weights and batches: files put in place by rename, in one folder."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
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
        self._weights, self._stop = folder / "weights.npz", folder / "stop"

    def put_policy(self, policy: Policy) -> None:
        """Publish *policy* for explorer and evaluator."""
        partial = self._folder / f"weights.{os.getpid()}.tmp.npz"
        np.savez(partial, weights=policy.weights, version=policy.version)
        partial.replace(self._weights)

    def policy(self) -> Policy | None:
        """Return the newest policy, ``None`` before the first."""
        if not self._weights.exists():
            return None
        with np.load(self._weights) as stored:
            return Policy(weights=stored["weights"], version=int(stored["version"]))

    def policies(self) -> Iterator[Policy]:
        """Yield each policy as it comes, until the job stops; versions may be left out."""
        seen = -1
        while not self.stopped:
            policy = self.policy()
            if policy is None or policy.version <= seen:
                time.sleep(_PAUSE_S)
                continue
            seen = policy.version
            yield policy

    def put_batch(self, step: int, episodes: Sequence[Episode]) -> None:
        """Hand the batch of *step* to the trainer."""
        partial = self._folder / f"batch.{os.getpid()}.tmp"
        partial.write_bytes(pickle.dumps(tuple(episodes)))
        partial.replace(self._batch(step))

    def take_batch(self, step: int) -> tuple[Episode, ...] | None:
        """Wait for the batch of *step* and take it; ``None`` when the job stops first."""
        path = self._batch(step)
        while not path.exists():
            if self.stopped:
                return None
            time.sleep(_PAUSE_S)
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

    def _batch(self, step: int) -> Path:
        return self._folder / f"batch-{step:06d}.pickle"
