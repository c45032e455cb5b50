"""Checks the interpreter of another environment that the user names, with otel-bridge and the trackers.

The bridge runs there, so that a framework's pins do not matter. Each process queries the
interpreter once.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from otel_bridge.emit.bridge_process.spawn import bridge_environment
from otel_bridge.errors import ConfigError, MissingExtraError
from otel_bridge.exporter import OTLP
from otel_bridge.journal import folder as folders
from otel_bridge.journal import header as headers
from otel_bridge.settings import BRIDGE_PYTHON

HINT = (
    "or leave this environment as it is: uv tool install 'otel-bridge[all]' once for the machine, and "
    f'export {BRIDGE_PYTHON.name}="$(uv tool dir)/otel-bridge/bin/python"'
)
_ASK_S = 20.0
_FORMATS = {"segments": headers.FORMAT, "folder": folders.FORMAT}

# Code that runs there. It imports only modules of every version; -I keeps the training program's
# modules away.
_QUESTION = """
import json
from importlib import import_module, metadata, util
answer = {}
try:
    answer["version"] = metadata.version("otel-bridge")
    answer["formats"] = {
        "segments": import_module("otel_bridge.journal.header").FORMAT,
        "folder": import_module("otel_bridge.journal.folder").FORMAT,
    }
    import_module("otel_bridge.bridge.main")
    answer["missing"] = {
        point.name: [name for name in point.load().requires if util.find_spec(name) is None]
        for point in metadata.entry_points(group="otel_bridge.exporters")
    }
except Exception as exc:
    answer["error"] = f"{type(exc).__name__}: {exc}"[:300]
print(json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class OtherPython:
    """Describes an interpreter that can run the bridge.

    Attributes:
        path: The interpreter.
        version: Version of otel-bridge there.
        missing: Exporter to its required modules that are not installed there.
    """

    path: str
    version: str
    missing: Mapping[str, Sequence[str]]


def find_python(
    env: Mapping[str, str], names: Sequence[str], missing: Mapping[str, str]
) -> OtherPython | None:
    """Return the interpreter that the user names to run the bridge; ``None``: this process's own.

    Asked before anything is created: a bridge that cannot start would be noticed only in its log.

    Args:
        env: The environment.
        names: The exporters of the run.
        missing: Exporter to the message about its package, for packages that this environment
            lacks.

    Raises:
        ConfigError: The interpreter that the user names cannot run the bridge.
        MissingExtraError: The environment of the bridge lacks the package that an exporter needs.
    """
    setting = BRIDGE_PYTHON.read(env)
    if setting:
        path = os.path.expanduser(setting)
        other_python = _queried.get(path) or _query(path, env)
        _queried[path] = other_python
        lacking = _lacking(other_python, [name for name in names if name != OTLP])
        if lacking:
            raise MissingExtraError(f"{BRIDGE_PYTHON.name}={setting}: {lacking}")
        return other_python
    if not missing:
        return None
    raise MissingExtraError(f"{next(iter(missing.values()))}; {HINT}")


def _lacking(other_python: OtherPython, names: Sequence[str]) -> str:
    """Return what *other_python* lacks for the exporters *names*, with the install command.

    Empty if nothing.
    """
    unknown = [name for name in names if name not in other_python.missing]
    if unknown:
        return f"exporter {', '.join(unknown)} is not installed in that environment"
    lacking = [name for name in names if other_python.missing[name]]
    if not lacking:
        return ""
    modules = dict.fromkeys(
        module for name in lacking for module in other_python.missing[name]
    )
    extras = ",".join(lacking)
    return (
        f"that environment lacks {', '.join(modules)}: "
        f"{shlex.quote(other_python.path)} -m pip install 'otel-bridge[{extras}]', "
        f"or uv tool install 'otel-bridge[{extras}]'"
    )


_queried: dict[str, OtherPython] = {}
"""Interpreters that this process has queried; a process may begin many runs."""


def _query(python: str, env: Mapping[str, str]) -> OtherPython:
    """Return the abilities of *python*, which is started once and has twenty seconds to answer.

    Raises:
        ConfigError: It is not an interpreter that can run the bridge.
    """
    if not (
        os.path.isabs(python) and os.path.isfile(python) and os.access(python, os.X_OK)
    ):
        raise ConfigError(
            f"{BRIDGE_PYTHON.name}={python!r}: expected the absolute path of a Python interpreter"
        )
    try:
        done = subprocess.run(  # the user's own interpreter
            [python, "-I", "-c", _QUESTION],
            env=bridge_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(
            f"{python}: no answer within {_ASK_S:.0f} s; expected a Python with otel-bridge"
        ) from exc
    except OSError as exc:
        raise ConfigError(
            f"{python}: {exc}; expected a Python with otel-bridge"
        ) from exc
    try:
        # The last line: packages that are imported there may print, too.
        answer = cast("dict[str, object]", orjson.loads(done.stdout.splitlines()[-1]))
    except (IndexError, orjson.JSONDecodeError) as exc:
        raise ConfigError(
            f"{python}: it ended with {done.returncode} and no answer; expected a Python with otel-bridge"
        ) from exc
    return _checked(python, answer)


def _checked(python: str, answer: Mapping[str, object]) -> OtherPython:
    """Return the abilities that the answer of *python* shows.

    Raises:
        ConfigError: otel-bridge is missing there, does not start, or has other file formats.
    """
    version = str(answer.get("version", ""))
    if "error" in answer:
        if version:
            problem = f"otel-bridge {version} there does not start"
        else:
            problem = "otel-bridge is not installed there"
        raise ConfigError(
            f"{python}: {problem} ({answer['error']}); install it: "
            f"{shlex.quote(python)} -m pip install --upgrade 'otel-bridge[all]'"
        )
    formats = cast("Mapping[str, int]", answer.get("formats") or {})
    # The bridge there reads what this process appends here.
    if dict(formats) != _FORMATS:
        raise ConfigError(
            f"{python}: otel-bridge {version} there has other file formats ({_listed(formats)}) than this process's "
            f"({_listed(_FORMATS)}); install the same version in both environments"
        )
    missing = cast("Mapping[str, Sequence[str]]", answer.get("missing") or {})
    return OtherPython(
        python, version, {name: tuple(modules) for name, modules in missing.items()}
    )


def _listed(formats: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in formats.items())
