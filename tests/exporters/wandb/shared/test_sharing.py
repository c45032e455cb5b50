"""What shared mode asks of the settings, and which versions of wandb are written through."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from otel_bridge.errors import BlockedError, ConfigError, RetryableError
from otel_bridge.testing import MemoryTable
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb.axes import WandbAxes
from otel_bridge_wandb.online.uploads import Stored
from otel_bridge_wandb.settings import WandbSettings, group_of, has_own_run, run_id_of
from otel_bridge_wandb.shared_mode.run import SharedRun, definitions_in
from otel_bridge_wandb.shared_mode.settings import Sharing, part_of_id
from otel_bridge_wandb.shared_mode.writer import SharedWriter
from otel_bridge_wandb.versions import require_safe_sharing
from otel_bridge_wandb.writer import WandbRunWriter

ON = {"OTEL_BRIDGE_WANDB_SHARED": "1", "OTEL_BRIDGE_ROLES": "trainer,explorer"}


def settings(**more: str) -> WandbSettings:
    return WandbSettings.from_environment({**ON, **more}, Path("/"))


def test_sharing_is_off_unless_asked_for() -> None:
    alone = WandbSettings.from_environment({"OTEL_BRIDGE_ROLES": "trainer"}, Path("/"))

    assert (alone.sharing, settings().sharing) == (
        None,
        Sharing(("trainer", "explorer")),
    )
    assert "OTEL_BRIDGE_WANDB_SHARED" not in alone.destination
    assert settings().destination["OTEL_BRIDGE_WANDB_SHARED"] == "1"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"OTEL_BRIDGE_ROLES": ""}, "OTEL_BRIDGE_ROLES=trainer,explorer"),
        ({"OTEL_BRIDGE_ROLES": "eval,eval/math"}, "'eval/math' begins with it"),
        ({"OTEL_BRIDGE_ROLES": "all*"}, "is a pattern"),
        (
            {"OTEL_BRIDGE_WANDB_PRIMARY": "judge"},
            "expected 1, 0 or one of trainer, explorer",
        ),
    ],
)
def test_what_cannot_be_shared_is_said_at_the_start(
    wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace("*", ".")):
        settings(**wrong)


def test_offline_each_machine_has_a_run_of_its_own_in_the_group_of_the_job(
    tmp_path: Path,
) -> None:
    offline = settings(WANDB_MODE="offline")
    first, second = run_info(tmp_path, "job"), run_info(tmp_path, "job", node_rank=1)

    assert (offline.sharing, offline.unshared) == (None, True)
    assert [run_id_of(run, offline) for run in (first, second)] == [
        first.id,
        f"{first.id}-n1",
    ]
    assert [group_of(run, offline) for run in (first, second)] == [first.id, first.id]


def test_a_shared_run_has_one_id_on_every_machine_and_no_group_of_its_own(
    tmp_path: Path,
) -> None:
    second = run_info(tmp_path, "job", node_rank=1)

    assert (run_id_of(second, settings()), group_of(second, settings())) == (
        second.id,
        None,
    )
    assert (
        has_own_run(second, settings()),
        has_own_run(second, WandbSettings()),
    ) == (
        False,
        True,
    )


def test_the_primary_is_node_rank_0_or_who_is_named(tmp_path: Path) -> None:
    first = run_info(tmp_path, "job", keys={"trainer/loss": "trainer/step"})
    second = run_info(tmp_path, "job", node_rank=1, configs={"explorer": {}})

    chosen = {
        named: [
            Sharing(("trainer", "explorer"), named).is_primary(run)
            for run in (first, second)
        ]
        for named in ("", "1", "0", "trainer", "explorer")
    }

    assert chosen == {
        "": [True, False],
        "1": [True, True],
        "0": [False, False],
        "trainer": [True, False],
        "explorer": [False, True],
    }


@pytest.mark.parametrize("version", ["0.28.2", "0.30.0", "0.30.9"])
def test_versions_whose_shared_mode_is_safe(version: str) -> None:
    require_safe_sharing(version)


@pytest.mark.parametrize("version", ["0.28.1", "0.31.0", "0.32.0rc1", "1.0", "strange"])
def test_other_versions_do_not_share_and_say_what_to_install(version: str) -> None:
    with pytest.raises(
        BlockedError, match=f"shared mode of wandb {version} is refused"
    ) as refused:
        require_safe_sharing(version)

    assert refused.value.help == "pip install 'wandb>=0.28.2,<0.31'"


def test_a_role_becomes_a_part_of_an_id() -> None:
    assert [part_of_id(name) for name in ("critic", "eval/math 1", "ü", "")] == [
        "critic",
        "eval-math-1",
        "unnamed",
        "unnamed",
    ]


def test_what_others_declared_is_read_from_a_stored_config() -> None:
    definitions = [
        {"1": "trainer/a\\.b/c", "5": 2, "6": [3]},
        {"1": "trainer/step", "6": [2, 3]},
        {"2": "trainer/*", "5": 2},
        {"1": "alone"},
        {"1": "astray", "5": 9},
    ]

    assert definitions_in({"_wandb": {"value": {"m": definitions}}}) == [
        ("trainer/a.b/c", "trainer/step")
    ]
    assert definitions_in({"_wandb": {"m": definitions}}) == [
        ("trainer/a.b/c", "trainer/step")
    ]
    assert (definitions_in({}), definitions_in({"_wandb": {"value": {}}})) == ([], [])


def test_a_stored_config_of_another_shape_defines_nothing_and_shifts_no_axis() -> None:
    definitions = ["text", {"1": "trainer/step"}, {"1": "trainer/loss", "5": 2}]

    assert definitions_in({"_wandb": "text"}) == []
    assert definitions_in({"_wandb": {"m": {"1": "trainer/loss"}}}) == []
    assert definitions_in({"_wandb": {"m": definitions}}) == [
        ("trainer/loss", "trainer/step")
    ]


class _Names:
    """Takes definitions of names."""

    def __call__(self, name: str, axis: str | None) -> None: ...
    def send_definitions(self, *, now: bool = False) -> None: ...


class _Watched:
    """A writer of a shared run, on a clock that only its waiting moves.

    Args:
        replaced: Seconds after the beginning to the config that another writer then uploads.
    """

    def __init__(self, replaced: Mapping[float, Mapping[str, object]]) -> None:
        self.now_s = 0.0
        self.stored: Mapping[str, object] = {}
        self._replaced = dict(replaced)
        self.run = SharedRun(
            SimpleNamespace(config=SimpleNamespace(update=lambda *_args, **_more: None)),
            WandbAxes(_Names()),
            roles=("trainer", "explorer"), number=lambda _lines: None, stored=self._read, every_s=10.0,
            clock_s=lambda: self.now_s, pause=self._wait,
        )  # fmt: skip

    def write(self, value: int) -> None:
        self.run.gather({"explorer": {"n": value}})
        self.stored = {**self.stored, "explorer": {"value": {"n": value}}}

    def _wait(self, seconds: float) -> None:
        self.now_s += seconds

    def _read(self) -> Stored:
        for at_s in sorted(at_s for at_s in self._replaced if at_s <= self.now_s):
            self.stored = self._replaced.pop(at_s)
        return Stored(self.stored)


@pytest.mark.parametrize(
    "former", [{}, {"explorer": {"value": {"n": 1}}}], ids=["missing", "stale"]
)
def test_a_new_config_that_another_writer_replaces_soon_after_the_end_is_lacking(
    former: dict[str, object],
) -> None:
    writer = _Watched({7.0: {"trainer": {"value": {}}, **former}})
    writer.write(1)
    writer.write(2)

    assert writer.run.lacking() == ["the config"]


def test_a_new_config_is_watched_until_the_others_have_seen_it_and_no_longer() -> None:
    writer = _Watched({})
    writer.write(1)
    first = (writer.run.lacking(), writer.now_s)
    second = (writer.run.lacking(), writer.now_s)

    assert first == second == ([], 16.0)


def test_a_config_of_another_machine_with_the_same_role_is_not_lacking() -> None:
    writer = _Watched({7.0: {"explorer": {"value": {"n": 3}}}})
    writer.write(1)
    writer.write(2)

    assert writer.run.lacking() == []


def test_runs_that_were_opened_are_closed_when_that_of_another_role_cannot_be_opened() -> (
    None
):
    closed: list[str] = []

    def writer_of(name: str) -> WandbRunWriter:
        fake = SimpleNamespace(
            tracker_run_id=name,
            found="",
            degraded=(),
            close=lambda: closed.append(name),
        )
        return cast("WandbRunWriter", fake)

    def open_own(role: str | None) -> WandbRunWriter:
        if role == "judge":
            raise RetryableError("the server is down")
        return writer_of(str(role))

    memory = MemoryTable()
    memory.put("shared_mode/unlisted", b'["critic", "judge"]')
    with pytest.raises(RetryableError, match="the server is down"):
        SharedWriter(
            Sharing(("trainer",)),
            writer_of("shared"),
            open_own=open_own,
            memory=memory,
            primary=True,
        )

    assert sorted(closed) == ["critic", "shared"]
