"""What identifies a run: the part of `Run` that needs only how the run was begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from otel_bridge.emit.arguments import role_of
from otel_bridge.emit.config.child_env import variables_for_others
from otel_bridge.emit.config.snapshot import RunSettings, RunStart

if TYPE_CHECKING:
    from typing_extensions import Self


class NamedRun:
    """Holds the names of a run, and the environment variables that join it.

    Args:
        facts: How the run was begun.
    """

    def __init__(self, facts: RunStart) -> None:
        self.facts = facts

    def __repr__(self) -> str:
        return f"<otel_bridge.Run {self.project}/{self.name} id={self.id} role={self.role}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the run itself, because frameworks copy the objects that hold it."""
        return self

    def __reduce__(self) -> NoReturn:
        # A pickle that joins the run would hold `env()` and so the token, which must not be in a
        # checkpoint.
        raise TypeError(
            "a run cannot be pickled; another process joins it by otel_bridge.init() with the variables of run.env()"
        )

    @property
    def id(self) -> str:
        """Return the run id, the same in every process and after a restart."""
        return self.facts.identity.id

    @property
    def name(self) -> str:
        """Return the display name."""
        return self.facts.identity.name

    @property
    def project(self) -> str:
        """Return the project (MLflow: experiment)."""
        return self.facts.identity.project

    @property
    def role(self) -> str | None:
        """Return the role of this process."""
        return self.facts.identity.role

    @property
    def settings(self) -> RunSettings:
        """Return every setting as it was at ``init()``."""
        return self.facts.settings

    def env(self, role: str | None = None) -> dict[str, str]:
        """Return the environment variables that let a worker on another machine join this run.

        Pass them e.g. to Ray's ``runtime_env``. With an endpoint they contain its address and
        token: do not print them.

        Args:
            role: Role of the worker; ``None``: the worker names its role itself.
        """
        variables = dict(self.facts.child_environment)
        if variables:
            variables |= variables_for_others(self.facts.env, self.facts.choice.names)
        role_name = role_of(role)
        if role_name is not None:
            variables["OTEL_BRIDGE_ROLE"] = role_name
        return variables
