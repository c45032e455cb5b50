"""How much text each exporter of a run gets: ``OTEL_BRIDGE_<EXPORTER>_MESSAGE_CONTENT``, applied ahead of its writer.

What the bridge's environment and every process of the run say holds together, the strictest of it: text that one of
them kept from a tracker never gets there, whichever process delivers it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_bridge import settings
from otel_bridge.errors import ConfigError
from otel_bridge.otlp.content import Limit, limit_of

OFF: Final = 0


class ContentLimits:
    """The limits of one run. Given by one thread, asked by any.

    Args:
        env: The bridge's environment.
        requested: What was requested before, as `requested` had it.

    Attributes:
        requested: Exporter to the strictest that a process of the run said, e.g. ``{"wandb": "off"}``.
    """

    def __init__(self, env: Mapping[str, str], requested: Mapping[str, str] | None = None) -> None:
        self._env = env
        self.requested: dict[str, str] = dict(requested or {})

    def apply(self, said: Mapping[str, str]) -> None:
        """Take what a process says, exporter to mode: `requested` is another one where that is stricter."""
        stricter = {name: mode for name, mode in said.items() if _is_stricter(mode, self.requested.get(name, "full"))}
        if stricter:
            self.requested = {**self.requested, **stricter}

    def of(self, exporter: str) -> Limit:
        """Return how many characters a text may have for *exporter*."""
        try:
            own = settings.content_of(exporter).read(self._env)
        except ConfigError:  # it is blocked, and says why
            return OFF
        return _strictest(limit_of(mode) for mode in (own, self.requested.get(exporter, "full")))


def _is_stricter(mode: str, than: str) -> bool:
    limit, other = limit_of(mode), limit_of(than)
    return limit is not None and (other is None or limit < other)


def _strictest(limits: Iterable[Limit]) -> Limit:
    return min((limit for limit in limits if limit is not None), default=None)
