"""Where Trackio keeps its store: its own variables, read without importing it.

Source: ``_get_trackio_dir`` in trackio/utils.py; ``HF_HOME`` in huggingface_hub/constants.py.
"""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import RunInfo
from otel_bridge.semconv import TRACKIO_PROJECT

_REMOTE = ("TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID")


@dataclass(frozen=True, slots=True)
class TrackioSettings:
    """The local store.

    Attributes:
        directory: ``TRACKIO_DIR``, absolute.
        is_default: No variable named it, so that Trackio's own commands find it without one.
    """

    directory: Path
    is_default: bool

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cwd: Path) -> TrackioSettings:
        """Read the settings; a relative folder is taken from *cwd*.

        Raises:
            ConfigError: A remote Trackio is asked for.
        """
        for name in _REMOTE:
            if env.get(name):
                raise ConfigError(
                    f"{name} is set, but the trackio exporter writes to a local store; unset it and "
                    "use `trackio sync` to copy the project to the remote afterwards"
                )
        chosen = env.get("TRACKIO_DIR")
        if chosen:
            return cls(directory=_absolute(chosen, cwd), is_default=False)
        return cls(directory=_hugging_face_home(env, cwd) / "trackio", is_default=True)

    @property
    def destination(self) -> Mapping[str, str]:
        """The one variable that says where."""
        return {"TRACKIO_DIR": str(self.directory)}

    def view(self, run: RunInfo) -> str:
        """Return the command that opens the dashboard on the run's project."""
        command = f"trackio show --project {shlex.quote(project_of(run))}"
        return command if self.is_default else f"TRACKIO_DIR={shlex.quote(str(self.directory))} {command}"


def project_of(run: RunInfo) -> str:
    """Return the Trackio project: the emitter's ``TRACKIO_PROJECT``, else the run's."""
    return run.identity.get(TRACKIO_PROJECT) or run.project


def _absolute(folder: str, cwd: Path) -> Path:
    return Path(os.path.normpath(cwd / Path(folder).expanduser()))


def _hugging_face_home(env: Mapping[str, str], cwd: Path) -> Path:
    if env.get("HF_HOME"):
        return _absolute(env["HF_HOME"], cwd)
    home = Path(env.get("HOME") or Path.home())
    return _absolute(env.get("XDG_CACHE_HOME") or str(home / ".cache"), cwd) / "huggingface"
