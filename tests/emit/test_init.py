"""What init() begins, returns and refuses, and what its children are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otel_bridge
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.errors import ConfigError
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.locks import probe
from support.trainers.emit_samples import (
    CLEAN,
    SeenRow,
    environment_of,
    held,
    run_in,
    run_script,
    seen_in,
)


def test_a_second_init_of_the_same_run_returns_it(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer") as run:
        assert otel_bridge.init() is run
        assert otel_bridge.init("gsm8k", "ppo", role="trainer") is run
        assert otel_bridge.current_run() is run


@pytest.mark.parametrize("key", ["project", "name", "role", "id"])
def test_a_second_init_reads_names_as_the_first_one(tmp_path: Path, key: str) -> None:
    with environment_of(held(tmp_path)):
        names: dict[str, Any] = {"project": "p", "name": "n", "role": "r", "id": "i"}
        run = otel_bridge.init(**names)
        # A block of YAML ends with a line break; an empty name is none.
        for text in (f" {names[key]}\n", ""):
            assert otel_bridge.init(**{**names, key: text}) is run
        with pytest.raises(ConfigError, match=f"{key}=.*expected text"):
            otel_bridge.init(**{**names, key: ["x"]})


def test_a_second_init_of_another_run_finishes_the_first(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer") as run:
        other = otel_bridge.init("gsm8k", "dpo", role="trainer")
        other.log({"a": 1.0})

        first, second = seen_in(tmp_path)
        assert first.event("rl.run.end").attributes["rl.run.status"] == "finished"
        assert (second.header.run_name, len(second.rows)) == ("dpo", 1)
        assert not run.recording


def test_after_finish_an_init_without_a_name_is_a_new_run(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)):
        first = otel_bridge.init("p")
        same = otel_bridge.init("p")
        otel_bridge.finish()
        second = otel_bridge.init("p")

        assert same is first
        assert second.name != first.name


def test_children_are_reported_the_run(tmp_path: Path) -> None:
    script = """
    import otel_bridge, subprocess, sys
    run = otel_bridge.init("p", role="trainer")
    child = "import otel_bridge; otel_bridge.init(role='judge').log({'score': 1}, step=2)"
    subprocess.run([sys.executable, "-c", child], check=True, cwd="/")
    """

    done = run_script(script, held(tmp_path))

    assert done.returncode == 0, done.stderr
    trainer, judge = seen_in(tmp_path)
    assert judge.header.run_id == trainer.header.run_id
    assert (trainer.header.role, judge.header.role) == ("trainer", "judge")
    assert judge.rows == [SeenRow(2, {"score": 1}, 1)]


def test_children_of_a_run_that_records_nothing_begin_none_by_the_users_variable(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge, subprocess, sys
    run = otel_bridge.init("p", exporters=[])
    child = "import otel_bridge; otel_bridge.init(role='judge').log({'score': 1}, step=2)"
    subprocess.run([sys.executable, "-c", child], check=True)
    run.finish()
    print(os.environ["OTEL_BRIDGE_EXPORTERS"])
    """

    done = run_script(script, {**held(tmp_path), "OTEL_BRIDGE_EXPORTERS": "file"})

    assert (done.returncode, done.stdout) == (0, "file\n"), done.stderr
    assert run_folders(tmp_path) == []


def test_an_exporter_that_shows_no_run_has_no_view_in_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {
        "OTEL_BRIDGE_EXPORTERS": "webhook",
        "OTEL_BRIDGE_ALERT_WEBHOOK": "http://127.0.0.1:9/hook",
    }
    with environment_of(
        {**CLEAN, **named, "OTEL_BRIDGE_DIR": str(tmp_path), "OTEL_BRIDGE_QUIET": "0"}
    ):
        run = otel_bridge.init("p", "n")

        begun = capsys.readouterr().err
        run.finish()

    assert begun == f"otel-bridge: p/n ({run.id[:8]}…) → webhook\n"


def test_env_gives_a_worker_elsewhere_all_it_needs(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer", exporters="console") as run:
        assert run.env(role="explorer") == {
            "OTEL_BRIDGE_PROJECT": "gsm8k",
            "OTEL_BRIDGE_RUN_NAME": "ppo",
            "OTEL_BRIDGE_DIR": str(tmp_path),
            "OTEL_BRIDGE_EXPORTERS": "console",
            "OTEL_BRIDGE_ROLE": "explorer",
        }


@pytest.mark.parametrize(
    "arguments",
    [
        {"exporters": "trakio"},
        {"exporters": 3},
        {"exporters": ["console", 3]},
        {"role": 3},
        {"name": "a\nb"},
        {"id": "../../etc"},
        {"rank": -1},
        {"tags": 3},
        {"dir": 3},
    ],
)
def test_a_bad_argument_is_an_error_at_init(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    with environment_of(held(tmp_path)), pytest.raises(ConfigError):
        otel_bridge.init(**{"project": "p", "name": "n", **arguments})  # type: ignore[arg-type]

    assert seen_in(tmp_path) == []


def test_a_group_or_notes_that_are_not_texts_are_recorded_as_theirs(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, notes=Path("why.md"), group=3, job_type=np.float32(0.5)):
        (seen,) = seen_in(tmp_path)

    facts = {
        name: seen.resource[f"rl.run.{name}"] for name in ("notes", "group", "job_type")
    }
    assert facts == {"notes": "why.md", "group": "3", "job_type": "0.5"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BRIDGE_OFFLINE", "perhaps"),
        ("OTEL_BRIDGE_SEGMENT_BYTES", "-3"),
        ("OTEL_BRIDGE_MESSAGE_CONTENT", "truncate:x"),
        ("OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP", "many"),
        ("OTEL_BRIDGE_MAX_MEDIA_PER_STEP", "-1"),
        ("OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP_EVAL", "few"),
        ("OTEL_BRIDGE_EXPORTERS", "nowhere"),
        ("OTEL_METRICS_EXPORTER", "trakio"),
        ("RANK", "first"),
        ("SLURM_RESTART_COUNT", "once"),
    ],
)
def test_a_malformed_setting_is_an_error_at_init_that_names_it_and_leaves_nothing_behind(
    tmp_path: Path, name: str, value: str
) -> None:
    said = value if "EXPORTER" in name else name
    with (
        environment_of({**held(tmp_path), name: value}),
        pytest.raises(ConfigError, match=said),
    ):
        otel_bridge.init("p", "n")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("exporters", "to", "command"),
    [
        (None, "no exporter yet", "drain --exporters trackio {folder}"),
        ("trackio", "trackio", "drain {base}"),
    ],
)
def test_the_line_of_init_says_run_role_and_what_is_held_and_no_place_that_shows_nothing_yet(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    exporters: str | None,
    to: str,
    command: str,
) -> None:
    with run_in(
        tmp_path, {"OTEL_BRIDGE_QUIET": "0"}, role="trainer", exporters=exporters
    ) as run:
        line = capsys.readouterr().err

    assert line == (
        f"otel-bridge: gsm8k/ppo ({run.id[:8]}…) as trainer → {to}\n"
        f"otel-bridge:   held in {tmp_path}; deliver with: otel-bridge "
        f"{command.format(base=tmp_path, folder=tmp_path / run.id)}\n"
    )


def test_a_second_init_without_exporters_says_that_it_does_not_take_them_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path, exporters="console"):
        capsys.readouterr()
        otel_bridge.init("gsm8k", "ppo", exporters="none")

    assert "exporters=none ignored; call finish() first" in capsys.readouterr().err


def test_a_second_init_of_a_run_says_which_arguments_it_does_not_take_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path, exporters="console", group="g") as run:
        capsys.readouterr()
        again = otel_bridge.init("gsm8k", "ppo", exporters=["console"], group="g")
        quiet = capsys.readouterr().err
        other = otel_bridge.init(
            "gsm8k",
            "ppo",
            exporters="console,file",
            tags=["t"],
            dir=tmp_path / "elsewhere",
        )

    assert again is other is run
    assert (quiet, capsys.readouterr().err) == (
        "",
        (
            "otel-bridge: init() of gsm8k/ppo, which has already begun: exporters=console,file, tags, dir ignored;"
            " call finish() first, then init() again\n"
        ),
    )


def test_a_second_init_with_another_config_says_what_it_replaces_and_how_to_begin_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with environment_of(held(tmp_path)):
        config: dict[str, object] = {"lr": 0.1, "nan": float("nan")}
        run = otel_bridge.init("p", config=config)
        capsys.readouterr()
        otel_bridge.init(config=config)
        otel_bridge.init(config={"model": "qwen"})
        quiet = capsys.readouterr().err
        config["lr"] = 0.2
        again = otel_bridge.init("p", config=config)
        otel_bridge.init("p", config=config)

    assert again is run
    assert (quiet, capsys.readouterr().err) == (
        "",
        (
            f"otel-bridge: init() of p/{run.name}, which has already begun: other values of lr replace those of its"
            " config; to begin another run, give init() another name=, or set OTEL_BRIDGE_NEW_RUN=1\n"
        ),
    )


@pytest.mark.parametrize("name", [None, "ppo"])
def test_with_new_runs_set_each_init_that_differs_begins_a_run(
    tmp_path: Path, name: str | None
) -> None:
    with environment_of({**held(tmp_path), "OTEL_BRIDGE_NEW_RUN": "1"}):
        first = otel_bridge.init("p", name, config={"lr": 0.1})
        same = otel_bridge.init("p", name, config={"lr": 0.1})
        second = otel_bridge.init("p", name, config={"lr": 0.2})
        third = otel_bridge.init("p", name, config={"lr": 0.2}, group="g")
        component = otel_bridge.init()

        assert same is first
        assert component is third
        assert len({first.id, second.id, third.id}) == 3
        assert [run.recording for run in (first, second, third)] == [False, False, True]


def test_a_forked_child_joins_the_run_of_its_parent_though_its_config_differs(
    tmp_path: Path,
) -> None:
    script = """
    import os, otel_bridge
    run = otel_bridge.init("p", config={"device": 0})
    pid = os.fork()
    same = otel_bridge.init(config={"device": 1}) is run if not pid else True
    os._exit(not same) if not pid else print(os.waitpid(pid, 0)[1])
    """

    done = run_script(script, {**held(tmp_path), "OTEL_BRIDGE_NEW_RUN": "1"})

    assert done.stdout == "0\n", done.stderr


def test_a_misspelt_variable_is_named_by_init_with_the_nearest_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    misspelt = {"OTEL_BRIDGE_EXPORTES": "trackio", "OTEL_BRIDGE_QUIET": "0"}
    with environment_of({**held(tmp_path), **misspelt}):
        otel_bridge.init("p", "one")
        otel_bridge.finish()

    line = (
        "otel-bridge: OTEL_BRIDGE_EXPORTES is set, but is not a setting of otel-bridge; "
        "did you mean OTEL_BRIDGE_EXPORTERS?"
    )
    assert line in capsys.readouterr().err.splitlines()


def test_an_unknown_exporter_is_a_short_traceback_that_ends_with_what_to_do(
    tmp_path: Path,
) -> None:
    with (
        environment_of(held(tmp_path)),
        pytest.raises(ConfigError, match="did you mean trackio") as raised,
    ):
        otel_bridge.init("p", "one", exporters="trackoi")

    assert [frame.name for frame in raised.traceback][1:] == ["init"]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_rank_that_cannot_be_merged_for_lack_of_the_number_of_ranks_says_so(
    tmp_path: Path,
) -> None:
    ranked = "import otel_bridge; otel_bridge.init('p', 'a', rank=0)"
    unranked = "import otel_bridge; otel_bridge.init('p', 'a')"
    merging = {**held(tmp_path), "OTEL_BRIDGE_RANKS": "merge", "OTEL_BRIDGE_QUIET": "0"}
    line = "rank 0 counts as the last one; set WORLD_SIZE to the number of ranks"

    without = run_script(ranked, merging)
    complete = run_script(ranked, {**merging, "WORLD_SIZE": "2"})
    single = run_script(unranked, merging)

    printed = [line in done.stderr for done in (without, complete, single)]
    assert printed == [True, False, False], without.stderr


def test_an_init_that_is_interrupted_ends_the_part_that_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_starter: BridgeStarter) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(BridgeStarter, "ensure", interrupt)
    with environment_of(held(tmp_path)), pytest.raises(KeyboardInterrupt):
        otel_bridge.init("p", "n")

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "failed"
    # The lock on its life file is free: the process has no part in the run any more.
    life_path = RunFolder(tmp_path, seen.header.run_id).life_path(
        seen.header.instance_id
    )
    assert not probe(life_path)


def test_a_name_that_the_environment_cannot_hold_is_an_error_at_init_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    script = """
        import otel_bridge
        try:
            otel_bridge.init("p", "\\u65e5")
        except otel_bridge.ConfigError as error:
            print(error)
        """
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = run_script(script, held(tmp_path, **ascii_only))

    assert "OTEL_BRIDGE_RUN_NAME='\\u65e5': " in done.stdout, done.stderr
    assert "set PYTHONUTF8=1" in done.stdout
    assert not list(tmp_path.iterdir())
