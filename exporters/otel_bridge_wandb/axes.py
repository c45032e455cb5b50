"""Binds every key by its exact name to its role's hidden step axis.

Globs are unreliable: of several that match, wandb picks a random one (``runmetric.go``). Only
shared mode needs them, one for each role. Each attach of a run deletes all definitions until its
writer declares them again. So all known keys are declared right after every init. ``step_sync`` is
off: each row has its own step, and a row without a step must not get an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from otel_bridge.records import AXIS, axis_of
from otel_bridge_wandb.content.payload import shown_key
from otel_bridge_wandb.definitions import Definitions


@dataclass(frozen=True, slots=True)
class SharedAxes:
    """Holds the axes that every writer of a shared run declares, whichever writer logs.

    Attributes:
        roles: All roles of the job.
        marker: Key without an axis, which only numbers lines.
        define_all: Binds every key that begins with a prefix to an axis.
    """

    roles: tuple[str, ...]
    marker: str
    define_all: Callable[[str, str], None]


class WandbAxes:
    """Binds the keys of an open run to their axes.

    Calls that declare a name raise wandb's own exceptions. The name counts as declared then, and
    is declared again only by the next writer of the run.

    Args:
        define: Binds a name to an axis; without an axis it declares a hidden axis.
        shared: In shared mode, binds a whole prefix, for the roles whose axes are declared from the
            start.
    """

    def __init__(self, define: Definitions, shared: SharedAxes | None = None) -> None:
        self._define = define
        self._shared = shared
        # wandb's own key, which every line has.
        self._bound: set[str] = {"_timestamp"}
        self._axes: set[str] = set()
        self._declared: set[str] = set()
        if shared is not None:
            self._declare_roles(shared)

    @property
    def count(self) -> int:
        """Return how many names were declared, axes included.

        ``_timestamp`` is left out: it is wandb's own, and never declared.
        """
        return len(self._bound) - 1

    def send_definitions(self, *, now: bool = False) -> None:
        """Send deferred declarations; without *now*, not too often."""
        self._define.send_definitions(now=now)

    @property
    def declared(self) -> set[str]:
        """Return the names and patterns that a shared run must define."""
        if self._shared is None:
            return set()
        names = {self._shared.marker, *self._declared}
        for role in self._shared.roles:
            names |= {axis_of(role), f"{role}/*"}
        return names

    def needs(self, key: str) -> bool:
        """Return whether *key* of a shared run must be defined by its exact name.

        The pattern of its role covers only keys one level below the role; never outside shared
        mode.
        """
        if self._shared is None:
            return False
        for role in self._shared.roles:
            if key.startswith(f"{role}/"):
                return not _shallow(key, axis_of(role))
        return False

    def touch(self) -> None:
        """Make wandb upload all definitions and the whole config once more.

        The repeated definition changes nothing, but any definition makes wandb send all of them.
        """
        if self._shared is not None:
            self._define(self._shared.marker, None)

    def adopt(self, name: str, axis: str) -> None:
        """Adopt a declaration of another writer.

        This writer's next upload replaces all definitions, so that it must contain theirs. Nothing
        for a name that is bound already, or without an axis.
        """
        if axis and name not in self._bound:
            self.bind((name,), axis)

    def hide(self, name: str) -> None:
        """Declare *name* hidden, because it numbers the lines of another writer."""
        if name not in self._bound:
            self._bound.add(name)
            self._declare(name, None)

    def bind(self, keys: Iterable[str], axis: str) -> None:
        """Bind the new keys of *keys*, which are as W&B shows them."""
        # Hot path: called for each row, whose keys are almost always bound.
        bound = self._bound
        for key in keys:
            if key not in bound:
                self._bind(key, axis)

    def bind_all(self, keys: Mapping[str, str]) -> None:
        """Bind every known key to its axis.

        Entries with an empty key or axis are left out: there is nothing to bind.
        """
        for key, axis in keys.items():
            if key and axis:
                self.bind((shown_key(key, axis),), axis)

    def _bind(self, key: str, axis: str) -> None:
        """Declare *axis*, if it is new, and bind *key* to it, if it is new.

        In a shared run a key one level below its role is not declared: the pattern of its role
        covers it.
        """
        # The axis before the key: a definition names its axis by its place in the list.
        if axis not in self._axes:
            self._axes.add(axis)
            self._bound.add(axis)
            self._declare(axis, None)
        if key not in self._bound:
            self._bound.add(key)
            # One level below the role its prefix is enough. W&B does not document whether its page
            # follows deeper ones.
            if self._shared is None or not _shallow(key, axis):
                self._declare(key, axis)

    def _declare(self, name: str, axis: str | None) -> None:
        """Define *name*, and in shared mode note that the run must keep the definition."""
        self._define(name, axis)
        if self._shared is not None:
            self._declared.add(name)

    def _declare_roles(self, shared: SharedAxes) -> None:
        """Declare marker, axes and patterns of all roles, also of those that only other machines have.

        The upload of each writer replaces the definitions of all writers, so that each must send
        all.
        """
        self._bound.add(shared.marker)
        self._define(shared.marker, None)
        for role in shared.roles:
            axis = axis_of(role)
            self._axes.add(axis)
            self._bound.add(axis)
            self._define(axis, None)
            shared.define_all(f"{role}/", axis)


def _shallow(key: str, axis: str) -> bool:
    """Return whether *key* is ``<role>/<name>`` of the axis's own role.

    A key with ``*`` never is: it is defined by its exact name, since a star means a pattern.
    """
    prefix = axis.removesuffix(AXIS)
    return (
        bool(prefix)
        and key.startswith(prefix)
        and "/" not in key[len(prefix) :]
        and "*" not in key
    )
