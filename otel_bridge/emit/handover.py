"""What children of this process are told, through its environment: the run it is in.

This process's own next ``init()`` is not to read it as its user's wish, hence `hand_over` can be taken back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


class Handover:
    """Variables set for children, and what stood there before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}
        self._given: dict[str, str] = {}

    def hand_over(self, variables: Mapping[str, str | None]) -> None:
        """Set *variables*; ``None`` removes one."""
        for name, value in variables.items():
            self._before.setdefault(name, os.environ.get(name))
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = self._given[name] = value.replace("\0", "")

    def keep_for_children(self) -> None:
        """Stop taking back: this process is itself a (forked) child, told by its parent."""
        self._before.clear()
        self._given.clear()

    def take_back(self) -> None:
        """Set what stood there before, where nobody changed it since."""
        for name, before in self._before.items():
            if os.environ.get(name) != self._given.get(name):
                continue
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before
        self._before.clear()
        self._given.clear()
