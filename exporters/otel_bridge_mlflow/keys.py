"""Keys -> names that MLflow takes, one for each key, the same after a restart.

``@`` becomes ``_at_``, repeated ``/`` one, any other character MLflow refuses ``_``. Two keys that would become one
name are told apart by a hash; a key that is legal as it is keeps its name unless it was taken before it came. Changed
names are kept in the writer's memory. Rules and limits are MLflow's own (mlflow/utils/validation.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

from otel_bridge.exporter import Memory

_log = logging.getLogger(__name__)
_HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Rules:
    """What MLflow says of names and sizes.

    Attributes:
        legal: A name's characters are all right.
        ambiguous: A name, read as a path, would be another one.
        name_length: Longest name of a metric, param or tag, in characters.
        param_length: Longest value of a param.
        tag_length: Longest value of a run's tag.
        trace_tag_length: Longest value of a trace's tag.
        experiment_length: Longest name of an experiment.
        metrics: Most metrics of one batch.
        params: Most params or tags of one batch.
    """

    legal: Callable[[str], object]
    ambiguous: Callable[[str], bool]
    name_length: int
    param_length: int
    tag_length: int
    trace_tag_length: int
    experiment_length: int
    metrics: int
    params: int


class Names:
    """The names of one kind of key (metrics, params, tags).

    Args:
        kind: Their kind, for memory and warnings.
        rules: MLflow's rules.
        memory: Where changed names are kept.
        seen: Keys that came before, so that no changed key takes the name of one of them.
    """

    def __init__(self, kind: str, rules: Rules, memory: Memory, seen: Iterable[str] = ()) -> None:
        self._kind = kind
        self._rules = rules
        self._memory = memory
        stored = memory.get(self._slot)
        self._changed = cast("dict[str, str]", json.loads(stored)) if stored else {}
        self._names = dict(self._changed)
        self._taken = set(self._changed.values())
        for key in seen:
            if key not in self._names and self._fits(key):
                self._names[key] = key
                self._taken.add(key)

    def learn(self, keys: Iterable[str]) -> None:
        """Name the new ones of *keys* that come together, legal ones first: they keep their names."""
        new = [key for key in keys if key not in self._names]
        for key in sorted(new, key=lambda key: not self._fits(key)):
            self.name(key)

    def name(self, key: str) -> str:
        """Return the name of *key*; a new one that must be changed is said once and stored."""
        known = self._names.get(key)
        return self._new(key, key) if known is None else known

    def part(self, key: str, part: str) -> str:
        """Return the name of a part of *key*, ``<name>/<part>``."""
        identity = f"{key}\0{part}"
        known = self._names.get(identity)
        return self._new(identity, f"{key}/{part}") if known is None else known

    @property
    def _slot(self) -> str:
        return f"names/{self._kind}"

    def _new(self, identity: str, wanted: str) -> str:
        name = wanted if self._fits(wanted) else self._clean(wanted)
        if name in self._taken:
            name = self._cut(name, identity)
        self._names[identity] = name
        self._taken.add(name)
        if name != wanted:
            _log.warning("%s %r is shown as %r: MLflow takes no such name, or another has it", self._kind, wanted, name)
        if name != identity:
            self._changed[identity] = name
            self._memory.put(self._slot, json.dumps(self._changed).encode())
        return name

    def _fits(self, name: str) -> bool:
        rules = self._rules
        # MLflow's pattern ends in $, which lets a last newline pass.
        legal = bool(name) and "\n" not in name and bool(rules.legal(name)) and not rules.ambiguous(name)
        return legal and len(name) <= rules.name_length

    def _clean(self, key: str) -> str:
        text = re.sub(r"/+", "/", key.replace("@", "_at_"))
        text = "".join(char if char not in "\n\0" and self._rules.legal(char) else "_" for char in text)
        segments = ["_" * len(part) if set(part) == {"."} else part for part in text.strip("/").split("/")]
        name = "/".join(segments) or "_"
        if len(name) > self._rules.name_length:
            name = self._cut(name, key)
        return name if self._fits(name) else self._cut("_", key)

    def _cut(self, name: str, identity: str) -> str:
        digits = hashlib.md5(identity.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()
        return f"{name[: self._rules.name_length - _HASH_DIGITS - 1]}-{digits[:_HASH_DIGITS]}"
