"""Arguments and environment -> the exporters of each signal, and their destinations.

The exporters are checked when a run begins: an unknown name or a missing package is an error then,
never later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from otel_bridge.emit.config.child_env import (
    launcher_destinations,
    launcher_exporters,
)
from otel_bridge.emit.config.run_request import texts_of
from otel_bridge.errors import ConfigError
from otel_bridge.exporter import (
    NONE,
    OTLP,
    SIGNALS,
    Exporter,
    ExporterSettings,
    available,
    described,
    destination_of,
    load,
    missing_of,
)
from otel_bridge.otlp import destination
from otel_bridge.settings import (
    EXPORTERS,
    LOGS_EXPORTER,
    METRICS_EXPORTER,
    TRACES_EXPORTER,
    content_of,
    names,
)
from otel_bridge.values.mappings import without

SETTING_BY_SIGNAL = {
    "metrics": METRICS_EXPORTER,
    "traces": TRACES_EXPORTER,
    "logs": LOGS_EXPORTER,
}
"""Signal to OpenTelemetry's variable that names its exporters."""
# Values that only stock SDKs know: intended for the SDK, not misspelt.
_STOCK_ONLY = frozenset(
    {"prometheus", "zipkin", "zipkin_json", "zipkin_proto_http", "jaeger", "logging"}
)
_STOCK_OTLP = {"otlp_proto_http": OTLP, "otlp_proto_grpc": OTLP}
_LOCAL_FIRST = ("trackio", "mlflow", "wandb")


@dataclass(frozen=True, slots=True)
class RequestedDestinations:
    """Holds the exporters of one process.

    Attributes:
        by_signal: ``metrics``, ``traces``, ``logs`` to names.
        destinations: Exporter to the variables that name its destination, made absolute, without
            credentials.
        refused: Whether ``none`` was requested by name.
        settings: Exporter to its settings.
        message_content: Exporter to its limit of message text, where there is one.
    """

    by_signal: Mapping[str, tuple[str, ...]]
    destinations: Mapping[str, Mapping[str, str]]
    refused: bool = False
    settings: Mapping[str, ExporterSettings] = field(
        default_factory=dict[str, ExporterSettings], compare=False
    )
    message_content: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def names(self) -> tuple[str, ...]:
        """Return every exporter named for any signal, in the order named."""
        return tuple(dict.fromkeys(chain.from_iterable(self.by_signal.values())))

    def signals_of(self, exporter: str) -> list[str]:
        """Return the signals that *exporter* was named for."""
        return [
            signal
            for signal, exporters in self.by_signal.items()
            if exporter in exporters
        ]


def choose(
    argument: object,
    env: Mapping[str, str],
    cwd: Path,
    *,
    launched: bool = False,
    elsewhere: bool = False,
) -> RequestedDestinations:
    """Choose and check the exporters.

    A launcher's choice applies to all its children, and so do its destinations. ``otlp`` is not
    loaded: it has no writer, and its variables are OpenTelemetry's. A launcher has checked those
    itself, and its children's lead to its receiver.

    Args:
        argument: ``init(exporters=)``: ``None``, a text (``"trackio,otlp"``) or several.
        env: The environment.
        cwd: The working folder: relative destinations are below it.
        launched: Whether a launcher lives, whose choice applies.
        elsewhere: Whether the bridge may run in another environment, so that packages are not
            required here.

    Raises:
        ConfigError: A name is unknown, or a setting of an exporter cannot be used.
        MissingExtraError: An exporter's package is not installed.
    """
    requested = _requested(argument)
    if launched:
        by_signal = _by_launcher(requested, env)
    else:
        by_signal = _by_environment(requested, env)
    choice = RequestedDestinations(
        by_signal={
            signal: _without_none(exporters) for signal, exporters in by_signal.items()
        },
        destinations={},
        refused=NONE in chain.from_iterable(by_signal.values()),
    )
    find = described if elsewhere else load
    settings: dict[str, ExporterSettings] = {}
    destinations: dict[str, Mapping[str, str]] = {}
    for name in choice.names:
        if name != OTLP:
            settings[name] = _settings_of(find(name), name, env, cwd, launched=launched)
            destinations[name] = destination_of(settings[name])
    # The launcher checked and announces its own, and the children's lead to its receiver.
    if OTLP in choice.names and not launched:
        destination.check(choice.signals_of(OTLP), env, elsewhere=elsewhere)
        destinations[OTLP] = destination.variables(env)
    return replace(
        choice,
        destinations=destinations,
        settings=settings,
        message_content=_content_limits(choice.names, env),
    )


def _settings_of(
    exporter: Exporter, name: str, env: Mapping[str, str], cwd: Path, *, launched: bool
) -> ExporterSettings:
    """Return the settings of an exporter; under a launcher those that name its destination.

    The launcher delivers by the variables and in the working folder of its own start, whatever the
    program has changed since.

    Raises:
        ConfigError: A setting cannot be used.
    """
    settings = exporter.read_settings(env, cwd)
    if not launched:
        return settings
    own_variables = destination_of(settings)
    variables = launcher_destinations(env).get(name, own_variables)
    if variables == own_variables:
        return settings
    # Without its own: another variable of the program might go before the launcher's.
    return exporter.read_settings({**without(env, own_variables), **variables}, cwd)


def every_destination(
    env: Mapping[str, str], cwd: Path
) -> dict[str, Mapping[str, str]]:
    """Return where each exporter would deliver, for a launcher whose children choose their exporters.

    Without ``otlp``, and without those whose settings cannot be read: a child that chooses one of
    them gets the error.
    """
    destinations: dict[str, Mapping[str, str]] = {}
    for name in available():
        if name != OTLP:
            with contextlib.suppress(ConfigError):
                settings = described(name).read_settings(env, cwd)
                destinations[name] = destination_of(settings)
    return destinations


def variables_of_choice(argument: object, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a child chooses the same exporters for each signal; empty ones are not set.

    Args:
        argument: ``init(exporters=)``, which `choose` has checked.
        env: The environment.
    """
    variables = {
        setting.name: env.get(setting.name, "")
        for setting in SETTING_BY_SIGNAL.values()
    }
    # An exporter of one signal here would be one of all signals: the others have their own.
    variables[EXPORTERS.name] = ",".join(_requested(argument) or EXPORTERS.read(env))
    return variables


def missing_here(choice: RequestedDestinations) -> dict[str, str]:
    """Return the exporters of *choice* whose tracker this environment lacks, each with a message.

    It is an error only if no other environment runs the bridge. Empty if nothing is lacking; their
    modules were imported before, when they were chosen.
    """
    messages: dict[str, str] = {}
    for name in choice.names:
        message = "" if name == OTLP else missing_of(name, described(name))
        if message:
            messages[name] = message
    return messages


def installed() -> tuple[str, ...]:
    """Return the exporters that this environment could deliver to at once, for a message.

    The local ones first; ``file`` always.

    Raises:
        ConfigError: The module of an exporter cannot be imported.
    """
    exporter_names: list[str] = []
    for name in _LOCAL_FIRST:
        if name in available() and not missing_of(name, described(name)):
            exporter_names.append(name)
    # It needs no package and no server.
    return (*exporter_names, "file")


def _without_none(exporters: Sequence[str]) -> tuple[str, ...]:
    """Return the exporters of a signal without ``none``.

    Raises:
        ConfigError: Others are named beside it.
    """
    if NONE not in exporters:
        return tuple(exporters)
    if len(set(exporters)) > 1:
        raise ConfigError(
            f"exporters {','.join(exporters)}: expected {NONE} alone, or trackers without it"
        )
    return ()


def _content_limits(exporters: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the limit of message text of each exporter that has one.

    Raises:
        ConfigError: The setting of one cannot be parsed.
    """
    limits: dict[str, str] = {}
    for name in exporters:
        mode = content_of(name).read(env)
        if mode != "full":
            limits[name] = mode
    return limits


def _by_launcher(
    requested: tuple[str, ...], env: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the launcher's choice, or the exporters that this process requests when the launcher chose none."""
    by_signal = launcher_exporters(env)
    if any(by_signal.values()):
        return by_signal
    return dict.fromkeys(SIGNALS, requested)


def _by_environment(
    requested: tuple[str, ...], env: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the exporters of each signal by the environment.

    Its OpenTelemetry variable comes first, then what the program requests, then our own variable.
    Without any name an endpoint that is set counts as ``otlp`` for its signals. Without either all
    are empty: the records are then kept without an exporter.
    """
    fallback = requested or EXPORTERS.read(env)
    by_signal = {
        signal: _ours(setting.read(env)) or fallback
        for signal, setting in SETTING_BY_SIGNAL.items()
    }
    if any(by_signal.values()):
        return by_signal
    # Only an endpoint is set: something collects there.
    otlp_only: dict[str, tuple[str, ...]] = dict.fromkeys(SIGNALS, ())
    for signal in destination.signals_with_endpoint(env):
        otlp_only[signal] = (OTLP,)
    return otlp_only


def _ours(chosen: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are exporters of otel-bridge.

    Those that only stock SDKs know are not errors.
    """
    ours: dict[str, None] = {}
    for name in chosen:
        if name not in _STOCK_ONLY:
            ours[_STOCK_OTLP.get(name, name)] = None
    return tuple(ours)


def requested_names(argument: object) -> tuple[str, ...] | None:
    """Return the exporters that ``init(exporters=)`` names, without ``none``.

    ``None``: *argument* names nothing.

    Raises:
        ConfigError: *argument* is not a name, or names others beside ``none``.
    """
    requested = _requested(argument)
    if requested:
        return _without_none(requested)
    return None


def _requested(argument: object) -> tuple[str, ...]:
    """Return the names in ``init(exporters=)``; empty for ``None``, ``none`` for an empty list.

    Raises:
        ConfigError: *argument* is neither a text nor texts.
    """
    if argument is None:
        return ()
    if isinstance(argument, str):
        return names(argument)
    texts = texts_of(argument)
    if texts is not None:
        return tuple(dict.fromkeys(texts)) or (NONE,)
    raise ConfigError(
        f"exporters={argument!r}: expected names, e.g. 'trackio,otlp' or ['trackio', 'otlp']"
    )
