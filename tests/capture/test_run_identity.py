"""Which run a captured program writes to, what the run is called, and with which status it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    otel_bridge,
    program,
    records,
    runs,
    started,
    statuses,
    until,
    values,
)

pytestmark = pytest.mark.slow
REAL = "import wandb\n"
TRACKIO = "import trackio as wandb\n"


def launched(
    folder: Path,
    code: str,
    *,
    capture: str = "wandb",
    code_of_exit: int = 0,
    **variables: str,
) -> str:
    """Run *code* under ``otel-bridge run --capture``; returns what it printed."""
    env = environment(
        folder,
        WANDB_BASE_URL="http://127.0.0.1:9",
        TRACKIO_DIR=str(folder / "store"),
        **variables,
    )
    command = [
        "run",
        "--exporters",
        "file",
        "--capture",
        capture,
        "--",
        "python",
        "-W",
        "ignore",
    ]
    done = otel_bridge(*command, program(folder, "train.py", code), cwd=folder, env=env)
    assert done.returncode == code_of_exit, done.stderr
    return done.stdout


def found(folder: Path) -> list[tuple[str, list[str], dict[str, object]]]:
    """Name, statuses and values of each run, by name."""
    reports = [
        (read_report(one), statuses(one), values(one))
        for one in run_folders(runs(folder))
    ]
    return sorted(
        (report.name if report else "", ends, points)
        for report, ends, points in reports
    )


@pytest.mark.parametrize(
    ("package", "capture"), [(REAL, "wandb"), (TRACKIO, "trackio")]
)
def test_runs_without_a_name_are_runs_of_their_own_as_in_the_tracker(
    tmp_path: Path, package: str, capture: str
) -> None:
    pytest.importorskip(capture)
    code = f"""
    {package}
    for lr in (1, 2, 3):
        wandb.init(project="cv", config={{"lr": lr}})
        wandb.log({{"acc": lr}})
        wandb.log({{"acc": lr * 10}})
        wandb.finish()
    """

    launched(tmp_path, code, capture=capture)

    assert sorted(str((ends, points)) for _, ends, points in found(tmp_path)) == [
        str((["finished"], {"acc": [(0, lr), (1, lr * 10)]})) for lr in (1, 2, 3)
    ]


@pytest.mark.long
def test_processes_that_name_no_run_have_one_each_and_those_that_name_one_share_it(
    tmp_path: Path,
) -> None:
    code = """
    import multiprocessing, sys, wandb

    def work(number, **named):
        with wandb.init(project="p", group="g", config={"number": number}, **named) as run:
            run.log({f"x{number}": number})

    if __name__ == "__main__":
        calls = [("fork", 1, {}), ("spawn", 2, {}), ("spawn", 3, {"name": "both"}), ("fork", 4, {"name": "both"})]
        for method, number, named in calls:
            child = multiprocessing.get_context(method).Process(target=work, args=(number,), kwargs=named)
            child.start()
            child.join()
            assert child.exitcode == 0
    """

    launched(tmp_path, code)

    shown = [
        sorted(key for key in points if key != "attempt")
        for _, _, points in found(tmp_path)
    ]
    assert sorted(shown) == [["x1"], ["x2"], ["x3", "x4"]]


def test_each_run_has_the_status_of_its_own_end_whatever_becomes_of_the_command(
    tmp_path: Path,
) -> None:
    code = """
    import sys
    import wandb
    for name in "ab":
        run = wandb.init(project="p", name=name)
        run.log({"x": 1})
        wandb.finish()
    run = wandb.init(project="p", name="c")
    run.log({"x": 1})
    sys.exit(3)
    """

    launched(tmp_path, code, code_of_exit=3)

    assert [(name, ends) for name, ends, _ in found(tmp_path)] == [
        ("a", ["finished"]), ("b", ["finished"]), ("c", ["failed"])
    ]  # fmt: skip


def test_a_run_has_ended_in_its_trackers_when_finish_returns_though_the_command_goes_on(
    tmp_path: Path,
) -> None:
    code = """
    import pathlib, time, wandb
    with wandb.init(project="p", name="a") as run:
        run.log({"x": 1})
    pathlib.Path("finished").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    """
    command = [
        "otel-bridge",
        "run",
        "--exporters",
        "file",
        "--capture",
        "wandb",
        "--",
        "python",
    ]
    env = environment(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9")
    with started(
        [*command, program(tmp_path, "train.py", code)], cwd=tmp_path, env=env
    ) as job:
        until((tmp_path / "finished").exists, "the end of the run")

        assert [(ends, points) for _, ends, points in found(tmp_path)] == [
            (["finished"], {"x": [(0, 1.0)]})
        ]

        (tmp_path / "go").touch()
        assert job.wait() == 0
    assert [ends for _, ends, _ in found(tmp_path)] == [["finished"]]


@pytest.mark.parametrize(
    ("ending", "code_of_exit", "status"),
    [
        ("sys.exit(3)", 3, "failed"),
        ("sys.exit(0)", 0, "finished"),
        pytest.param("sys.exit(['no', 'data'])", 1, "failed", marks=pytest.mark.long),
    ],
)
def test_an_exit_code_is_the_status_without_a_launcher_too(
    tmp_path: Path, ending: str, code_of_exit: int, status: str
) -> None:
    code = "import sys, otel_bridge\notel_bridge.capture('wandb')\nimport wandb\n"
    code += "wandb.init(project='p').log({'x': 1})\n"
    env = environment(
        tmp_path, OTEL_BRIDGE_EXPORTERS="file", WANDB_BASE_URL="http://127.0.0.1:9"
    )

    done = call(
        [PYTHON, program(tmp_path, "train.py", code + ending)], cwd=tmp_path, env=env
    )

    assert done.returncode == code_of_exit, done.stderr
    assert [ends for _, ends, _ in found(tmp_path)] == [[status]]


NAMED = {
    "variables": "os.environ.update(WANDB_PROJECT='mine', WANDB_NAME='one')\nimport wandb",
    "variables after the import": "import wandb\nos.environ.update(WANDB_PROJECT='mine', WANDB_NAME='one')",
    "setup": "import wandb\nwandb.setup(wandb.Settings(project='mine', run_name='one'))",
}


@pytest.mark.long
@pytest.mark.parametrize("how", NAMED)
def test_names_that_the_program_sets_for_all_its_runs_are_those_of_the_run(
    tmp_path: Path, how: str
) -> None:
    code = f"import os\n{NAMED[how]}\nwandb.init().log({{'x': 1}})\n"

    launched(tmp_path, code)

    (folder,) = run_folders(runs(tmp_path))
    report = read_report(folder)
    assert report is not None
    assert (report.project, report.name) == ("mine", "one")


ADAPTER = """
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames
adapter = FrameworkRun("verl", RunNames("mine", "one", default_project="huggingface"))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "variables", "named"),
    [
        ("run = wandb.init()", {}, ("mine", "one")),
        ("run = wandb.init(project='huggingface')", {}, ("mine", "one")),
        ("run = wandb.init(project='p', name='a')", {}, ("p", "a")),
        (
            "run = wandb.init(project='lightning_logs')",
            {"OTEL_BRIDGE_PROJECT": "given"},
            ("given", "one"),
        ),
        (
            "import otel_bridge; otel_bridge.init('own', 'run'); run = wandb.init()",
            {},
            ("own", "run"),
        ),
    ],
)
def test_names_of_an_adapter_are_those_of_a_run_that_the_program_does_not_name(
    tmp_path: Path, code: str, variables: dict[str, str], named: tuple[str, str]
) -> None:
    launched(
        tmp_path,
        f"import wandb\n{ADAPTER}\n{code}\nrun.log({{'x': 1}})\nadapter.begin().log({{'y': 2}}, 0)",
        **variables,
    )

    (folder,) = run_folders(runs(tmp_path))
    report = read_report(folder)
    assert report is not None
    assert ((report.project, report.name), values(folder)) == (
        named,
        {"x": [(0, 1)], "y": [(0, 2)]},
    )


def test_an_adapter_names_one_run_of_the_process(tmp_path: Path) -> None:
    code = """
for _ in range(3):
    with wandb.init(project="p") as run:
        run.log({"x": 1})
"""

    launched(tmp_path, f"import wandb\n{ADAPTER}{code}")

    names = [name for name, _, _ in found(tmp_path)]
    assert (len(names), names.count("one")) == (3, 1)


def test_names_of_the_users_variables_win_over_those_of_wandb(tmp_path: Path) -> None:
    code = "import os, wandb\nos.environ['WANDB_NAME'] = 'theirs'\nwandb.init(project='p').log({'x': 1})\n"

    launched(tmp_path, code, OTEL_BRIDGE_RUN_NAME="ours")

    assert [name for name, _, _ in found(tmp_path)] == ["ours"]


def test_a_name_that_the_program_gives_a_run_later_replaces_a_generated_one_only(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    for named in ({}, {"name": "given"}):
        with wandb.init(project="p", **named) as run:
            run.log({"x": 1})
            run.name = "later"
            run.log({"x": 2})
            assert run.name == "later"
    """

    launched(tmp_path, code)

    assert [name for name, _, _ in found(tmp_path)] == ["given", "later"]


def test_summaries_that_the_bridge_computes_arrive_where_it_reads_a_run_that_has_ended(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    run = wandb.init(project="p", name="a")
    run.define_metric("acc", summary="max,min")
    for value in (1, 3, 2):
        run.log({"acc": value})
    run.summary["best"] = 7
    run.finish()
    """
    env = environment(
        tmp_path, OTEL_BRIDGE_OFFLINE="1", WANDB_BASE_URL="http://127.0.0.1:9"
    )
    captured = f"import otel_bridge\notel_bridge.capture('wandb')\n{code}".replace(
        "\n    ", "\n"
    )
    done = call(
        [PYTHON, program(tmp_path, "train.py", captured)], cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr

    drained = otel_bridge(
        "drain", str(runs(tmp_path)), "--exporters", "file", cwd=tmp_path, env=env
    )

    assert drained.returncode == 0, drained.stderr
    (folder,) = run_folders(runs(tmp_path))
    shown: dict[str, object] = {}
    for record in records(folder):
        shown |= record["summary"] if record["kind"] == "summary" else {}
    assert shown == {"acc.max": 3.0, "acc.min": 1.0, "best": 7}
