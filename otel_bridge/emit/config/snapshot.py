"""What a run was begun with, and the options that are read of it: a malformed setting fails at ``init()``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_bridge import settings
from otel_bridge.content.policy import ContentPolicy
from otel_bridge.emit.config.exporters import RequestedDestinations
from otel_bridge.emit.config.identity import Identity
from otel_bridge.emit.config.resource import RESTARTS, is_trial
from otel_bridge.emit.conversations.conversation import MessageLimits
from otel_bridge.records import is_evaluation
from otel_bridge.settings import declared


def check_settings(env: Mapping[str, str]) -> None:
    """Read every declared setting of *env*, and the variables of schedulers that a header has.

    A header is made when the folder is there, and again after a fork: too late for an error.

    Raises:
        ConfigError: A setting cannot be parsed.
    """
    for setting in declared():
        setting.read(env)
    for restarts in RESTARTS:
        restarts.read(env)


# Settings of rollouts.

_LARGEST = 60 << 20
"""Size limit of a rollout, which must fit into one record of a segment, its facts included."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Holds options of sampling and of the content policy for rollouts.

    Attributes:
        cap: Most rollouts kept of a batch call; zero or less: none.
        cap_eval: Most rollouts kept for split ``eval``.
        rule: ``stratified`` or ``first``.
        limits: Content policy and size.
        key: Key in trackers when set, else empty.
    """

    cap: int
    cap_eval: int
    rule: str
    limits: MessageLimits
    key: str

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RolloutOptions:
        """Read the options from *env*.

        Raises:
            ConfigError: A value cannot be parsed.
        """
        cap = settings.MAX_ROLLOUTS_PER_STEP.read(env)
        cap_eval = settings.MAX_ROLLOUTS_PER_STEP_EVAL.read(env)
        return cls(
            cap,
            cap if cap_eval is None else cap_eval,
            settings.ROLLOUT_SELECTION.read(env),
            MessageLimits(
                ContentPolicy.read(env), min(settings.ROLLOUT_BYTES.read(env), _LARGEST)
            ),
            env.get(settings.ROLLOUT_KEY.name, "").strip(),
        )

    def cap_of(self, split: str | None) -> int:
        """Return the number of seats of one step of *split*."""
        if is_evaluation(split):
            return self.cap_eval
        return self.cap


@dataclass(frozen=True, slots=True)
class RunStart:
    """Holds the arguments and the environment with which a run was begun.

    Attributes:
        identity: Run and role.
        choice: The requested exporters.
        env: Environment at the start of the run.
        cwd: Working folder at the start of the run.
        child_environment: Environment variables for children, and for workers on other machines.
    """

    identity: Identity
    choice: RequestedDestinations
    env: Mapping[str, str]
    cwd: Path
    child_environment: Mapping[str, str]

    @property
    def ends_by_itself(self) -> bool:
        """Return whether the run ends with its own processes, not with the command of a launcher."""
        return self.identity.request.captured is not None or is_trial(self.env)
