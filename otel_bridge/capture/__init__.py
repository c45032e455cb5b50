"""Capture of programs that log to other trackers: ``otel_bridge.capture("trackio")``.

The package is callable, because the function and its package share their name. Importing it imports
no tracker and, so that programs start as fast as before, no other module of otel-bridge.
"""

from __future__ import annotations

import sys
from types import ModuleType


class _CallablePackage(ModuleType):
    """Calls `otel_bridge.capture.hook.capture` when the package is called."""

    def __call__(self, *names: str, mode: str | None = None) -> None:
        """Capture *names*, see `otel_bridge.capture.hook.capture`.

        Raises:
            ConfigError: A name or the mode is unknown, or the name is captured in another mode
                already.
        """
        from otel_bridge.capture.hook import capture  # noqa: PLC0415  # only programs that call it pay for it

        capture(*names, mode=mode)


sys.modules[__name__].__class__ = _CallablePackage
