from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from journal_samples import run_folder

from otel_bridge.errors import JournalError
from otel_bridge.journal.ask import Ask, ask, take_asks
from otel_bridge.journal.folder import RunFolder


def test_what_was_asked_is_taken_once_and_in_order(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)

    ask(folder, "retry", exporter="mlflow")
    ask(folder, "handover", credentials={"WANDB_API_KEY": "secret"})
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.ask_dir.iterdir()}
    first, second = take_asks(folder)

    assert (first.kind, first.values) == ("retry", {"exporter": "mlflow"})
    assert (second.kind, second.values) == ("handover", {"credentials": {"WANDB_API_KEY": "secret"}})
    assert first.time_unix_ns < second.time_unix_ns
    assert (modes, take_asks(folder), list(folder.ask_dir.iterdir())) == ({0o600}, [], [])
    assert "secret" not in repr(second)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "dance", "values": {}, "time_unix_ns": 1}', '{"kind": ["retry"]}', "7"]
)
def test_what_is_no_ask_is_deleted_and_hides_no_other(tmp_path: Path, text: str) -> None:
    folder = run_folder(tmp_path)
    (folder.ask_dir / "0.json").write_text(text)
    (folder.ask_dir / "folder").mkdir()
    (folder.ask_dir / "1.json").write_text('{"kind": "finish", "values": {"status": "failed"}, "time_unix_ns": 5}')

    taken = take_asks(folder)

    assert taken == [Ask("finish", {"status": "failed"}, 5)]
    assert [path.name for path in folder.ask_dir.iterdir()] == ["folder"]


def test_a_half_written_ask_is_left_alone_and_deleted_once_it_is_old(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    young, old = folder.ask_dir / ".1.json.7.tmp", folder.ask_dir / ".0.json.7.tmp"
    for path in (young, old):
        path.write_text('{"kind": "handover"')
    os.utime(old, (time.time() - 3600, time.time() - 3600))

    taken = take_asks(folder)

    assert (taken, young.exists(), old.exists()) == ([], True, False)


def test_an_ask_without_a_run_folder_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="retry cannot be asked there"):
        ask(RunFolder(tmp_path, "none"), "retry")

    assert take_asks(RunFolder(tmp_path, "none")) == []
