"""Sweeps of the stand-in W&B server: what ``wandb.sweep()``, its agents and ``wandb.Api().sweep()`` ask.

The rules are those that the SDK lets one see (apis/public/sweeps.py, agents/pyagent.py, wandb_agent.py,
wandb_controller.py): the server makes the run of a trial before its agent begins it, in the state ``pending``; an agent
that runs no trial is given the next one; ``stop`` names a run, ``exit`` ends the agent. A sweep that is gone is 404.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import yaml

from support.trackers.wandb_backend.state import WandbRun, WandbStore

Params: TypeAlias = dict[str, Any]
_ENDED: Final = frozenset({"finished", "failed", "crashed", "killed"})
_CREATED: Final = "2026-01-01T00:00:00Z"


class NoSweepError(Exception):
    """The sweep or agent that a request names does not exist; answered 404."""


@dataclass(slots=True)
class WandbSweep:
    """One sweep.

    Attributes:
        trials: Run id to the parameters that an agent was given.
        stopping: Run ids of trials that their agent is to stop.
        seen: Bayes: before each trial but the first, the metric of the trials before it, ``None`` where W&B had none.
    """

    name: str
    entity: str
    project: str
    config: dict[str, Any]
    display_name: str = ""
    state: str = "RUNNING"
    controller: str = "{}"
    trials: dict[str, Params] = field(default_factory=dict[str, Params])
    stopping: list[str] = field(default_factory=list[str])
    seen: list[list[float | None]] = field(default_factory=list[list["float | None"]])

    @property
    def id(self) -> str:
        """The global id."""
        return f"sweep-of-{self.name}"


class Sweeps:
    """All sweeps and agents; every method is called under the store's lock.

    Args:
        store: Holds the runs.
        default_entity: Entity where a request names none.
    """

    def __init__(self, store: WandbStore, default_entity: str) -> None:
        self._store, self._entity = store, default_entity
        self.sweeps: dict[str, WandbSweep] = {}
        self.initial_state = "pending"
        """State of a run that the server made for a trial which has not begun."""
        self._agents: dict[str, str] = {}

    # --- what the SDK asks --------------------------------------------------------------------------------------------
    def upsert(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make or change a sweep (``UpsertSweep``)."""
        held = next(
            (sweep for sweep in self.sweeps.values() if sweep.id == given.get("id")),
            None,
        )
        if held is None:
            entity, project = (
                given.get("entityName") or self._entity,
                given.get("projectName") or "uncategorized",
            )
            held = WandbSweep(f"sweep{len(self.sweeps)}", str(entity), str(project), {})
            self.sweeps[held.name] = held
        if given.get("config"):
            held.config = cast("dict[str, Any]", yaml.safe_load(str(given["config"])))
        held.state = str(given.get("state") or held.state)
        held.controller = str(given.get("controller") or held.controller)
        held.display_name = str(given.get("displayName") or held.display_name)
        project_of = {
            "id": "project",
            "name": held.project,
            "entity": {"id": "entity", "name": held.entity},
        }
        return {
            "upsertSweep": {
                "sweep": {"name": held.name, "project": project_of},
                "configValidationWarnings": [],
            }
        }

    def create_agent(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Register an agent (``CreateAgent``)."""
        self._named(str(given["sweep"]))
        agent = f"agent{len(self._agents)}"
        self._agents[agent] = str(given["sweep"])
        return {"createAgent": {"agent": {"id": agent}}}

    def heartbeat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an agent with at most one command (``Heartbeat``)."""
        agent = str(given["id"])
        sweep = self._named(self._agents.get(agent, ""))
        running = [
            run for run, runs in json.loads(given["runState"] or "{}").items() if runs
        ]
        commands = self._commands(sweep, running)
        return {
            "agentHeartbeat": {"agent": {"id": agent}, "commands": json.dumps(commands)}
        }

    def get(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sweep, with its runs (``GetSweep``, ``GetSweepState``, ``SweepWithRuns``)."""
        sweep = self.sweeps.get(str(given.get("sweep") or given.get("name")))
        return {"project": {"sweep": None if sweep is None else self._shown(sweep)}}

    # --- the controller -----------------------------------------------------------------------------------------------
    def _commands(
        self, sweep: WandbSweep, running: Sequence[str]
    ) -> list[dict[str, Any]]:
        for run in [run for run in sweep.stopping if run in running]:
            sweep.stopping.remove(run)
            return [{"type": "stop", "run_id": run}]
        if running:
            return []
        if sweep.state in {"FINISHED", "CANCELED"}:
            return [{"type": "exit"}]
        params = self._next(sweep) if sweep.state == "RUNNING" else None
        if params is None:
            return [{"type": "exit"}] if sweep.state == "RUNNING" else []
        run_id = f"{sweep.name}t{len(sweep.trials)}"
        sweep.trials[run_id] = params
        args = {key: {"value": value} for key, value in params.items()}
        key = (sweep.entity, sweep.project, run_id)
        made = WandbRun(
            *key,
            storage_id=f"storage-{'-'.join(key)}",
            state=self.initial_state,
            sweep=sweep.name,
        )
        made.display_name, made.raw_config = f"fair-sweep-{len(sweep.trials)}", args
        self._store.runs[key] = made
        return [
            {
                "type": "run",
                "run_id": run_id,
                "program": sweep.config.get("program", ""),
                "args": args,
            }
        ]

    def _next(self, sweep: WandbSweep) -> Params | None:
        parameters = cast("dict[str, dict[str, Any]]", sweep.config["parameters"])
        number, method = len(sweep.trials), sweep.config["method"]
        if number >= int(sweep.config.get("run_cap") or 1_000):
            return None
        if method == "grid":
            values = [
                one["values"] if "values" in one else [one["value"]]
                for one in parameters.values()
            ]
            found = list(itertools.product(*values))
            return (
                dict(zip(parameters, found[number], strict=True))
                if number < len(found)
                else None
            )
        if method == "bayes" and number:
            return self._after_best(sweep)
        return {
            key: _drawn(one, random.Random(number)) for key, one in parameters.items()
        }

    def _after_best(self, sweep: WandbSweep) -> Params:
        """Return half the numbers of the best trial, by the metric that its run has at W&B."""
        name = str(sweep.config["metric"]["name"])
        found = [self._metric(sweep, run_id, name) for run_id in sweep.trials]
        sweep.seen.append(found)
        known = [
            (metric, number)
            for number, metric in enumerate(found)
            if metric is not None
        ]
        best = min(known)[1] if known else 0
        return {
            key: value / 2 for key, value in list(sweep.trials.values())[best].items()
        }

    def _metric(self, sweep: WandbSweep, run_id: str, name: str) -> float | None:
        run = self._store.find(sweep.entity, sweep.project, run_id)
        return None if run is None else (run.derived | run.summary).get(name)

    def _named(self, name: str) -> WandbSweep:
        if name not in self.sweeps:
            raise NoSweepError(name)
        return self.sweeps[name]

    def _shown(self, sweep: WandbSweep) -> dict[str, Any]:
        runs = [run for run in self._store.runs.values() if run.sweep == sweep.name]
        edges = [{"node": _trial(run)} for run in runs]
        return {
            "__typename": "Sweep", "id": sweep.id, "name": sweep.name, "displayName": sweep.display_name or sweep.name,
            "method": sweep.config["method"], "state": sweep.state, "description": None, "bestLoss": None,
            "config": yaml.safe_dump(sweep.config), "createdAt": _CREATED, "updatedAt": _CREATED,
            "heartbeatAt": _CREATED, "runCount": len(runs), "runCountExpected": None, "earlyStopJobRunning": False,
            "controller": sweep.controller, "scheduler": "{}", "runs": {"edges": edges},
        }  # fmt: skip


def _drawn(parameter: Mapping[str, Any], source: random.Random) -> Any:
    if "values" in parameter:
        return source.choice(cast("list[Any]", parameter["values"]))
    return (
        parameter["value"]
        if "value" in parameter
        else source.uniform(parameter["min"], parameter["max"])
    )


def _trial(run: WandbRun) -> dict[str, Any]:
    return {
        "name": run.id, "state": run.state, "config": json.dumps(run.raw_config), "exitcode": run.exit_code,
        "heartbeatAt": _CREATED, "shouldStop": run.stopped, "failed": run.state == "failed", "stopped": run.stopped,
        "running": run.state not in _ENDED, "summaryMetrics": json.dumps(run.derived | run.summary),
        "sampledHistory": [run.history],
    }  # fmt: skip
