"""Imports a class of a framework; a missing framework is an error that names what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from otel_bridge.errors import MissingExtraError


def framework_class(place: str, requirement: str) -> Any:
    """Return a class or function of a framework.

    Args:
        place: Module and name, e.g. ``"accelerate.tracking:GeneralTracker"``.
        requirement: Versions that the adapter supports, e.g. ``"accelerate>=0.34"``.

    Raises:
        MissingExtraError: The framework is not installed, or is too old to have *place*.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != module.partition(".")[0]:
            raise  # a dependency of the framework
        seen = f"{exc.name} cannot be imported"
    except AttributeError:
        seen = f"{module} has no {name}"
    raise MissingExtraError(
        f"{seen}; this adapter needs {requirement}; run: pip install '{requirement}'"
    )
