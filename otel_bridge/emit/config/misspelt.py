"""Names variables that look like a setting of otel-bridge and are not one, for ``init()`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from otel_bridge.errors import OtelBridgeError
from otel_bridge.exporter import OTLP, available, load
from otel_bridge.settings import Setting, content_of, declared

_PREFIX = "OTEL_BRIDGE_"


def all_settings() -> list[Setting[Any]]:
    """Return every setting: the core's, those that exporters declare, and the content setting of each exporter."""
    return [*_declared_by_name(), *(content_of(name) for name in available())]


def misspelt(env: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of *env* that looks like a setting of otel-bridge and is not one.

    Empty in the usual case. Variables named after an exporter that declares no settings, or cannot
    be loaded, are not reported: a third party's may read its own.
    """
    core_names = {setting.name for setting in declared()}
    suspects = [
        name
        for name in sorted(env)
        if name.startswith(_PREFIX) and name not in core_names
    ]
    if not suspects:  # the usual case: `init()` imports no exporter for this check
        return []
    import difflib  # noqa: PLC0415  # for a typing error only

    names = {setting.name for setting in all_settings()}
    silent_prefixes = _prefixes_without_settings()
    lines: list[str] = []
    for suspect in suspects:
        if suspect not in names and not suspect.startswith(silent_prefixes):
            nearest_name = difflib.get_close_matches(suspect, names, 1, 0.0)[0]
            lines.append(
                f"{suspect} is set, but is not a setting of otel-bridge; did you mean {nearest_name}?"
            )
    return lines


def _prefixes_without_settings() -> tuple[str, ...]:
    """Return the beginnings of variables that are named after an exporter which declares none."""
    declared_names = "\n".join(setting.name for setting in _declared_by_name())
    prefixes: list[str] = []
    for exporter_name in available():
        prefix = f"{_PREFIX}{exporter_name.upper()}_"
        if prefix not in declared_names:
            prefixes.append(prefix)
    return tuple(prefixes)


def _declared_by_name() -> list[Setting[Any]]:
    """Return the core's settings and those that exporters declare, each name once.

    An exporter that cannot be loaded is left out: it is an error only for a run that chooses it.
    """
    settings: list[Setting[Any]] = [*declared()]
    for exporter_name in available():
        if exporter_name == OTLP:  # declares no settings of its own
            continue
        # One that cannot be loaded is an error only for a run that chooses it.
        with suppress(OtelBridgeError):
            settings += load(exporter_name).settings
    return list({setting.name: setting for setting in settings}.values())
