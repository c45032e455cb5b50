"""What the settings say of rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_bridge import settings
from otel_bridge.emit.content import ContentPolicy
from otel_bridge.emit.conversation import Limits

EVAL: Final = "eval"
_LARGEST: Final = 60 << 20
"""A rollout must fit into one record of a segment, its facts included."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """How rollouts are kept and what of them may leave.

    Attributes:
        cap: Rollouts kept of a batch call; zero or less: none.
        cap_eval: The same for split ``eval``.
        rule: ``stratified`` or ``first``.
        limits: Content policy and size.
        key: Key in trackers where it was set, else empty.
    """

    cap: int
    cap_eval: int
    rule: str
    limits: Limits
    key: str

    @classmethod
    def read(cls, env: Mapping[str, str]) -> RolloutOptions:
        """Read them from *env*.

        Raises:
            ConfigError: A value cannot be parsed.
        """
        cap = settings.MAX_ROLLOUTS_PER_STEP.read(env)
        cap_eval = settings.MAX_ROLLOUTS_PER_STEP_EVAL.read(env)
        return cls(
            cap,
            cap if cap_eval is None else cap_eval,
            settings.ROLLOUT_SELECTION.read(env),
            Limits(ContentPolicy.read(env), min(settings.ROLLOUT_BYTES.read(env), _LARGEST)),
            env.get(settings.ROLLOUT_KEY.name, "").strip(),
        )

    def cap_of(self, split: str | None) -> int:
        """Return the seats of one step of *split*."""
        return self.cap_eval if split == EVAL else self.cap
