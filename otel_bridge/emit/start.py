"""Begin a run: decide which, choose exporters, open the segment, see to a bridge, say one line.

The one place of emission that raises: a bad setting or argument is an error here, and nowhere later.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from otel_bridge.emit import lines
from otel_bridge.emit.content import redact_by_setting
from otel_bridge.emit.exporters import Choice, choose
from otel_bridge.emit.forwarding_note import forwarding_note
from otel_bridge.emit.handover import Handover
from otel_bridge.emit.identity import Asked, Identity, identify
from otel_bridge.emit.keeper import BridgeKeeper
from otel_bridge.emit.launcher import launcher_alive
from otel_bridge.emit.resource import encode_resource
from otel_bridge.emit.run import Run, RunFacts
from otel_bridge.emit.run_settings import RunSettings
from otel_bridge.emit.sink import MakeHeader, Sink
from otel_bridge.emit.source import source_of
from otel_bridge.emit.takeover import has_what_is_missing, take_over
from otel_bridge.errors import ConfigError, JournalError
from otel_bridge.exporter import OTLP, SIGNALS, RunInfo, caution_of
from otel_bridge.journal.base import BaseDir, find_base
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.host import start_ticks, this_host
from otel_bridge.journal.places import places, runnable
from otel_bridge.journal.quota import Quota
from otel_bridge.journal.report import Report, read_report
from otel_bridge.records import axis_of
from otel_bridge.settings import (
    DIR,
    EXPORTERS,
    HOLD,
    LAUNCHER,
    MAX_BYTES,
    NEW_RUN,
    NO_BRIDGE,
    PROJECT,
    RANKS,
    RUN_ID,
    RUN_NAME,
    SEGMENT_BYTES,
    SYSTEM_METRICS_S,
)


@dataclass(frozen=True, slots=True)
class _Place:
    base: BaseDir
    folder: RunFolder
    before: Report | None
    launched: bool
    hold: bool


def begin(asked: Asked, exporters: object, env: Mapping[str, str], cwd: Path, handover: Handover) -> Run:
    """Begin the run of this process.

    Args:
        asked: The arguments that say which run it is.
        exporters: ``init(exporters=)``.
        env: The environment, ``init(dir=)`` in it.
        cwd: The working folder.
        handover: Where children are told.

    Raises:
        ConfigError: A setting or an argument cannot be used, or the folder cannot be written.
        MissingExtraError: An exporter's package is not installed.
    """
    settings = RunSettings(env)
    launched = launcher_alive(env)
    identity = identify(asked, env, cwd, launched=launched)
    if settings.read(NO_BRIDGE):
        return Run(RunFacts(identity, _nothing(), settings, env, cwd, {}), None)
    redact_by_setting(env)
    choice = choose(exporters, env, cwd, launched=launched)
    hold = settings.read(HOLD)
    base = find_base(env, cwd)
    told = _told_to_children(identity, choice, env, base, launched=launched)
    facts = RunFacts(identity, choice, settings, env, cwd, told)
    if not (choice.names or ((launched or hold) and not choice.refused)):
        lines.say(lines.NONE_CHOSEN if choice.refused else lines.NOTHING_CHOSEN)
        return Run(facts, None)
    folder = RunFolder(base.path, identity.id)
    place = _Place(base, folder, read_report(folder), launched, hold)
    sink = _open(facts, place)
    handover.hand_over({**told, NEW_RUN.name: None})
    to = ", ".join(_shown(name, choice) for name in choice.names or _before(place)) or "no exporter yet"
    lines.say(lines.begun(identity, to, _notes(facts, place)))
    return Run(facts, sink)


def nothing_recorded(env: Mapping[str, str], cwd: Path) -> Run:
    """Return a run that records nothing, for calls before ``init()``."""
    identity = Identity("default", "none", "0" * 16, False, None, 0, 1, 0, Asked())
    return Run(RunFacts(identity, _nothing(), RunSettings({}), env, cwd, {}), None)


def _nothing() -> Choice:
    return Choice(dict.fromkeys(SIGNALS, ()), {})


def _open(facts: RunFacts, place: _Place) -> Sink:
    settings = facts.settings
    keeper = BridgeKeeper(place.folder, facts.env, hold=place.hold)
    try:
        sink = Sink(
            place.folder,
            _header_maker(facts, place),
            keeper,
            Quota(place.base.path, settings.read(MAX_BYTES)),
            segment_bytes=settings.read(SEGMENT_BYTES),
            role=facts.identity.role,
        )
    except JournalError as exc:
        raise ConfigError(str(exc)) from exc
    # The segment first, the lock second: a bridge that ends looks once more behind its unlock.
    if not place.launched and not place.hold and place.before and has_what_is_missing(place.before, facts.env):
        take_over(place.folder)
    keeper.ensure()
    return sink


def _header_maker(facts: RunFacts, place: _Place) -> MakeHeader:
    identity, choice, host = facts.identity, facts.choice, this_host()
    source = source_of(facts.env, facts.cwd)

    def make(instance_id: str, forked: bool) -> SegmentHeader:
        return SegmentHeader(
            instance_id=instance_id,
            run_id=identity.id,
            project=identity.project,
            run_name=identity.name,
            kind="process",
            resource=encode_resource(identity, facts.env, instance_id, source=source, forked=forked),
            exporters=choice.by_signal,
            destinations=choice.destinations,
            message_content=choice.message_content,
            host=host.name,
            boot_id=host.boot_id,
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            created_unix_ns=time.time_ns(),
            role=identity.role,
            hold=place.hold,
            system_metrics_s=facts.settings.read(SYSTEM_METRICS_S) if identity.asked.system_metrics else 0.0,
            launcher=LAUNCHER.read(facts.env) if place.launched else "",
        )

    return make


def _told_to_children(
    identity: Identity, choice: Choice, env: Mapping[str, str], base: BaseDir, *, launched: bool
) -> dict[str, str]:
    told = {PROJECT.name: identity.project, RUN_NAME.name: identity.name, DIR.name: os.fspath(base.path)}
    if identity.id_given:
        told[RUN_ID.name] = identity.id
    if not launched:
        told[EXPORTERS.name] = ",".join(choice.names) or env.get(EXPORTERS.name, "")
    return {name: value for name, value in told.items() if value}


def _notes(facts: RunFacts, place: _Place) -> list[str]:
    identity, before = facts.identity, _concerning(facts.choice, place.before)
    notes: list[str] = []
    if before is not None:
        last = before.steps.get(axis_of(identity.role))
        who = f" {identity.role}" if identity.role else ""
        if last is not None:
            notes.append(f"resuming, last{who} step {last}")
        else:
            under_way = any(process.alive and not process.bridge for process in before.processes.values())
            notes.append("joining" if under_way and before.status == "running" else "resuming")
        notes += _elsewhere(before, facts.choice)
        notes += lines.found(before)
    notes += [f"view: {where}" for where in _views(facts, place, before).values()]
    notes += [said for said in map(caution_of, facts.choice.settings.values()) if said]
    if OTLP in facts.choice.names and (said := forwarding_note(facts.env)):
        notes.append(said)
    if place.base.instead_of is not None:
        notes.append(f"{place.base.instead_of} is on {place.base.file_system}, so run folders are in {place.base.path}")
    if place.hold:
        chosen = "" if facts.choice.names or _before(place) else " --exporters NAME"
        notes.append(f"held in {place.base.path}; deliver with: otel-bridge drain {place.base.path}{chosen}")
    elif not facts.choice.names and not _before(place):
        notes.append("`otel-bridge run` was given none (--exporters), so all is kept for `otel-bridge drain`")
    if identity.rank and facts.settings.read(RANKS) != "all":
        notes.append("rows of rank 0 only (OTEL_BRIDGE_RANKS=all for every rank), rollouts of all")
    return notes


def _before(place: _Place) -> tuple[str, ...]:
    """Return the exporters that an earlier start named: where nobody names one now, they hold."""
    return () if place.before is None else tuple(place.before.exporters)


def _shown(name: str, choice: Choice) -> str:
    """Return the name of an exporter; where it forwards to, which no command or page shows, beside it."""
    places = ", ".join(dict.fromkeys(choice.destinations.get(name, {}).values()))
    return f"{name} ({places})" if name == OTLP and places else name


def _concerning(choice: Choice, before: Report | None) -> Report | None:
    """Return the report without exporters that an earlier start named and this process does not."""
    if before is None or not choice.names:
        return before
    return replace(before, exporters={name: one for name, one in before.exporters.items() if name in choice.names})


def _views(facts: RunFacts, place: _Place, before: Report | None) -> dict[str, str]:
    """Return where each exporter's run is looked at: as its bridge said, else as its settings say."""
    identity = facts.identity
    info = RunInfo(identity.id, identity.project, identity.name, place.folder.path)
    views: dict[str, str] = {}
    # What is held shows nowhere yet, but for what was delivered before.
    for name, settings in () if place.hold else facts.choice.settings.items():
        with contextlib.suppress(Exception):  # an exporter's own code: no reason not to train
            views[name] = runnable(settings.view(info))
    return {**views, **(places(before) if before else {})}


def _elsewhere(before: Report, choice: Choice) -> list[str]:
    """Say where the run is delivered to another place than this process's own variables name."""
    return [
        f"{name} goes where the bridge was started for: {_listed(there)}, not {_listed(here)}"
        for name, here in choice.destinations.items()
        if name in before.exporters
        and before.exporters[name].state != "ended"
        and (there := before.exporters[name].destination)
        and dict(there) != dict(here)
    ]


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items()) or "the default"


def with_dir(env: Mapping[str, str], folder: object) -> dict[str, str]:
    """Return *env* with ``init(dir=)`` in it.

    Raises:
        ConfigError: It is no path.
    """
    if folder is None:
        return dict(env)
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(f"dir={folder!r}: expected a path")
    return {**env, DIR.name: os.fsdecode(os.fspath(folder))}
