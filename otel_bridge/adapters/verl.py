"""Registers the tracking backend and the trace backend ``otel_bridge`` in verl.

verl imports this module in each of its processes: through the entry point ``verl.plugins``, or
because ``VERL_USE_EXTERNAL_MODULES=otel_bridge.adapters.verl``. verl reports a failed plugin at the
level DEBUG only. So this module prints the reason, also when another module of the adapter cannot
be imported.
"""

from __future__ import annotations

import sys

try:
    from otel_bridge.adapters.parts.verl_tracking import BACKEND, VerlLogger, install

    install()
except Exception as error:
    sys.stderr.write(
        f"otel-bridge: verl continues without the backend otel_bridge: {type(error).__name__}: {error}\n"
    )
    raise

__all__ = ["BACKEND", "VerlLogger", "install"]
