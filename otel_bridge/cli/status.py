"""``otel-bridge status``: what every run of a directory has emitted, delivered, and still waits for."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import orjson
from rich.console import Console

from otel_bridge import settings
from otel_bridge.cli.tables import show
from otel_bridge.journal.folder import RunFolder, base_dir, run_folders
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import read_report


@click.command("status")
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON lines.")
def command(directory: Path | None, as_json: bool) -> None:
    """Show runs, roles, last steps, and what waits for which tracker.

    DIRECTORY holds run folders (default: OTEL_BRIDGE_DIR, else .otel-bridge here), or is a run folder itself.
    """
    folders = folders_of(directory)
    if not folders:
        where = directory or base_dir(settings.environment(), Path.cwd())
        raise click.ClickException(
            f"{where}: no run folder here; pass the folder that holds them, or set OTEL_BRIDGE_DIR"
        )
    console = Console(highlight=False)
    for folder in folders:
        if as_json:
            _print_json(folder)
        else:
            _print(console, folder)


def folders_of(directory: Path | None) -> list[RunFolder]:
    """Return the run folders of *directory*, or the one that it is."""
    base = base_dir(settings.environment(), Path.cwd()) if directory is None else directory
    if (base / "segments").is_dir():
        return [folder for folder in run_folders(base.resolve().parent) if folder.path == base.resolve()]
    return run_folders(base)


def _print(console: Console, folder: RunFolder) -> None:
    report = read_report(folder)
    if report is None:
        waiting_bytes = sum(segment.size_bytes for segment in folder.segments())
        console.print(f"{folder.run_id}: no bridge has read it yet, {waiting_bytes:,} bytes wait", soft_wrap=True)
        console.print(f"  otel-bridge drain {folder.path}", soft_wrap=True)
        return
    show(console, folder.run_id, report, live=probe(folder.lock_path))


def _print_json(folder: RunFolder) -> None:
    report = read_report(folder)
    line = {
        "run_id": folder.run_id,
        "folder": str(folder.path),
        "bridge_alive": probe(folder.lock_path),
        "report": report,
    }
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
