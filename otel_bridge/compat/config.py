"""The config of a run by W&B's rules, without wandb: plain values, defaults of a file, no change by accident.

Source: wandb 0.31, ``sdk/wandb_config.py``, ``sdk/wandb_helper.py``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, cast

from otel_bridge.capture.wandb.values.plain_values import plain_value
from otel_bridge.capture.wandb.values.summary import AttributeDict
from otel_bridge.compat.errors import UsageError, WandbConfigError

_DEFAULTS: Final = "config-defaults.yaml"


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
        new = {str(key).strip("-"): _without_nan(plain_value(value)) for key, value in given.items()}
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


def _without_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
