"""The config of a run by W&B's rules, without wandb: plain values, defaults of a file, no change by accident.

Source: wandb 0.31, ``sdk/wandb_config.py``, ``sdk/wandb_helper.py``, ``util.json_friendly_val``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import date
from pathlib import Path
from typing import Any, Final, cast

from otel_bridge.capture.wandb.recording import AttributeDict
from otel_bridge.compat.errors import UsageError, WandbConfigError
from otel_bridge.emit.encode.values import is_array, is_scalar

_DEFAULTS: Final = "config-defaults.yaml"
_BUILT_IN: Final = "builtins"
_MAX_LIST: Final = 32
"""Most numbers of an array that W&B keeps as a list; a larger array becomes a text."""


class WandbConfig(AttributeDict):
    """Holds the hyperparameters of a run; each change is recorded once the run has begun."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "record", None)
        super().update(self._checked(given or {}, allow_val_change=True))

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, d: Any, allow_val_change: Any = None) -> None:  # type: ignore[override]  # as W&B's, not a dict's
        """Set and record entries, given as a mapping, a namespace or the path of a YAML file.

        Raises:
            WandbConfigError: An entry has another value already, and *allow_val_change* is not set.
        """
        self._set(self._checked(entries_of(d), allow_val_change=bool(allow_val_change)))

    def setdefaults(self, d: Any) -> None:
        """Set and record the entries that are not set."""
        self.update({key: value for key, value in entries_of(d).items() if key not in self})

    def as_dict(self) -> dict[str, Any]:
        """Return the entries."""
        return dict(self)

    def _set(self, new: dict[str, Any]) -> None:
        super().update(new)
        if self.record is not None:
            self.record(new)

    def _checked(self, given: Mapping[str, Any], *, allow_val_change: bool) -> dict[str, Any]:
        new = {str(key).strip("-"): plain_value(value) for key, value in given.items()}
        for key, value in () if allow_val_change else new.items():
            if key in self and self[key] != value:
                raise WandbConfigError(
                    f'Attempted to change value of key "{key}" from {self[key]} to {value}\n'
                    "If you really want to do this, pass allow_val_change=True to config.update()"
                )
        return new


def config_of_arguments(given: Any, include: Collection[str] | None, exclude: Collection[str] | None) -> WandbConfig:
    """Return the config of a new run: *given* to ``init()``, and the defaults in ``config-defaults.yaml``.

    Args:
        given: A mapping, a namespace, the path of a YAML file, or ``None``.
        include: The only entries of it that count.
        exclude: Entries of it that do not count.

    Raises:
        UsageError: Both *include* and *exclude* are given.
    """
    if include and exclude:
        raise UsageError("Expected at most only one of exclude or include")
    entries: Mapping[str, Any] = {} if given is None else entries_of(given)
    kept = {key: value for key, value in entries.items() if not include or key in include}
    defaults = _read_yaml(Path(_DEFAULTS)) if os.path.exists(_DEFAULTS) else {}
    return WandbConfig({**defaults, **{key: value for key, value in kept.items() if key not in (exclude or ())}})


def entries_of(given: Any) -> Mapping[str, Any]:
    """Return the entries of a mapping, a namespace, flags of absl, or a YAML file that is named by its path.

    Raises:
        WandbConfigError: The file cannot be read.
        TypeError: *given* is none of these.
    """
    if isinstance(given, Mapping):
        return cast("Mapping[str, Any]", given)
    if isinstance(given, str | os.PathLike):
        return _read_yaml(Path(cast("str", given)))
    flags = getattr(given, "flag_values_dict", None)  # absl.flags.FLAGS
    if callable(flags):
        return cast("Mapping[str, Any]", flags())
    if not hasattr(given, "__dict__"):
        raise TypeError("config must be a dict or have a __dict__ attribute.")
    return cast("Mapping[str, Any]", given.__dict__)


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the entries of a config file of W&B, whose values may be below ``value``."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415  # only for programs with such a file

        read: Any = yaml.safe_load(path.read_text("utf-8"))
    except Exception as exc:
        raise WandbConfigError(f"config={os.fspath(path)!r}: {exc}; expected a YAML file of hyperparameters") from exc
    entries = cast("dict[str, Any]", read if isinstance(read, dict) else {})
    return {
        key: value["value"] if isinstance(value, dict) and "value" in value else value
        for key, value in entries.items()
        if key != "wandb_version"
    }


def plain_value(given: Any) -> Any:
    """Return a value *given* to the config as W&B keeps it: plain numbers and texts, lists and dicts of them."""
    value: Any = _plain_scalar(given)
    if isinstance(value, dict):
        return {key: plain_value(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return [plain_value(one) for one in cast("Sequence[Any]", value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_value(dataclasses.asdict(value))
    return value if type(value).__module__ == _BUILT_IN else str(value)


def _plain_scalar(given: Any) -> Any:
    value: Any = given
    if is_scalar(value):
        value = value.item()
    elif is_array(value):
        size = math.prod(tuple(value.shape))
        value = value.item() if size == 1 else cast("Any", value).tolist() if size <= _MAX_LIST else str(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    for kind, plain in _PLAIN_OF:
        if isinstance(value, kind):
            return plain(value)
    name = getattr(given, "__qualname__", None) if callable(given) else None
    return value if name is None else f"{given.__module__}.{name}"


_PLAIN_OF: Final[tuple[tuple[type[Any], Callable[[Any], Any]], ...]] = (
    (bytes, lambda value: value.decode("utf-8", "replace")),
    (date, lambda value: value.isoformat()),
    (enum.Enum, lambda value: value.name),
    (slice, lambda value: {f"slice_{part}": getattr(value, part) for part in ("start", "step", "stop")}),
)
