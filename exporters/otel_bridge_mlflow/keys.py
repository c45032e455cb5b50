"""Keys -> names that MLflow accepts, one for each key, the same after a restart.

``@`` becomes ``_at_``, repeated ``/`` becomes one, and any other character that MLflow refuses
becomes ``_``. Two keys that would get the same name are distinguished by a hash. A legal key keeps
its name, unless an earlier key has it. All names are kept in the writer's memory, so that a key
gets the same name after a restart. Rules and limits are MLflow's own (mlflow/utils/validation.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import cast

from otel_bridge.exporter import WriterMemory

_log = logging.getLogger(__name__)
_HASH_DIGITS = 8


def cut_name(name: str, length: int, identity: str) -> str:
    """Return *name* in at most *length* characters, with a hash of *identity* at its end."""
    return f"{name[: length - _HASH_DIGITS - 1]}-{hash_of(identity)}"


def hash_of(identity: str) -> str:
    """Return the few digits that keep two names apart; equal texts have equal ones."""
    data = identity.encode("utf-8", "surrogatepass")
    return hashlib.md5(data, usedforsecurity=False).hexdigest()[:_HASH_DIGITS]


def _without_dots(part: str) -> str:
    """Return a part of a name; of dots alone, which would name another folder, as many underscores."""
    if set(part) == {"."}:
        return "_" * len(part)
    return part


@dataclass(frozen=True, slots=True)
class KeyRules:
    """Holds MLflow's rules for names and sizes.

    Attributes:
        legal: Returns whether MLflow accepts all characters of a name.
        ambiguous: Returns whether a name, read as a path, would become another name.
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
    """Assigns names to the keys of one kind (metrics, params, tags).

    Args:
        kind: Their kind, for memory and warnings.
        rules: MLflow's rules.
        memory: Memory that keeps names, in one entry for each `store`.
        used_keys: Keys of earlier records, which the caller passes at each start; legal ones need
            no entry in memory.
    """

    def __init__(
        self,
        kind: str,
        rules: KeyRules,
        memory: WriterMemory,
        used_keys: Iterable[str] = (),
    ) -> None:
        """Read the stored names; legal keys of *used_keys* keep theirs."""
        self._kind = kind
        self._rules = rules
        self._memory = memory
        self._names: dict[str, str] = {}
        self._new: dict[str, str] = {}
        self._entries = 0
        for _, entry in memory.items(f"{self._slot}/"):
            self._names |= cast("dict[str, str]", json.loads(entry))
            self._entries += 1
        self._taken = set(self._names.values())
        for key in used_keys:
            # One that waits for delivery may be the name of another, such as a part of a distribution.
            is_free = key not in self._names and key not in self._taken
            if is_free and self._fits(key):
                self._names[key] = key
                self._taken.add(key)

    def add_keys(self, keys: Iterable[str]) -> None:
        """Assign names to the new keys of *keys*, to legal ones first, so that they keep their names."""
        self.add_paths({key: key for key in keys})

    def add_paths(self, preferred_names: Mapping[str, str]) -> None:
        """Assign names to the new keys of *preferred_names*, which maps each argument of `name` to its preferred name.

        Legal names are assigned first, and among them first those that equal their key.
        """
        new: list[tuple[bool, bool, str, str]] = []
        for identity, name in preferred_names.items():
            if identity not in self._names:
                new.append((not self._fits(name), identity != name, identity, name))
        new.sort(key=itemgetter(0, 1))
        for _, _, identity, name in new:
            self._add(identity, name)

    def name(self, key: str) -> str:
        """Return the name of *key*; a new key gets one, with a warning if it differs from the key.

        Call `store` before data is sent under it.
        """
        name = self._names.get(key)
        if name is None:
            return self._add(key, key)
        return name

    def known(self, key: str) -> str | None:
        """Return the name of *key*, ``None`` when it has none yet."""
        return self._names.get(key)

    def part(self, key: str, part: str) -> str:
        """Return the name of a part of *key*, ``<name>/<part>``."""
        identity = f"{key}\0{part}"
        name = self._names.get(identity)
        if name is None:
            return self._add(identity, f"{key}/{part}")
        return name

    def store(self) -> None:
        """Store the new names in memory. Call it before data is sent under these names.

        Raises `JournalError` when the memory cannot be written; the names are stored by the next
        call.
        """
        if not self._new:
            return
        self._memory.put(
            f"{self._slot}/{self._entries:08d}", json.dumps(self._new).encode()
        )
        self._entries += 1
        self._new = {}

    @property
    def _slot(self) -> str:
        return f"names/{self._kind}"

    def _add(self, identity: str, preferred_name: str) -> str:
        """Assign a name to *identity* and return it.

        It is the preferred one if MLflow accepts it and no other key has it. The salt grows with
        each collision, so that a changed name is found in the end, and is the same for the same
        keys.
        """
        name = preferred_name
        if not self._fits(preferred_name):
            name = self._clean(preferred_name)
        salt = identity
        while name in self._taken:
            name = self._cut(name, salt)
            salt = f"{salt}\0"
        self._names[identity] = name
        self._new[identity] = name
        self._taken.add(name)
        if name != preferred_name:
            _log.warning(
                "%s %r is shown as %r: MLflow refuses the name, or another has it",
                self._kind,
                preferred_name,
                name,
            )
        return name

    def _fits(self, name: str) -> bool:
        rules = self._rules
        # MLflow's pattern ends in $, which lets a last newline pass.
        if not name or "\n" in name or len(name) > rules.name_length:
            return False
        return bool(rules.legal(name)) and not rules.ambiguous(name)

    def _clean(self, key: str) -> str:
        """Return *key* as a name that MLflow accepts; ``_`` with a hash if nothing legal is left."""
        text = re.sub(r"/+", "/", key.replace("@", "_at_"))
        text = "".join(map(self._legal, text))
        name = "/".join(map(_without_dots, text.strip("/").split("/"))) or "_"
        if len(name) > self._rules.name_length:
            name = self._cut(name, key)
        if self._fits(name):
            return name
        return self._cut("_", key)

    def _legal(self, char: str) -> str:
        """Return *char*, or ``_`` if MLflow refuses it.

        Its pattern, which ends in ``$``, lets a newline pass.
        """
        if char in "\n\0" or not self._rules.legal(char):
            return "_"
        return char

    def _cut(self, name: str, identity: str) -> str:
        return cut_name(name, self._rules.name_length, identity)
