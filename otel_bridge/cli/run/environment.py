"""Environments of ``otel-bridge run``: its own with the options in it, and that of the command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from otel_bridge import semconv, settings
from otel_bridge.capture.hook import KNOWN
from otel_bridge.cli.environment import OF_SIGNALS
from otel_bridge.cli.run.receiver import LauncherReceiver
from otel_bridge.emit.config.capture_env import capture_variables, refuse_twice
from otel_bridge.emit.config.child_env import NO_SYSTEM_METRICS, launcher_environment
from otel_bridge.emit.config.exporters import RequestedDestinations, every_destination
from otel_bridge.emit.config.identity import Identity, new_end, resource_attributes
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import NONE, OTLP, SIGNALS
from otel_bridge.otlp.proxies import direct_variables
from otel_bridge.values.mappings import without

MLFLOW_KEEPS_TRACES = ("MLFLOW_TRACE_ENABLE_OTLP_DUAL_EXPORT", "true")
"""Makes MLflow export its spans to its own store as well as to OTLP (mlflow 3.6 and later)."""
_TRACKER_NAMES = {"wandb": "W&B", "trackio": "Trackio"}
"""Captured trackers that get nothing in the mode ``replace``.

TensorBoard's event files are written in either mode.
"""


def child_environment(
    env: Mapping[str, str],
    identity: Identity,
    choice: RequestedDestinations,
    *,
    base: Path,
    cwd: Path,
    receiver: LauncherReceiver,
) -> dict[str, str]:
    """Return the children's environment: launcher, run name, and this receiver as OTLP endpoint.

    The name of the run stands there twice: as settings for otel-bridge, and as resource attributes
    for stock SDKs, so that both are of one run. Names that were generated are marked: a child that
    is given a name, or an adapter that knows a better one, replaces them. The settings in *env* were
    read before, so that none raises here.
    """
    # Stock SDKs send to this receiver; the user's endpoint is that of the bridge.
    child = {
        name: value
        for name, value in env.items()
        if not name.startswith("OTEL_EXPORTER_OTLP_")
    }
    # The launcher has decided these; a child that reads them again would decide otherwise.
    for setting in (*OF_SIGNALS, settings.EXPORTERS, settings.NEW_RUN):
        child.pop(setting.name, None)
    child |= {
        settings.DIR.name: str(base),
        settings.PROJECT.name: identity.project,
        settings.RUN_NAME.name: identity.name,
    }
    if identity.id_given:
        child[settings.RUN_ID.name] = identity.id
    if settings.NEW_RUN.read(env):
        # Children append it to a name of their own, so that processes of one name share a new run.
        child[settings.LAUNCHER_NEW.name] = identity.name[-len(new_end()) :]
    # The bridge measures the machine once; `opentelemetry-instrument` would do so in each child.
    child.setdefault(*NO_SYSTEM_METRICS)
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") for name in env):
        # MLflow sends its own traces to an OTLP endpoint instead of its store: keep both.
        child.setdefault(*MLFLOW_KEEPS_TRACES)
    child |= _exporter_variables(choice, env, cwd)
    attributes = {
        **resource_attributes(env),
        semconv.PROJECT: identity.project,
        semconv.RUN_NAME: identity.name,
        semconv.RUN_ID: identity.id,
    }
    if identity.project_generated:
        child[settings.GENERATED_PROJECT.name] = identity.project
        attributes[semconv.PROJECT_GENERATED] = "true"
    if identity.name_generated:
        child[settings.GENERATED_NAME.name] = identity.name
        attributes[semconv.RUN_NAME_GENERATED] = "true"
    child["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(
        f"{key}={quote(value)}" for key, value in attributes.items()
    )
    return child | direct_variables(env, receiver.host) | receiver.environment


def _exporter_variables(
    choice: RequestedDestinations, env: Mapping[str, str], cwd: Path
) -> dict[str, str]:
    """Return the variables by which the children get the launcher's exporters, and where these deliver.

    Without a choice the launcher names none, and each child's own choice counts; it is delivered
    where the launcher's variables lead.
    """
    if choice.names:
        # The children's endpoint of ``otlp`` is this launcher's receiver.
        destinations = without(choice.destinations, {OTLP})
        return launcher_environment(choice.by_signal, destinations)
    # ``none`` is passed on, or a child's own variables would choose exporters.
    if choice.refused:
        return launcher_environment(dict.fromkeys(SIGNALS, (NONE,)))
    # Each child's own choice counts.
    return {
        **launcher_environment(choice.by_signal, every_destination(env, cwd)),
        settings.LAUNCHER_EXPORTERS.name: "",
    }


def capture_of(
    option: str,
    env: Mapping[str, str],
    choice: RequestedDestinations,
    *,
    tee: bool = False,
) -> dict[str, str]:
    """Return the variables by which the command's Python programs are captured.

    Args:
        option: The names given to ``--capture``; empty for those of *env*.
        env: The environment, with the variables of the capture that this process inherited.
        choice: The exporters.
        tee: Whether the trackers themselves get everything too, whatever *env* says.

    Raises:
        ConfigError: A name is unknown, *tee* has nothing to keep, or a tracker would get everything
            twice.
    """
    names = settings.names(option) if option else settings.CAPTURE.read(env)
    unknown = {*names} - {*KNOWN}
    if unknown or (option and not names):
        source = (
            f"--capture {option}"
            if option
            else f"{settings.CAPTURE.name}={','.join(names)}"
        )
        raise ConfigError(f"{source}: expected some of {', '.join(KNOWN)}")
    if tee and not names:
        raise ConfigError(
            "--tee: nothing is captured; add --capture, e.g. --capture wandb"
        )
    mode = "tee" if tee else settings.CAPTURE_MODE.read(env)
    refuse_twice(names, mode, choice.names)
    if names:
        return capture_variables(env, names, mode)
    return {}


def replaced_trackers(
    variables: Mapping[str, str], choice: RequestedDestinations
) -> str:
    """Return a line on captured trackers that get nothing of the run; empty when there are none.

    A user of ``--capture`` may expect both, and would look for the run in the tracker in vain.

    Args:
        variables: The variables of the capture; empty when nothing is captured.
        choice: The exporters. A tracker that is one of them gets the run through its exporter.
    """
    if variables.get(settings.CAPTURE_MODE.name) != "replace":
        return ""
    captured_names = settings.CAPTURE.read(variables)
    titles: list[str] = []
    for name, title in _TRACKER_NAMES.items():
        if name in captured_names and name not in choice.names:
            titles.append(title)
    if not titles:
        return ""
    return f"captured calls do not reach {' and '.join(titles)}; add --tee to send them there as well"
