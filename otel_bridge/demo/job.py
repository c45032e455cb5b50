"""The demo job as a whole: its processes on one exchange folder, watched until all of them have ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_bridge.demo.exchange import Exchange
from otel_bridge.demo.roles import WORKERS, evaluated_versions

ROLES = ("trainer", "explorer", "evaluator")
_STOP_S = 10.0


class Job:
    """Starts the roles on entering; on leaving, stops those that still run.

    Args:
        exchange: Folder through which the roles hand over weights and batches.
        steps: Training steps.
        seed: Of all random numbers of the job.
        env: The roles' environment: it names the run and its exporters.
    """

    def __init__(
        self, exchange: Path, *, steps: int, seed: int, env: Mapping[str, str]
    ) -> None:
        self._exchange = Exchange(exchange)
        module = [sys.executable, "-m", "otel_bridge.demo.roles"]
        options = [f"--exchange={exchange}", f"--steps={steps}", f"--seed={seed}"]
        self._commands = {role: [*module, role, *options] for role in ROLES}
        explorer = self._commands["explorer"]
        for rank in range(1, len(WORKERS)):
            self._commands[f"explorer {rank}"] = [*explorer, f"--rank={rank}"]
        self._env = dict(env)
        self._roles: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Job:
        """Start the roles.

        Raises:
            OSError: One cannot be started; those before it are stopped.
        """
        # A terminal sends Ctrl-C to the roles too: they leave it to us, and end as they do when the
        # job is over.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for role, command in self._commands.items():
                self._roles[role] = subprocess.Popen(command, env=self._env)
        except BaseException:
            # Python calls `__exit__` only after an `__enter__` that returns.
            self.__exit__()
            raise
        finally:
            signal.signal(signal.SIGINT, before)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the job, and wait until no role runs; an exception of the ``with`` passes.

        A role that has not ended within `_STOP_S` is terminated.
        """
        # First, so that the roles leave their loops and end their runs themselves.
        self._exchange.stop()
        for process in self._roles.values():
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:  # noqa: PERF203  # four processes
                # A role that is still in its last step: SIGTERM, which otel-bridge survives by its
                # segments.
                process.terminate()
                process.wait()

    @property
    def pids(self) -> Mapping[str, int]:
        """Process id of each role."""
        return {role: process.pid for role, process in self._roles.items()}

    def running(self) -> bool:
        """Return whether a role still runs; one that failed ends the job for the others too."""
        if self.failures():
            # The others would wait for its batches or weights for ever.
            self._exchange.stop()
        return any(process.poll() is None for process in self._roles.values())

    def failures(self) -> Mapping[str, str]:
        """Return each role that did not end well, with how it ended."""
        failures: dict[str, str] = {}
        for role, process in self._roles.items():
            code = process.poll()
            if code:
                failures[role] = _end(code)
        return failures


def steps_of_roles(steps: int) -> dict[str, int]:
    """Return how many steps each role takes in a job of *steps* training steps."""
    return {**dict.fromkeys(ROLES, steps), "evaluator": len(evaluated_versions(steps))}


def _end(code: int) -> str:
    """Return how a process ended that failed. A negative *code* is the signal that killed it."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
