"""Which exporters one run has: chosen by who lives, kept in the ledger, given to its lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from otel_bridge.bridge.exporters import chosen, other_traces, places_named
from otel_bridge.bridge.lanes import Lanes
from otel_bridge.bridge.ledger import Ledger
from otel_bridge.bridge.lives import Lives
from otel_bridge.bridge.view import View
from otel_bridge.translation.options import OtherTraces


class Naming:
    """Names the exporters of one run. One thread.

    Args:
        ledger: Keeps what was chosen last.
        view: Reads it.
        lives: Who speaks.
        lanes: Get what is chosen.
        given: Signal to exporters, as given by ``--exporters``; ``None``: the segments decide.
        say: Takes one line for the log.

    Attributes:
        chosen: The lanes are those that the run needs now; while they are not, nobody knows who still needs what.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        view: View,
        lives: Lives,
        lanes: Lanes,
        given: Mapping[str, tuple[str, ...]] | None,
        say: Callable[[str], None],
    ) -> None:
        self._ledger, self._lives, self._lanes, self._given, self._say = ledger, lives, lanes, given, say
        self._last_names: object = view.meta("exporters")
        self._places = cast("dict[str, dict[str, str]] | None", view.meta("places")) or {}
        self._said_others = False
        self.chosen = False

    def choose(self) -> bool:
        """Choose anew; says whether that changed anything."""
        self.chosen = False
        # The last processes count where none that names any lives: a program may be over before its bridge has begun.
        headers = [one for one in self._lives.living() if any(one.exporters.values())] or self._lives.headers()
        names = chosen(self._given, headers, self._last_names)
        # Kept: a process that is over and read has no segment left, and its records may still wait for its tracker.
        places = {**self._places, **places_named(headers)}
        if places != self._places:
            self._ledger.set_meta("places", places)
            self._places = places
        changed = self._lanes.choose(names, places)
        if _plain(names) != _plain(self._last_names):
            self._ledger.set_meta("exporters", names)
            self._last_names = names
        self._lanes.mark_named()
        self.chosen = True
        return changed

    def other_traces(self) -> OtherTraces:
        """Say what becomes of a trace that is no rollout; that some exporter leaves them out is said once."""
        headers = self._lives.living() or self._lives.headers()
        fate = other_traces(self._lanes.names or chosen(self._given, headers, self._last_names))
        if fate is not OtherTraces.SHOWN and not self._said_others:
            self._said_others = True
            self._say("a trace that is no rollout goes to otlp, console and file only; counted as trace/other")
        return fate


def _plain(names: object) -> object:
    """Return exporter to signals as JSON has it."""
    if not isinstance(names, dict):
        return names
    return {name: list(signals) for name, signals in cast("dict[str, Iterable[str]]", names).items()}
