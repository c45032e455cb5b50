"""``python bridge_forks.py BASE FILE MODE``: a bridge into `bridge_file_tracker`'s file for each fork (see `forks`)."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from otel_bridge.bridge.supervisor import BridgeSupervisor
from support.bridge.bridge_doubles import options
from support.bridge.bridge_file_tracker import file_exporter
from support.trainers.forks import Forks, fork_for_each_line, forks


def forked_bridges(base: Path, file: Path, mode: str) -> AbstractContextManager[Forks]:
    """Bridges over *base* into *file*; in *mode* ``durable`` the tracker says what it holds."""
    return forks(__file__, str(base), str(file), mode)


def main(base: Path, file: Path, mode: str) -> None:
    exporter = file_exporter(file, reports_durable=mode == "durable")
    how = options()
    how = replace(
        how, exporter_env=replace(how.exporter_env, load=lambda name: exporter)
    )
    fork_for_each_line(lambda _: BridgeSupervisor(base, how, until_done=True).serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
