"""Lines of a service's log: one a thing, whatever words of a client they hold."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import warnings
from pathlib import Path

import pytest

from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.serve.log import PrintedLines, ServiceLog
from otel_bridge.errors import ConfigError
from support.bridge.bridge_doubles import report_when
from support.collector.service_process import folder_of, service
from support.trainers.command_runs import environment, otel_bridge
from support.waiting import ANSWER_S

HOSTILE = "/x\r\n2026-01-01T00:00:00.000Z otel-bridge: ended\x1b[2J\x00 naïve 漢"


def test_what_a_client_sends_makes_no_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ServiceLog(as_json=False).log_line(HOSTILE)
    ServiceLog(as_json=True).log_line(HOSTILE)

    plain, more, written = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\S+Z otel-bridge: /x\\r", plain)
    assert (
        more == r"    2026-01-01T00:00:00.000Z otel-bridge: ended\x1b[2J\x00 naïve 漢"
    )
    assert json.loads(written)["message"] == HOSTILE


def test_what_the_receiver_stands_on_is_said_in_the_same_form_and_no_longer_than_it_lives(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ServiceLog(as_json=True):
        for name in ("asyncio", "uvicorn.error", "otel_bridge_collector.http"):
            logging.getLogger(name).error("of %s", name)

    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["level"], one["message"]) for one in said] == [
        ("error", "of asyncio"),
        ("error", "of uvicorn.error"),
        ("error", "of otel_bridge_collector.http"),
    ]
    assert not any(isinstance(one, ServiceLog) for one in logging.getLogger().handlers)


def test_a_wrong_call_of_a_library_s_logger_raises_nothing_in_its_thread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Outside of the tree of loggers, where pytest's own handler raises for such a call.
    library = logging.Logger("a_library")  # noqa: LOG001
    with ServiceLog(as_json=True) as log:
        library.addHandler(log)
        library.error("%d rows", "many")
        library.error("goes on")

    messages = [
        json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()
    ]
    assert "Message: '%d rows'" in messages
    assert messages[-1] == "goes on"


def test_a_finaliser_may_log_while_its_own_thread_writes_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []

    class Stream:
        def write(self, line: str) -> None:
            # As garbage collection does at any allocation.
            if not lines:
                lines.append("")
                logging.getLogger("asyncio").error("Task was destroyed")
            lines.append(line.partition(": ")[2])

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Stream())
    with ServiceLog(as_json=False) as log:
        thread = threading.Thread(target=log.log_line, args=("a line",), daemon=True)
        thread.start()
        thread.join(ANSWER_S)

    assert lines == ["", "Task was destroyed\n", "a line\n"]


def test_a_line_that_its_thread_left_unfinished_is_not_the_beginning_of_another_one() -> (
    None
):
    lines: list[str] = []
    printed = PrintedLines(sys.stdout, lines.append)
    for text in ("progress 37%", "loading model\n"):
        thread = threading.Thread(target=printed.write, args=(text,))
        thread.start()
        thread.join()

    assert lines == ["progress 37%", "loading model"]


def test_what_trackers_log_and_print_are_json_lines_of_their_streams(
    capsys: pytest.CaptureFixture[str],
) -> None:
    streams = sys.stdout, sys.stderr
    with ServiceLog(as_json=True) as log:
        own = logging.getLogger("tracker_with_a_handler_of_its_own")
        own.propagate = False
        own.addHandler(logging.StreamHandler())
        own.handlers[0].setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        )
        own.warning("tables are updated\nfor %s", "v2")
        logging.getLogger("a_library.runtime").warning("of a library")
        warnings.warn("old call", DeprecationWarning, stacklevel=1)
        print("10%\r50%\r100%\r")
        print("half of a ", end="")
        other = threading.Thread(target=print, args=("of a thread \udcff",))
        other.start()
        other.join()
        log.log_run_line("r1: a line of the bridge")
        log.log_run_line("r\udcff: of an odd folder")
        print("line")
        print("not ended", end="")
        sys.stderr.write(f"wandb: ERROR a very {'long ' * 20_000}line")

    read = capsys.readouterr()
    shown = [
        (one["level"], one["message"]) for one in map(json.loads, read.err.splitlines())
    ]
    assert shown[0][0] == "warning"
    assert shown[0][1].endswith(
        "WARNING tracker_with_a_handler_of_its_own: tables are updated"
    )
    assert shown[1:3] == [("info", "for v2"), ("warning", "of a library")]
    assert (shown[3][0], "DeprecationWarning: old call" in shown[3][1]) == (
        "warning",
        True,
    )
    assert shown[4] == ("info", "a line of the bridge")
    assert shown[5] == ("info", "of an odd folder")
    assert (shown[6][0], shown[6][1][:21]) == ("error", "wandb: ERROR a very l")
    assert len(shown) == 7
    printed = [json.loads(line)["message"] for line in read.out.splitlines()]
    assert printed == ["100%", "of a thread ?", "half of a line", "not ended"]
    assert (sys.stdout, sys.stderr) == streams


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("DIR is not valid"), 1),
        (ValueError("a mistake"), 1),
        (WrongCallError("no such run"), 2),
    ],
)
def test_the_error_that_ends_a_service_is_a_line_of_its_log(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    with pytest.raises(SystemExit) as ended, ServiceLog(as_json=True):
        raise error

    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, json.loads(line)["level"]) == (code, "error")
    assert json.loads(line)["message"].strip().endswith(str(error))


@pytest.mark.long
def test_every_line_of_a_service_that_delivers_to_mlflow_is_json(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/new.db")
    with service(
        tmp_path, env, "--exporters", "mlflow", "--log-format", "json"
    ) as running:
        assert running.send(1, 2) == 200
        report_when(
            folder_of(tmp_path), lambda report: report.exporters["mlflow"].written >= 2
        )
        taken = otel_bridge("serve", "--log-format", "json", cwd=tmp_path, env=env)
        _, rest = running.end()

    messages = [
        json.loads(line)["message"] for line in [running.first, *rest.splitlines()]
    ]
    assert messages[-1] == "ended; nothing remains"
    assert "is already served by" in json.loads(taken.stderr)["message"]
    assert taken.returncode == 1
