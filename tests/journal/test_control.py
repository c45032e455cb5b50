from __future__ import annotations

import os
import resource
import stat
import time
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.journal.control import (
    ControlRequest,
    delete_control_request,
    receive_control,
    send_control,
)
from otel_bridge.journal.folder import RunFolder
from support.otlp.journal_samples import run_folder


def test_what_was_asked_is_read_in_order_until_it_is_deleted(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)

    send_control(folder, "retry", exporter="mlflow")
    send_control(folder, "handover", credentials={"WANDB_API_KEY": "secret"})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.control_dir.iterdir()}
    first, second = receive_control(folder)
    again = receive_control(folder, read_before={first.name})
    deleted = [delete_control_request(folder, one) for one in (first, second, second)]

    assert (first.kind, first.values) == ("retry", {"exporter": "mlflow"})
    assert (second.kind, second.values) == (
        "handover",
        {"credentials": {"WANDB_API_KEY": "secret"}},
    )
    assert first.time_unix_ns < second.time_unix_ns
    assert (modes, again, deleted) == ({0o600}, [second], [True, True, False])
    assert (receive_control(folder), list(folder.control_dir.iterdir())) == ([], [])
    assert "secret" not in repr(second)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"kind": "dance", "values": {}, "time_unix_ns": 1}',
        '{"kind": ["retry"]}',
        "7",
    ],
)
def test_what_is_not_an_ask_is_deleted_and_hides_no_other(
    tmp_path: Path, text: str
) -> None:
    folder = run_folder(tmp_path)
    (folder.control_dir / "0.json").write_text(text)
    (folder.control_dir / "folder").mkdir()
    (folder.control_dir / "1.json").write_text(
        '{"kind": "finish", "values": {"status": "failed"}, "time_unix_ns": 5}'
    )

    taken = receive_control(folder)

    assert taken == [ControlRequest("finish", {"status": "failed"}, 5)]
    assert sorted(path.name for path in folder.control_dir.iterdir()) == [
        "1.json",
        "folder",
    ]


def test_a_half_written_ask_is_left_alone_and_deleted_once_it_is_old(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    young, old = (
        folder.control_dir / ".1.json.7.tmp",
        folder.control_dir / ".0.json.7.tmp",
    )
    for path in (young, old):
        path.write_text('{"kind": "handover"')
    os.utime(old, (time.time() - 3600, time.time() - 3600))

    taken = receive_control(folder)

    assert (taken, young.exists(), old.exists()) == ([], True, False)


def test_an_ask_without_a_run_folder_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="the request retry cannot be written"):
        send_control(RunFolder(tmp_path, "none"), "retry")

    assert receive_control(RunFolder(tmp_path, "none")) == []


def test_an_ask_on_a_full_disk_says_that_space_is_missing(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(JournalError, match="; free space on that disk"):
            send_control(folder, "retry")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
