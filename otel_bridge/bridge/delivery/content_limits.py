"""Limits the text that each exporter of a run gets: ``OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT``.

The strictest setting of the bridge's environment and of every process of the run applies. Text that
one process kept from a tracker never gets there, whichever process delivers later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otel_bridge import settings
from otel_bridge.content.policy import Limit, limit_of
from otel_bridge.errors import ConfigError

OFF = 0


class ContentLimits:
    """Holds the limits of one run. One thread changes them, any thread reads them.

    Args:
        env: The bridge's environment.
        requested: Value of `requested` in an earlier bridge.
        store: Stores the value of `requested` for a later bridge; may raise.

    Attributes:
        requested: Exporter to the strictest mode that a process of the run set, e.g. ``{"wandb":
            "off"}``.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        requested: Mapping[str, str] | None = None,
        *,
        store: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        self._env = env
        self._store = store
        self.requested: Mapping[str, str] = dict(requested or {})

    def apply(self, modes: Mapping[str, str]) -> None:
        """Apply the modes of a process, by exporter: a stricter mode replaces the one in `requested`.

        Nothing changes when a stricter mode cannot be stored; the error of *store* is raised.
        """
        stricter: dict[str, str] = {}
        for name, mode in modes.items():
            if _is_stricter(mode, self.requested.get(name, "full")):
                stricter[name] = mode
        if stricter:
            requested = {**self.requested, **stricter}
            # Stored first: a bridge killed now must not leave a laxer limit to the next one.
            self._store(requested)
            self.requested = requested

    def of(self, exporter: str) -> Limit:
        """Return the most characters that a text may have for *exporter*; ``None`` for no limit, 0 for no text.

        The stricter of the bridge's setting and of what a process set. 0 for a setting that cannot
        be read: until a person mends it, the exporter is blocked, and text must not leave by
        mistake.
        """
        try:
            mode = settings.content_of(exporter).read(self._env)
        except ConfigError:  # the exporter is blocked, and its state has the reason
            return OFF
        limits = (limit_of(mode), limit_of(self.requested.get(exporter, "full")))
        return min((limit for limit in limits if limit is not None), default=None)


def _is_stricter(mode: str, present_mode: str) -> bool:
    limit = limit_of(mode)
    present_limit = limit_of(present_mode)
    return limit is not None and (present_limit is None or limit < present_limit)
