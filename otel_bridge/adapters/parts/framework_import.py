"""Imports a class of a framework; a missing framework is an error that names what to install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from otel_bridge.errors import MissingExtraError


def framework_class(place: str, requirement: str) -> Any:
    """Return a class or function of a framework.

    A module of *another* package that is missing is not ours to explain: its own error names it.

    Args:
        place: Module and name, e.g. ``"accelerate.tracking:GeneralTracker"``.
        requirement: Versions that the adapter supports, e.g. ``"accelerate>=0.34"``.

    Raises:
        MissingExtraError: The framework is not installed, or is too old to have *place*.
        Exception: Whatever an installed framework raises when it is imported.
    """
    module_name, _, name = place.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as exc:
        # Of the framework itself a package is missing, or a module of a newer version.
        if (exc.name or "").partition(".")[0] != module_name.partition(".")[0]:
            raise
        raise _missing(f"{exc.name} cannot be imported", requirement) from exc
    try:
        return getattr(module, name)
    except AttributeError as exc:
        raise _missing(f"{module_name} has no {name}", requirement) from exc


def _missing(reason: str, requirement: str) -> MissingExtraError:
    return MissingExtraError(
        f"{reason}; this adapter needs {requirement}; run: pip install '{requirement}'"
    )
