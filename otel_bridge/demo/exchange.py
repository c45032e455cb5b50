"""How the roles hand over weights and batches: files put in place by rename, in one folder."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from otel_bridge.demo.episode import Episode
from otel_bridge.demo.policy import Policy

_PAUSE_S = 0.01


class Exchange:
    """Accesses a folder shared by the roles of one job.

    An error of the disk ends the role that meets it, and its run as failed; `Job.running` sees that
    by the exit code and stops the others, which would wait here for ever.

    Args:
        folder: Created when it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._stop = folder / "stop"

    def put_policy(self, policy: Policy) -> None:
        """Publish *policy* for explorer and evaluator, beside those before it, which stale workers still use."""
        # ".npz" at the end, or numpy adds it; and no "policy-", which readers look for.
        partial = self._folder / f"policy.{os.getpid()}.tmp.npz"
        np.savez(partial, weights=policy.weights, version=policy.version)
        # By rename, so that no reader sees half a file.
        partial.replace(self._policy(policy.version))

    def policy(self, behind: int = 0) -> Policy | None:
        """Return the policy that is *behind* versions older than the newest, ``None`` before the first.

        The first one while there are fewer: a stale worker begins with it too.
        """
        # Six digits in each name, so that the order of names is that of versions.
        paths = sorted(self._folder.glob("policy-*.npz"))
        if paths:
            return _read_policy(paths[max(len(paths) - 1 - behind, 0)])
        return None

    def await_policy(self, version: int) -> Policy | None:
        """Wait for the policy of *version* and return it; ``None`` when the job stops first."""
        path = self._policy(version)
        if self._await(path):
            return _read_policy(path)
        return None

    def put_batch(self, step: int, worker: int, episodes: Sequence[Episode]) -> None:
        """Hand the part of a worker in the batch of *step* to the trainer."""
        partial = self._folder / f"batch.{os.getpid()}.tmp"
        partial.write_bytes(pickle.dumps(tuple(episodes)))
        partial.replace(self._batch(step, worker))

    def take_batch(self, step: int, workers: int) -> list[Episode] | None:
        """Wait for the parts of all workers in the batch of *step* and take them.

        ``None`` when the job stops first.
        """
        episodes: list[Episode] = []
        for worker in range(workers):
            path = self._batch(step, worker)
            if not self._await(path):
                return None
            # Our own explorer wrote it, in an otel-bridge folder.
            episodes += pickle.loads(path.read_bytes())  # noqa: S301
            # Makes room: `wait_for_room` counts the batches that are still there.
            path.unlink()
        return episodes

    def wait_for_room(self, worker: int, most: int) -> None:
        """Wait until the trainer has all but *most* batches of a worker, or the job stops: bounds the staleness."""
        while self._waiting(worker) >= most and not self.stopped:
            time.sleep(_PAUSE_S)

    def _waiting(self, worker: int) -> int:
        """Return how many batches of a worker the trainer has not taken yet."""
        return sum(1 for _ in self._folder.glob(f"batch-{worker}-*.pickle"))

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

    def _batch(self, step: int, worker: int) -> Path:
        return self._folder / f"batch-{worker}-{step:06d}.pickle"

    def _policy(self, version: int) -> Path:
        return self._folder / f"policy-{version:06d}.npz"


def _read_policy(path: Path) -> Policy:
    """Return the policy in a file.

    It is closed only then: ``np.load`` reads arrays when asked.
    """
    with np.load(path) as stored:
        return Policy(weights=stored["weights"], version=int(stored["version"]))
