"""Environment variables by which children of ``otel-bridge run --capture`` are captured, and their removal.

A folder in front of ``PYTHONPATH`` holds a ``sitecustomize`` that installs the import hook of
`otel_bridge.capture`. The bridge imports the trackers in order to write, so that it never gets
these variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.settings import CAPTURE, CAPTURE_COUNTS, CAPTURE_MODE
from otel_bridge.values.mappings import only, without

_BELOW = os.path.join("otel_bridge", "capture", "sitecustomize")
_PATH = "PYTHONPATH"
_NAMES = (CAPTURE.name, CAPTURE_MODE.name, CAPTURE_COUNTS.name)


def capture_folder() -> str:
    """Return the folder of this installation that holds the ``sitecustomize`` of the capture."""
    return os.fspath(Path(__file__).resolve().parents[3] / _BELOW)


def is_capture_folder(entry: str) -> bool:
    """Return whether *entry* of a module search path is the capture's folder, of this or another installation."""
    return os.path.normpath(entry).endswith(_BELOW)


def capture_variables(
    env: Mapping[str, str], names: Sequence[str], mode: str = ""
) -> dict[str, str]:
    """Return the variables that make Python programs with *env* capture *names*.

    Python runs the first ``sitecustomize`` of its path: the folder of the capture comes first, and
    once, so that nested launchers do not repeat it.

    Args:
        env: The environment, whose ``PYTHONPATH`` is kept.
        names: What is captured, e.g. ``trackio``.
        mode: ``replace`` or ``tee``; empty for that of *env*.
    """
    path = [capture_folder()]
    for entry in env.get(_PATH, "").split(os.pathsep):
        if entry and not is_capture_folder(entry):
            path.append(entry)
    variables = {CAPTURE.name: ",".join(names), _PATH: os.pathsep.join(path)}
    if mode:
        return {**variables, CAPTURE_MODE.name: mode}
    return variables


def without_capture(env: Mapping[str, str]) -> dict[str, str]:
    """Return *env* without the capture: its variables, and its folder in ``PYTHONPATH``.

    ``PYTHONPATH`` goes when nothing else was in it: an empty one means the working folder to
    Python.
    """
    variables = without(env, _NAMES)
    path = variables.get(_PATH, "").split(os.pathsep)
    rest = [entry for entry in path if not is_capture_folder(entry)]
    if rest != path:
        variables.pop(_PATH)
        if any(rest):
            variables[_PATH] = os.pathsep.join(rest)
    return variables


def refuse_twice(names: Sequence[str], mode: str, exporters: Sequence[str]) -> None:
    """Refuse a capture after which a tracker would get every row twice.

    In the mode ``replace`` the program's own call writes nothing, so that any exporter is fine.

    Raises:
        ConfigError: One of *names* is captured in the mode ``tee``, and is among *exporters*.
    """
    for name in names:
        if mode == "tee" and name in exporters:
            raise ConfigError(
                f"{name} is captured with --tee ({CAPTURE_MODE.name}=tee): {name} is an exporter too, and "
                "would have every row twice; leave it out of the exporters, or leave --tee out"
            )


def inherited_capture(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that pass the capture of *env* to programs elsewhere.

    Empty when nothing is captured.
    """
    names = CAPTURE.read(env)
    if names:
        return capture_variables(env, names, env.get(CAPTURE_MODE.name, ""))
    return {}


def set_capture_aside() -> dict[str, str]:
    """Remove the capture from this process's environment.

    Return the variables that only its children use. The commands import trackers themselves, which
    must not be captured.
    """
    removed = only(os.environ, _NAMES) | inherited_capture(os.environ)
    remaining = without_capture(os.environ)
    for name in (*_NAMES, _PATH):
        if name in remaining:
            os.environ[name] = remaining[name]
        else:
            os.environ.pop(name, None)
    return removed
