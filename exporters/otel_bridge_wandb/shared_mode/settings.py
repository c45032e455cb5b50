"""Reads the settings of shared mode, in which several bridges write one W&B run, each on its own machine.

Every upload of a writer replaces the definitions of all axes (core/internal/runupserter). So every
writer declares the axes of every role, from the same list of roles. The machines need neither a
common folder nor communication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import RunInfo
from otel_bridge.records import axis_of
from otel_bridge.settings import Setting, flag, names, text

SHARED = Setting(
    "OTEL_BRIDGE_WANDB_SHARED",
    False,
    flag,
    "Several machines without a common bridge write one W&B run, in wandb's shared mode; needs `OTEL_BRIDGE_ROLES`.",
)
PRIMARY = Setting(
    "OTEL_BRIDGE_WANDB_PRIMARY",
    "",
    text,
    "In shared mode, the machine that ends the run: a role (its machine), or 1 or 0 for this machine; default: node "
    "rank 0.",
)
_NO_ROLES: tuple[str, ...] = ()
ROLES = Setting(
    "OTEL_BRIDGE_ROLES",
    _NO_ROLES,
    names,
    "All roles of the job, the same list on every machine: `trainer,explorer`.",
)
SETTINGS = (SHARED, PRIMARY, ROLES)

_ILLEGAL_IN_ID = re.compile(r"[^\w\-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Holds the settings by which this bridge takes part in a shared run.

    Attributes:
        roles: All roles of the job.
        primary: A role, ``1``, ``0``, or empty for the machine of node rank 0.
    """

    roles: tuple[str, ...]
    primary: str = ""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Sharing | None:
        """Read the settings from *env*; ``None`` when sharing is not requested.

        Raises:
            ConfigError: The list of roles is missing, or two of its axes could be confused.
        """
        if not SHARED.read(env):
            return None
        roles = ROLES.read(env)
        if not roles:
            raise ConfigError(
                f"{SHARED.name}=1 needs the roles of the whole job, the same list on every machine; "
                f"set {ROLES.name}=trainer,explorer"
            )
        for role in roles:
            # Axes are bound by the prefix "<role>/", which must not match another role's keys.
            longer_roles = [longer for longer in roles if longer.startswith(f"{role}/")]
            if longer_roles:
                reason = f"{longer_roles[0]!r} begins with it"
            elif "*" in role:
                reason = "`*` is a pattern in W&B"
            else:
                continue
            raise ConfigError(
                f"{ROLES.name}: {role!r} cannot have an axis of its own in shared mode, for {reason}; "
                "choose another name"
            )
        primary = PRIMARY.read(env)
        if primary not in {"", "0", "1", *roles}:
            raise ConfigError(
                f"{PRIMARY.name}={primary!r}: expected 1, 0 or one of {', '.join(roles)}"
            )
        return cls(roles, primary)

    def is_primary(self, run: RunInfo) -> bool:
        """Return whether the bridge of *run*, as far as it is known, ends the W&B run.

        With a role as the primary, its machine is known only once a config or key of the role has
        come.
        """
        if self.primary in {"0", "1"}:
            return self.primary == "1"
        if not self.primary:
            return run.node_rank == 0
        return self.primary in run.configs or axis_of(self.primary) in run.keys.values()


def part_of_id(name: str) -> str:
    """Return *name* as a part of a W&B run id.

    Cut, because W&B limits the length of an id; "unnamed" when nothing of the name is left.
    """
    return _ILLEGAL_IN_ID.sub("-", name).strip("-")[:40] or "unnamed"
