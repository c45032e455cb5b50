"""Attributes of a third-party point -> the part of the key that distinguishes the series of one metric. Pure.

A set of attributes that fits is shown whole. From a longer set, attributes that are equal in all known series of the
metric are left out first, the longest ahead. The name of a series never changes; it is kept under ``series/<metric>``
of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from otel_bridge.translation.metrics.keys import (
    MAX_SUFFIX,
    attribute_parts,
    attribute_suffix,
    short_hash,
)
from otel_bridge.translation.state import TranslationState

_SERIES: Final = "series/"
_MAX_SERIES: Final = 1_000
"""Most series of one metric whose names are kept; further series are named without the others."""
_HASH_CHARS: Final = 9
_MORE: Final = " etc"
"""Suffix of a series without its common attributes; no set of attributes that is shown whole ends so."""


@dataclass(slots=True)
class _Metric:
    """Holds series of one metric that have too many attributes.

    Attributes:
        common: Attributes that are equal in all these series; ``None`` before the first.
        names: Hash of all attributes to the name of the series.
    """

    common: dict[str, str] | None = None
    names: dict[str, str] = field(default_factory=dict[str, str])


class SeriesNames:
    """Names all series of one run that have too many attributes to show.

    Args:
        state: Key space ``series/``.
        max_metrics: Most metrics whose series are kept.
    """

    def __init__(self, state: TranslationState, max_metrics: int) -> None:
        self._state = state
        self._max_metrics = max_metrics
        self._metrics = {
            key.removeprefix(_SERIES): _loaded(value) for key, value in state.items(_SERIES)
        }

    def note(self, metric: str, series: Iterable[Mapping[str, object]]) -> None:
        """Note the series of *metric* that arrive together, before any series is named."""
        for attributes in series:
            if len(attribute_suffix(attributes, cut=False)) > MAX_SUFFIX:
                self._note_attributes(metric, attribute_parts(attributes))

    def name(self, metric: str, attributes: Mapping[str, object]) -> str:
        """Return the part of the key for a series, the same at every call."""
        suffix = attribute_suffix(attributes, cut=False)
        if len(suffix) <= MAX_SUFFIX:
            return suffix
        parts = attribute_parts(attributes)
        digest = short_hash(suffix, 8)
        series = self._note_attributes(metric, parts)
        if series is None:
            return _shortened(parts, {}, digest, is_taken=True)
        name = series.names.get(digest)
        if name is None:
            common = series.common or {}
            name = _shortened(parts, common, digest, is_taken=False)
            if name in series.names.values():
                name = _shortened(parts, common, digest, is_taken=True)
            if len(series.names) < _MAX_SERIES:
                series.names[digest] = name
                self._store(metric, series)
        return name

    def _note_attributes(self, metric: str, parts: Mapping[str, str]) -> _Metric | None:
        series = self._metrics.get(metric)
        if series is None:
            if len(self._metrics) >= self._max_metrics:
                return None
            series = _Metric()
            self._metrics[metric] = series
        old_common = series.common
        series.common = (
            dict(parts) if old_common is None else dict(old_common.items() & parts.items())
        )
        if series.common != old_common:
            self._store(metric, series)
        return series

    def _store(self, metric: str, series: _Metric) -> None:
        self._state.set(
            f"{_SERIES}{metric}", {"common": dict(series.common or {}), "names": dict(series.names)}
        )


def _shortened(
    parts: Mapping[str, str], common: Mapping[str, str], digest: str, *, is_taken: bool
) -> str:
    """Return *parts* as text, without the attributes that do not fit.

    Args:
        parts: Name of each attribute to its text, sorted by name.
        common: Attributes that all series share.
        digest: Hash that distinguishes this series where its attributes cannot.
        is_taken: Whether another series already has the name that this series would get.
    """
    shown_parts = dict(parts)
    is_cut = is_taken
    by_size = sorted(parts, key=lambda name: (name not in common, -len(parts[name]), name))
    for name in by_size:
        if len(_joined(shown_parts)) <= _room(is_cut) or len(shown_parts) == 1:
            break
        if name not in common:
            is_cut = True
        del shown_parts[name]
    text = _joined(shown_parts)
    if len(text) > _room(is_cut):
        is_cut = True
        text = text[: _room(True)].rstrip()
    return f"{text}-{digest[: _HASH_CHARS - 1]}" if is_cut else f"{text}{_MORE}"


def _room(is_cut: bool) -> int:  # private, one argument
    return MAX_SUFFIX - (_HASH_CHARS if is_cut else len(_MORE))


def _joined(parts: Mapping[str, str]) -> str:
    return "/" + " ".join(parts.values())


def _loaded(value: object) -> _Metric:
    stored = cast("dict[str, dict[str, str]]", value)
    return _Metric(dict(stored["common"]), dict(stored["names"]))
