"""The user's own redaction function: `redact_with`, ``OTEL_BRIDGE_REDACT=module:function``.

One for the process.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from otel_bridge import settings
from otel_bridge.errors import ConfigError, any_error_but_signals
from otel_bridge.text.secret_patterns import REDACTED

Redaction: TypeAlias = Callable[[str], str]
_log = logging.getLogger("otel_bridge")


class _UserFunction:
    """Holds the function, and who counts the texts on which it fails."""

    redaction: Redaction | None = None
    warned: bool = False
    count: Callable[[str, int], None] | None = None


def redact_by_setting(env: Mapping[str, str]) -> None:
    """Set the function that ``OTEL_BRIDGE_REDACT`` names, if any, as `redact_with` does.

    An error ends the start: without the function texts would leave that must not.

    Raises:
        ConfigError: The setting cannot be parsed, the function cannot be imported, or it is not a
            function.
    """
    function_name = next(
        (kind for kind in settings.REDACT.read(env) if ":" in kind), None
    )
    if function_name is None:
        return
    module, _, name = function_name.partition(":")
    try:
        function: object = getattr(importlib.import_module(module), name)
    except Exception as exc:  # the user's module may raise anything
        raise ConfigError(
            f"{settings.REDACT.name}={function_name!r}: it cannot be imported ({type(exc).__name__}: {exc}); "
            "name a function from text to text in a module that this process can import"
        ) from exc
    if not callable(function):
        raise ConfigError(
            f"{settings.REDACT.name}={function_name!r}: a {type(function).__name__}, expected a function"
        )
    redact_with(cast("Redaction", function))


def redact_with(redaction: Redaction | None) -> None:
    """Set a function that redacts every text of a rollout before it leaves the process.

    ``None`` removes the function.

    It applies to all runs of this process and of its forked children, from the next text on. A text
    for which the function raises, or returns no text, is left out and counted as
    ``rollout_redaction``.

    Args:
        redaction: Function from text to text. The thread that records calls it, so it must be
            thread-safe.
    """
    _UserFunction.redaction = redaction
    _UserFunction.warned = False


def count_refused_with(count: Callable[[str, int], None]) -> None:
    """Set the counter of texts on which the user's function fails."""
    _UserFunction.count = count


def hooked() -> bool:
    """Return whether the user's function sees every text, once each, so that no text may be encoded twice."""
    return _UserFunction.redaction is not None


def by_user(text: str) -> str:
    """Return *text* after the user's function, if there is one.

    ``[redacted]`` where the function raises or returns no text: counted as ``rollout_redaction``,
    and logged once, since a text that was not redacted must not leave. Only an exception of the
    program's own signal handlers passes (`any_error_but_signals`).
    """
    # Read once: another thread may remove the function meanwhile.
    redaction = _UserFunction.redaction
    if redaction is None:
        return text
    try:
        redacted: object = redaction(text)
    except any_error_but_signals() as exc:  # the user's code
        redacted = exc
    if isinstance(redacted, str):
        return redacted
    if _UserFunction.count is not None:
        _UserFunction.count("rollout_redaction", 1)
    if not _UserFunction.warned:
        # Once for each function: it sees every text, and may fail on all of them.
        _UserFunction.warned = True
        # The type alone: the exception may hold the text.
        _log.warning(
            "the redaction hook gave %s instead of text; such texts are left out",
            type(redacted).__name__,
        )
    return REDACTED
