"""Every setting as it stood at ``init()``: a malformed one fails there, none is read again later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from otel_bridge.settings import Setting, declared

T = TypeVar("T")


class RunSettings:
    """Values of the declared settings.

    Args:
        env: Where they are read.

    Raises:
        ConfigError: One cannot be parsed.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._values = {setting.name: setting.read(env) for setting in declared()}

    def read(self, setting: Setting[T]) -> T:
        """Return the value of *setting*."""
        if setting.name not in self._values:
            self._values[setting.name] = setting.read(self._env)
        return cast("T", self._values[setting.name])
