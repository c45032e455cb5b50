"""Determines what the installed wandb can do, from its signatures and fields.

Only shared mode depends on its version.

``RunExitRecord.not_complete`` and ``Settings.stop_fn`` came with 0.26.1,
``Settings.finish_timeout`` with 0.27.0. Before 0.30.0 ``Table.add_data`` asked the session's server
for its version, without a timeout.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from otel_bridge.capabilities import Capabilities, accepts, release_of
from otel_bridge.errors import BlockedError

INSTALL = "pip install 'wandb>=0.23.1,<1'"
TESTED_WITH = "0.23.1, 0.26.1, 0.27.2, 0.28.1, 0.31.0"
# Versions of which shared mode was tried.
SHARING_FROM = (0, 28, 2)
SHARING_BELOW = (0, 31)
INSTALL_SHARING = "pip install 'wandb>=0.28.2,<0.31'"
_CALLS = (
    ("", "setup", ("settings",)),
    ("", "init", ("settings",)),
    ("Run", "log", ("data",)),
    ("Run", "finish", ("exit_code",)),
    ("Run", "define_metric", ("name", "step_metric", "step_sync", "hidden")),
    ("Table", "__init__", ("columns", "log_mode", "allow_mixed_types")),
    ("Table", "add_data", ()),
    ("Histogram", "__init__", ("np_histogram",)),
    ("Api", "__init__", ("overrides", "timeout", "api_key")),
    ("Api", "runs", ("path", "filters", "per_page")),
    ("Api", "run", ("path",)),
    ("Api", "artifacts", ("type_name", "name", "per_page")),
)
"""Required calls: class (empty: the module), call, arguments."""
_REQUIRED = (
    "mode", "base_url", "root_dir", "entity", "project", "run_id", "run_name", "run_group", "run_tags", "run_notes",
    "run_job_type", "resume", "reinit", "init_timeout", "console", "x_label", "x_primary", "x_update_finish_state",
)  # fmt: skip
"""Settings that decide where a run goes, or what is written there."""
_REPLACED = frozenset({"finish_timeout", "finish_timeout_raises", "stop_fn"})
"""Settings that this exporter can replace."""


@dataclass(frozen=True, slots=True)
class WandbAbilities:
    """Holds the abilities of one wandb that not every supported version has.

    Attributes:
        finish_timeout: Whether ``Run.finish`` has a timeout; otherwise this exporter sets a
            deadline.
        degraded: One sentence for each ability that is missing.
    """

    finish_timeout: bool
    degraded: tuple[str, ...] = ()


def abilities_of(wandb: Any, used: tuple[str, ...] = ()) -> WandbAbilities:
    """Return what the imported *wandb* can do.

    Args:
        wandb: The module.
        used: Settings that are given to it besides the required ones.

    Raises:
        BlockedError: A call or setting that nothing works without is missing.
    """
    tracker = f"wandb {wandb.__version__}"
    capabilities = Capabilities(tracker, INSTALL)
    fields = _fields(wandb, tracker)
    for owner, call, arguments in _CALLS:
        if owner:  # checked on the class, whose calls take the object too
            capabilities.require(getattr(wandb, owner, None), call, "self", *arguments)
        else:
            capabilities.require(wandb, call, *arguments)
    for name in _REQUIRED:
        if name not in fields:
            raise BlockedError(f"{tracker} has no setting {name}", help=INSTALL)
    capabilities.prefer(
        can_leave_open(),
        f"{tracker} shows a run as finished while its bridge pauses or restarts, as running from 0.26.1",
    )
    lacking = [name for name in used if name not in fields and name not in _REPLACED]
    capabilities.prefer(
        not lacking,
        f"{tracker} lacks the settings {', '.join(lacking)}: the run may show data of the bridge's process",
    )
    return WandbAbilities(
        finish_timeout="finish_timeout" in fields, degraded=capabilities.degraded
    )


def replace_what_interferes(wandb: Any) -> None:
    """Keep the Stop button of W&B's page, and a server that is down, from stopping this process.

    Without ``Settings.stop_fn`` wandb sends SIGINT to its own process, here the bridge. The
    question for the server's version is answered "new enough", which wandb's own comment assumes of
    every server, and 0.30 no longer asks.
    """
    # Below 0.26.1.
    if "stop_fn" not in _fields(wandb, "wandb"):
        interrupt: Any = _module("wandb.sdk.lib.interrupt")
        if interrupt is not None:
            interrupt.interrupt_main = ignore_stop
    values: Any = _module("wandb.sdk.data_types.base_types.wb_value")
    # Below 0.30: a server that is down would block write_rollouts without limit.
    if hasattr(values, "_server_accepts_client_ids"):
        values._server_accepts_client_ids = _yes


def require_safe_sharing(version: str) -> None:
    """Raise `BlockedError` unless shared mode of this version of wandb is known to be safe.

    The version decides, because no call or field shows who numbers the rows of a shared run.
    """
    if SHARING_FROM <= release_of(version) < SHARING_BELOW:
        return
    reason = "it was never tried"
    if release_of(version) >= SHARING_BELOW:
        reason = (
            "its writers number their rows themselves, "
            "so that those of two machines may replace one another"
        )
    raise BlockedError(
        f"W&B: shared mode of wandb {version} is refused: {reason}",
        help=INSTALL_SHARING,
    )


def _fields(wandb: Any, tracker: str) -> Mapping[str, object]:
    """Return the fields of wandb's settings.

    Raises:
        BlockedError: wandb has none, so that no setting can be checked.
    """
    fields: object = getattr(getattr(wandb, "Settings", None), "model_fields", None)
    if not isinstance(fields, Mapping):
        raise BlockedError(
            f"{tracker} has no wandb.Settings.model_fields", help=INSTALL
        )
    return cast("Mapping[str, object]", fields)


def can_leave_open() -> bool:
    """Return whether a run may be closed without being marked complete: from wandb 0.26.1 on.

    ``False`` too where a wandb has other private parts than `leave_open` uses.
    """
    records: Any = _module("wandb.proto.wandb_internal_pb2")
    descriptor: Any = getattr(
        getattr(records, "RunExitRecord", None), "DESCRIPTOR", None
    )
    interface: Any = _module("wandb.sdk.interface.interface_sock")
    has_field = "not_complete" in getattr(descriptor, "fields_by_name", {})
    return has_field and accepts(
        getattr(interface, "InterfaceSock", None), "_make_exit"
    )


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def ignore_stop() -> None:
    """Do nothing: the Stop button is meant for the trainer, not for the bridge."""


def _yes() -> bool:
    return True
