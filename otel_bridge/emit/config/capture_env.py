"""Environment variables by which children of ``otel-bridge run --capture`` are captured, and their removal.

A folder in front of ``PYTHONPATH`` holds a ``sitecustomize`` that installs the import hook of `otel_bridge.capture`.
The bridge imports the trackers in order to write, so that it never gets these variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from otel_bridge.settings import CAPTURE, CAPTURE_MODE

_BELOW: Final = os.path.join("otel_bridge", "capture", "sitecustomize")
_PATH: Final = "PYTHONPATH"
_NAMES: Final = (CAPTURE.name, CAPTURE_MODE.name)


def capture_folder() -> str:
    """Return the folder of this installation that holds the ``sitecustomize`` of the capture."""
    return os.fspath(Path(__file__).resolve().parents[3] / _BELOW)


def is_capture_folder(entry: str) -> bool:
    """Return whether *entry* of a module search path is the capture's folder, of this or another installation."""
    return os.path.normpath(entry).endswith(_BELOW)


def capture_variables(env: Mapping[str, str], names: Sequence[str], mode: str = "") -> dict[str, str]:
    """Return the variables that make Python programs with *env* capture *names*.

    Args:
        env: The environment, whose ``PYTHONPATH`` is kept.
        names: What is captured, e.g. ``trackio``.
        mode: ``replace`` or ``tee``; empty for that of *env*.
    """
    path = [entry for entry in env.get(_PATH, "").split(os.pathsep) if entry and not is_capture_folder(entry)]
    variables = {CAPTURE.name: ",".join(names), _PATH: os.pathsep.join([capture_folder(), *path])}
    return {**variables, CAPTURE_MODE.name: mode} if mode else variables


def without_capture(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* without the capture: its variables, and its folder in ``PYTHONPATH``."""
    kept = {name: value for name, value in env.items() if name not in _NAMES}
    path = kept.get(_PATH, "").split(os.pathsep)
    if any(map(is_capture_folder, path)):
        rest = [entry for entry in path if not is_capture_folder(entry)]
        kept.pop(_PATH)
        if any(rest):
            kept[_PATH] = os.pathsep.join(rest)
    return kept


def inherited_capture(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pass the capture of *env* to programs elsewhere; empty when nothing is captured."""
    names = CAPTURE.read(env)
    return capture_variables(env, names, env.get(CAPTURE_MODE.name, "")) if names else {}


def set_capture_aside() -> None:
    """Remove the capture from this process's environment; `capture_set_aside` returns what was removed."""
    _set_aside.update({name: os.environ[name] for name in _NAMES if name in os.environ})
    _set_aside.update(inherited_capture(os.environ))
    kept = without_capture(os.environ)
    for name in (*_NAMES, _PATH):
        if name in kept:
            os.environ[name] = kept[name]
        else:
            os.environ.pop(name, None)


def capture_set_aside() -> dict[str, str]:
    """Return the variables of the capture that this process inherited and that only its children use."""
    return dict(_set_aside)


_set_aside: dict[str, str] = {}
