"""Shared mode: several machines, each a process with its own wandb and run folder, write one run of the stand-in."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_bridge.testing import samples
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_backend.state import WandbRun
from support.trackers.wandb_shared import machines as shared
from support.trackers.wandb_shared.machines import ID, ROLES, Begin, Machine, until

server = shared.server
begin = shared.begin
pytestmark = pytest.mark.long


def rows_of(run: WandbRun, role: str, key: str = "loss") -> list[tuple[object, object]]:
    """Step and value of each line of a role, in the order of the run."""
    return [
        (row[f"{role}/step"], row[f"{role}/{key}"])
        for row in run.history
        if f"{role}/{key}" in row
    ]


def steps(first: int, last: int) -> list[tuple[object, object]]:
    return [(step, step) for step in range(first, last + 1)]


def test_two_machines_make_one_run_in_which_no_row_and_no_axis_is_lost(
    server: WandbServer, begin: Begin
) -> None:
    trainer, explorer = begin("a", 0), begin("b", 1)
    trainer.do('config trainer {"lr": 1}')
    explorer.do('config explorer {"n": 8}')
    for first in (1, 11):
        trainer.do(f"rows trainer {first} {first + 9}")
        explorer.do(f"rows explorer {first} {first + 9} reward/mean")
    explorer.settle()
    explorer.do("end")
    open_after = server.run(ID).state
    trainer.do("end")

    run = server.run(ID)
    assert (rows_of(run, "trainer"), rows_of(run, "explorer", "reward/mean")) == (
        steps(1, 20),
        steps(1, 20),
    )
    assert [row["_step"] for row in run.history] == list(range(40))
    assert (run.own_steps, len(run.clients), run.overwritten) == (0, 2, [])
    assert (open_after, run.state, run.config) == (
        "running",
        "finished",
        {"trainer": {"lr": 1}, "explorer": {"n": 8}},
    )
    visible = {
        name: metric.axis for name, metric in run.metrics.items() if not metric.hidden
    }
    assert visible == {
        "trainer/*": "trainer/step",
        "explorer/*": "explorer/step",
        "judge/*": "judge/step",
        "explorer/reward/mean": "explorer/step",
    }


def tables(server: WandbServer) -> dict[str, list[object]]:
    """The shared run's tables: key, without the writer's name, to the ids of the rollouts of each writer."""
    found: dict[str, list[object]] = {}
    for key in sorted(
        {
            key
            for row in server.run(ID).history
            for key, value in row.items()
            if isinstance(value, dict)
        }
    ):
        name = re.sub(r"_[0-9a-f]{8}$", "_<writer>", key)
        found.setdefault(name, []).append(
            [row["trace"] for row in server.table(ID, key)]
        )
    return {name: sorted(each, key=str) for name, each in found.items()}


def test_rollouts_of_one_role_on_several_machines_are_all_kept_in_a_table_of_each_writer(
    server: WandbServer, begin: Begin
) -> None:
    primary, second, third = begin("a", 0), begin("b", 1), begin("c", 1)
    for machine, first in ((primary, 1), (second, 11), (third, 21)):
        machine.do(f"rollouts explorer {first} {first + 1}")
    second.settle()
    second.kill()
    second = begin("b", 1)  # the table of this writer goes on
    second.do("rollouts explorer 13 14")
    primary.do("rollouts explorer 3 3")
    for machine in (third, second, primary):
        machine.do("end")

    def ids(*numbers: int) -> list[str]:
        return [samples.rollout(number, role="explorer").id for number in numbers]

    assert tables(server) == {
        "explorer/rollouts": [ids(1, 2, 3)],
        "explorer/rollouts_<writer>": sorted([ids(11, 12, 13, 14), ids(21, 22)]),
    }
    assert (server.run(ID).state, server.run(ID).overwritten) == ("finished", [])


def test_every_upload_of_every_writer_but_its_first_declares_the_axes_of_all_roles(
    server: WandbServer, begin: Begin
) -> None:
    judge, trainer = begin("j", 2), begin("t", 0)  # the primary comes late
    judge.do("rows judge 1 5")
    trainer.do("rows trainer 1 5")
    judge.settle()
    judge.kill()
    judge = begin("j", 2)
    judge.do("rows judge 6 8")
    judge.settle()
    judge.do("end")
    trainer.do("end")

    declared = [
        set(upsert.metrics) for upsert in server.run(ID).upserts if upsert.metrics
    ]
    assert declared
    assert all(names >= ROLES for names in declared)
    assert server.run(ID).state == "finished"


def test_a_secondary_that_is_killed_goes_on_behind_its_own_last_line(
    server: WandbServer, begin: Begin
) -> None:
    trainer, explorer = begin("a", 0), begin("b", 1)
    trainer.do("rows trainer 1 30")
    explorer.do("rows explorer 1 20")
    explorer.settle()
    trainer.settle()
    server.hang(what="filestream")
    explorer.do("rows explorer 21 40")
    explorer.kill()
    server.heal()
    explorer = begin("b", 1)
    opened = explorer.opened
    explorer.do("rows explorer 21 40")
    explorer.settle()
    explorer.do("end")
    trainer.do("end")

    assert opened == {"durable": 20}
    assert (
        rows_of(server.run(ID), "explorer"),
        rows_of(server.run(ID), "trainer"),
    ) == (
        steps(1, 40),
        steps(1, 30),
    )


def test_a_primary_that_died_leaves_the_run_to_the_others_and_ends_it_when_it_is_back(
    server: WandbServer, begin: Begin
) -> None:
    trainer, explorer = begin("a", 0), begin("b", 1)
    trainer.do("rows trainer 1 5")
    trainer.settle()
    trainer.kill()
    explorer.do("rows explorer 1 5")
    explorer.do("end")
    without = server.run(ID).state
    trainer = begin("a", 0)
    trainer.do(
        "rows trainer 4 8"
    )  # from a checkpoint: the second attempt goes over steps 4 and 5 again
    trainer.do("end")

    run = server.run(ID)
    assert (without, run.state) == ("running", "finished")
    assert (rows_of(run, "trainer"), rows_of(run, "explorer")) == (
        steps(1, 5) + steps(4, 8),
        steps(1, 5),
    )


def test_a_role_that_is_not_listed_gets_a_run_of_its_own_and_is_warned_of(
    server: WandbServer, begin: Begin
) -> None:
    machine = begin("a", 0)
    machine.do("rows trainer 1 3")
    machine.do("rows critic 1 4")
    machine.do("rows - 1 2")
    machine.settle()
    machine.kill()
    machine = begin("a", 0)
    machine.do("rows critic 5 6")
    machine.do("rows trainer 4 4")
    machine.do("end")
    said = machine.said()

    shared, critic, unnamed = (
        server.run(ID),
        server.run(f"{ID}-critic"),
        server.run(f"{ID}-unnamed"),
    )
    assert (rows_of(shared, "trainer"), rows_of(critic, "critic")) == (
        steps(1, 4),
        steps(1, 6),
    )
    assert [(row["step"], row["loss"]) for row in unnamed.history] == steps(1, 2)
    assert (critic.group, critic.display_name, unnamed.group) == (
        ID,
        "shared (critic)",
        ID,
    )
    assert critic.metrics["critic/loss"].axis == "critic/step"
    assert [run.state for run in (shared, critic, unnamed)] == ["finished"] * 3
    assert "critic" not in said, "it is said once, not after every restart"


def test_a_role_may_be_the_primary_wherever_it_runs(
    server: WandbServer, begin: Begin
) -> None:
    named = {"OTEL_BRIDGE_WANDB_PRIMARY": "trainer"}
    first, second = begin("a", 0, **named), begin("b", 0, **named)
    first.do("rows explorer 1 3")
    second.do("rows judge 1 3")
    second.do("rows trainer 1 3")
    first.do("end")
    open_after = server.run(ID).state
    second.do("end")

    run = server.run(ID)
    assert (open_after, run.state) == ("running", "finished")
    assert [rows_of(run, role) for role in ("explorer", "judge", "trainer")] == [
        steps(1, 3)
    ] * 3


def test_an_outage_while_two_write_loses_and_doubles_nothing(
    server: WandbServer, begin: Begin
) -> None:
    trainer, explorer = begin("a", 0), begin("b", 1)
    server.answer(503, what="filestream", times=2)
    trainer.do("rows trainer 1 10")
    server.drop(what="filestream", times=2, take=True)
    explorer.do("rows explorer 1 10")
    trainer.settle()
    explorer.settle()
    for machine in (explorer, trainer):
        machine.do("end")

    counted = Counter(
        rows_of(server.run(ID), "trainer") + rows_of(server.run(ID), "explorer")
    )
    assert counted == dict.fromkeys(steps(1, 10), 2)


def test_offline_and_newer_versions_of_wandb_do_not_share(
    server: WandbServer, begin: Begin, tmp_path: Path
) -> None:
    offline = begin("off", 1, WANDB_MODE="offline")
    offline.do("rows trainer 1 2")
    offline.do("end")
    said = offline.said()
    newer = Machine(server, tmp_path / "new", 0, Path(sys.executable))
    newer.process.wait()

    assert "an offline run cannot be shared" in said
    assert f"{ID}-n1, in the group {ID}" in said
    assert list((tmp_path / "off" / "wandb").glob(f"offline-run-*-{ID}-n1"))
    assert "shared mode of wandb 0.31" in newer.opened["error"]
    assert "pip install 'wandb>=0.28.2,<0.31'" in newer.opened["help"]
    assert server.store.runs == {}


DEEP = {
    "trainer": "trainer/grad/norm/layer0",
    "explorer": "explorer/reward/mean/math",
    "judge": "judge/score/by/group",
}
AXES = {
    **{key: f"{role}/step" for role, key in DEEP.items()},
    **{f"{role}/*": f"{role}/step" for role in DEEP},
}
CONFIGS = {role: {"of": role} for role in DEEP}


def visible(run: WandbRun) -> dict[str, str]:
    return {
        name: metric.axis for name, metric in run.metrics.items() if not metric.hidden
    }


def deep_rows(machine: Machine, role: str, first: int, last: int) -> None:
    machine.do(f"rows {role} {first} {last} {DEEP[role].removeprefix(f'{role}/')}")


def three(begin: Begin) -> dict[str, Machine]:
    return {role: begin(role, rank) for rank, role in enumerate(DEEP)}


@pytest.mark.parametrize(
    "order", [("explorer", "judge", "trainer"), ("trainer", "judge", "explorer")]
)
def test_three_roles_keep_one_anothers_axes_and_config_the_one_that_ends_first(
    server: WandbServer, begin: Begin, order: tuple[str, ...]
) -> None:
    machines = three(begin)
    for role, machine in machines.items():
        machine.do(f"config {role} {json.dumps(CONFIGS[role])}")
        deep_rows(machine, role, 1, 3)
    for role in order:
        deep_rows(machines[role], role, 4, 6)
        assert machines[role].do("end") is None

    run = server.run(ID)
    assert (visible(run), run.config) == (AXES, CONFIGS)
    assert [
        rows_of(run, role, key.removeprefix(f"{role}/")) for role, key in DEEP.items()
    ] == [steps(1, 6)] * 3
    assert (
        run.state == "finished" or order[-1] != "trainer"
    )  # the primary should end last


def test_a_config_of_a_writer_that_ends_at_once_survives_the_next_upload_of_a_writer_that_has_not_seen_it(
    server: WandbServer, begin: Begin
) -> None:
    trainer, explorer = begin("a", 0), begin("b", 1)
    trainer.do(
        'config trainer {"lr": 1}'
    )  # wandb uploads it five seconds later, with all that this writer knows
    explorer.do('config explorer {"n": 8}')
    assert explorer.do("end") is None
    until(lambda: any("trainer" in upsert.config for upsert in server.run(ID).upserts))
    trainer.do("end")

    assert server.run(ID).config == {"trainer": {"lr": 1}, "explorer": {"n": 8}}


def test_what_one_writer_replaces_while_it_starts_is_soon_sent_again(
    server: WandbServer, begin: Begin
) -> None:
    machines = three(begin)
    for role, machine in machines.items():
        machine.do(f"config {role} {json.dumps(CONFIGS[role])}")
        deep_rows(machine, role, 1, 3)
        machine.settle()
    machines["judge"].kill()
    machines["judge"] = begin("judge", 2)  # its first upload has no axis and no config

    def whole() -> bool:
        for machine in machines.values():
            machine.do("durable")
        run = server.run(ID)
        return (visible(run), run.config) == (AXES, CONFIGS)

    until(whole)


def test_summaries_of_the_machines_of_a_shared_run_stand_beside_one_another_in_its_config(
    server: WandbServer, begin: Begin
) -> None:
    machines = {role: begin(role, n) for n, role in enumerate(("trainer", "explorer"))}
    for role, machine in machines.items():
        machine.do(f"rows {role} 1 3")
        machine.do(f"summary {role} best {len(role)}")
    for machine in reversed(machines.values()):
        machine.do("end")

    assert server.run(ID).config == {
        "summary/trainer/best": 7,
        "summary/explorer/best": 8,
    }


def test_a_changed_config_is_not_replaced_by_the_copy_that_another_writer_carries(
    server: WandbServer, begin: Begin
) -> None:
    machines = three(begin)
    for role, machine in machines.items():
        machine.do(f"config {role} {json.dumps(CONFIGS[role])}")
        deep_rows(machine, role, 1, 1)
        machine.settle()
        until(
            lambda role=role: role in server.run(ID).config
        )  # wandb uploads configs apart from rows, and later
    machines["explorer"].do('config explorer {"of": "explorer", "n": 2}')
    for role in ("judge", "explorer", "trainer"):
        machines[role].do("end")

    assert server.run(ID).config == {**CONFIGS, "explorer": {"of": "explorer", "n": 2}}
