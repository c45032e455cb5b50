"""Refuses arguments of ``init()`` that W&B refuses, before anything is recorded.

Source: wandb 0.31, validators of ``sdk/wandb_settings.py`` and the signature of ``sdk/wandb_init.py``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from otel_bridge.capture.wandb.arguments import TRUE, WandbArguments, run_moment
from otel_bridge.compat.errors import ArgumentError

_MODES: Final = ("online", "offline", "shared", "disabled", "dryrun", "run")
_RESUMES: Final = ("allow", "must", "never", "auto")
_REINITS: Final = ("default", "return_previous", "finish_previous", "create_new")
_BOOLS: Final = TRUE | {"0", "off", "f", "false", "n", "no"}
"""Texts that W&B reads as ``True`` or ``False``, in any case."""
_TEXTS: Final = ("entity", "project", "id", "name", "notes", "group", "job_type")
_BRANCHING: Final = ("fork_from", "resume", "resume_from")
_ACCEPTED: Final = frozenset({
    "allow_val_change", "anonymous", "config_exclude_keys", "config_include_keys", "force", "fork_from", "group",
    "job_type", "mode", "monitor_gym", "reinit", "resume", "resume_from", "save_code", "settings", "sync_tensorboard",
    "tensorboard",
})  # fmt: skip
"""Arguments beside those that the signature of our ``init()`` names."""
_MAX_PROJECT: Final = 128
_MAX_TAG: Final = 64
_NOT_IN_PROJECT: Final = "/\\#?%:"
_NOT_IN_ID: Final = ":;,#?/'"


def chosen_mode(asked: WandbArguments) -> Any:
    """Return the mode that the arguments or ``WANDB_MODE`` give; ``None`` when nothing gives one."""
    return os.environ.get("WANDB_MODE") or None if asked["mode"] is None else asked["mode"]


def check_arguments(asked: WandbArguments, others: Mapping[str, Any]) -> None:
    """Refuse what W&B refuses.

    Args:
        asked: The arguments, completed from settings and variables.
        others: The arguments that the signature does not name.

    Raises:
        ArgumentError: A value is wrong, or two arguments exclude each other.
        TypeError: An argument does not exist.
    """
    if unknown := [name for name in others if name not in _ACCEPTED]:
        raise TypeError(f"init() got an unexpected keyword argument {unknown[0]!r}")
    for name in _TEXTS:
        if not isinstance(asked[name], str | None):
            raise _wrong(name, asked[name], "expected a text")
    _check_choices(asked)
    _check_names(asked)
    _check_moments(asked)


def _check_choices(asked: WandbArguments) -> None:
    mode, resume, reinit = chosen_mode(asked), asked["resume"], asked["reinit"]
    if mode is not None and mode not in _MODES:
        raise _wrong("mode", mode, f"expected one of {_listed(_MODES)}")
    if resume is not None and not isinstance(resume, bool) and resume not in _RESUMES:
        raise _wrong("resume", resume, f"expected one of {_listed(_RESUMES)}, or True or False")
    if reinit is not None and reinit not in _REINITS and not _is_bool(reinit):
        raise _wrong("reinit", reinit, f"expected one of {_listed(_REINITS)}, or True or False")
    if asked["sync_tensorboard"] is not None and not _is_bool(asked["sync_tensorboard"]):
        raise _wrong("sync_tensorboard", asked["sync_tensorboard"], "expected True or False")


def _check_names(asked: WandbArguments) -> None:
    project, given, tags = asked["project"], asked["id"], asked["tags"]
    if project is not None and (len(project) > _MAX_PROJECT or _found(_NOT_IN_PROJECT, project)):
        raise _wrong(
            "project", project, f"expected at most {_MAX_PROJECT} characters and none of {' '.join(_NOT_IN_PROJECT)}"
        )
    if given is not None and (not given or given != given.strip() or _found(_NOT_IN_ID, given)):
        raise _wrong("id", given, f"expected a text without spaces around it and without any of {' '.join(_NOT_IN_ID)}")
    for tag in () if tags is None else cast("Iterable[Any]", tags):
        if not 1 <= len(str(tag)) <= _MAX_TAG:
            raise _wrong("tags", tags, f"expected tags of 1 to {_MAX_TAG} characters")


def _check_moments(asked: WandbArguments) -> None:
    given = [name for name in _BRANCHING if asked[name] is not None and asked[name] is not False]
    if len(given) > 1:
        raise ArgumentError(f"init({'=, '.join(given)}=): these are mutually exclusive; give only one of them")
    for name in ("fork_from", "resume_from"):
        moment = run_moment(asked[name])
        if asked[name] is not None and moment is None:
            raise _wrong(name, asked[name], "expected '<run id>?_step=<number>', such as 'k2v9x0ab?_step=100'")
        if moment is not None and asked["id"] is not None and (asked["id"] == moment[0]) is (name == "fork_from"):
            expected = "another id, or resume_from=" if name == "fork_from" else f"the id {moment[0]!r}, or none"
            raise _wrong(name, asked[name], f"expected {expected} with it, not id={asked['id']!r}")


def _is_bool(value: object) -> bool:
    return str(value).lower() in _BOOLS


def _found(characters: str, text: str) -> bool:
    return any(char in text for char in characters)


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(map(repr, texts))


def _wrong(name: str, value: object, expected: str) -> ArgumentError:
    return ArgumentError(f"init({name}={value!r}): {expected}; correct it here, in settings or in W&B's variables")
