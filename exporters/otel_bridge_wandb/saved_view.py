"""Featured keys -> a saved view of the project, made once by W&B's own package ``wandb-workspaces``, which is optional.

The view is found by its name, which is made of the keys: runs of one project share it, and what a
person changed in it stays. Its panels show the keys of the featured section of rows.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
from functools import partial
from typing import Any

from otel_bridge.errors import ConfigError
from otel_bridge.exporter import WriterMemory, call_within
from otel_bridge.text.secret_patterns import redact_and_cut
from otel_bridge.translation.featured import section_prefix
from otel_bridge_wandb.settings import WandbSettings

_PACKAGE = "wandb_workspaces"
_ASKED = "online/view"
_log = logging.getLogger("otel_bridge.wandb")


def save_view(
    wandb: Any, entity: str, project: str, settings: WandbSettings, memory: WriterMemory
) -> None:
    """Save a view of the featured keys, unless the project has it.

    A failure is one line in the log.

    Nothing happens without featured keys or without the package, and only once for a run and its
    keys, also after a failure: a view that a person deleted stays deleted, and a page of plots is
    not worth a second wait of a bridge.
    """
    if not settings.featured or importlib.util.find_spec(_PACKAGE) is None:
        return
    keys = ",".join(settings.featured)
    if memory.get(_ASKED) == keys.encode():
        return
    memory.put(_ASKED, keys.encode())
    try:
        # The package has no timeout that one could set.
        call_within(
            settings.limits.init_timeout_s,
            partial(_save, wandb, entity, project, settings),
        )
    except Exception as exc:  # noqa: BLE001  # the package, wandb and pydantic raise dozens of types
        reason = redact_and_cut(" ".join(str(exc).split()), 300)
        _log.warning(
            "W&B: the featured keys have no saved view: %s",
            reason or type(exc).__name__,
        )


def _save(wandb: Any, entity: str, project: str, settings: WandbSettings) -> None:
    """Save the view, unless the project has it.

    Raises:
        ConfigError: The package would ask another server than this run's.
        Exception: Whatever the package raises.
    """
    server = str(wandb.Api().settings["base_url"]).rstrip(
        "/"
    )  # as the package itself asks
    if settings.base_url not in {"", server}:
        raise ConfigError(
            f"{_PACKAGE} asks {server}; set WANDB_BASE_URL to {settings.base_url} where the bridge starts"
        )
    workspaces = importlib.import_module(f"{_PACKAGE}.workspaces")
    name = hashlib.blake2b(
        ",".join(settings.featured).encode(), digest_size=6
    ).hexdigest()
    try:
        workspaces.Workspace.from_url(f"{server}/{entity}/{project}?nw={name}")
    except ValueError:
        # There is none (0.4.13). A project or server that refuses is an error of the save as well.
        panels = importlib.import_module(f"{_PACKAGE}.reports.v2")
        plots = [
            # By a pattern, since rows have a featured key once more under a name that begins with
            # its place. Without x the axis of a panel is the step of its role.
            panels.LinePlot(title=key, x=None, metric_regex=f"^{section_prefix(place)}")
            for place, key in enumerate(settings.featured)
        ]
        section = workspaces.Section(
            name="Featured", panels=plots, is_open=True, pinned=True
        )
        view = workspaces.Workspace(
            entity=entity,
            project=project,
            name="Featured by otel-bridge",
            sections=[section],
            auto_generate_panels=True,
        )
        # The only way to a name that the next run finds (0.4.13).
        view._internal_name = f"nw-{name}-v"
        view.save()
