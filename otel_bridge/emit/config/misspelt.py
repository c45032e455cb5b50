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
    """Return every setting, each name once: the core's, those that exporters declare, and their content settings.

    An exporter that cannot be loaded declares none here: it is an error only for a run that
    chooses it.
    """
    settings: list[Setting[Any]] = [*declared()]
    for exporter_name in available():
        settings.append(content_of(exporter_name))
        if exporter_name == OTLP:  # declares no settings of its own
            continue
        with suppress(OtelBridgeError):
            settings += load(exporter_name).settings
    return list({setting.name: setting for setting in settings}.values())


def misspelt(env: Mapping[str, str]) -> list[str]:
    """Return a line for each variable of *env* that looks like a setting of otel-bridge and is not one.

    Empty in the usual case. Variables named after an exporter that declares no settings, or cannot
    be loaded, are not reported: a third party's may read its own.
    """
    suspects = {name for name in env if name.startswith(_PREFIX)}
    suspects -= {setting.name for setting in declared()}
    if not suspects:  # the usual case: `init()` imports no exporter for this check
        return []
    import difflib  # noqa: PLC0415  # for a typing error only

    names = {setting.name for setting in all_settings()}
    silent_prefixes = _prefixes_without_settings(names)
    lines: list[str] = []
    for suspect in sorted(suspects - names):
        if not suspect.startswith(silent_prefixes):
            # Without a least similarity, so that there always is one.
            nearest_name = difflib.get_close_matches(suspect, names, 1, 0.0)[0]
            lines.append(
                f"{suspect} is set, but is not a setting of otel-bridge; did you mean {nearest_name}?"
            )
    return lines


def _prefixes_without_settings(names: set[str]) -> tuple[str, ...]:
    """Return the beginnings of variables that are named after an exporter which declares none of *names*."""
    prefixes: list[str] = []
    for exporter_name in available():
        prefix = f"{_PREFIX}{exporter_name.upper()}_"
        declared_names = names - {content_of(exporter_name).name}
        if not any(name.startswith(prefix) for name in declared_names):
            prefixes.append(prefix)
    return tuple(prefixes)
