"""What is built is what is meant: the wheel, the sdist, their entry points, and an installation without extras."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import otel_bridge
from support.waiting import HANG_S

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PACKAGES: list[str] = CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
NAMES = sorted(Path(package).name for package in PACKAGES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(ROOT)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = (
        "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (built,) = folder.glob("*.tar.gz")
    return built


def modules_here() -> set[str]:
    """Every file of every package, as the wheel should hold it."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(str(Path(package).name / path.relative_to(ROOT / package)))
    return found


def test_the_list_of_packages_names_every_package_there_is() -> None:
    roots = [ROOT, ROOT / "exporters", ROOT / "collector"]
    found = {
        path.parent.name
        for root in roots
        for path in root.glob("otel_bridge*/__init__.py")
    }

    assert sorted(found) == NAMES


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert files == modules_here()
    assert {Path(name).suffix for name in files} == {".py", ".html", ".typed"}


def test_every_package_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        typed = sorted(
            Path(name).parent.name
            for name in archive.namelist()
            if name.endswith("/py.typed")
        )

    assert typed == NAMES


@pytest.mark.long
def test_the_sdist_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        # A filter is known to the later releases of each Python only; it is our own archive.
        archive.extractall(
            tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )
    (source,) = tmp_path.iterdir()
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*command, "-w", str(tmp_path / "out"), str(source)], check=True)
    (again,) = (tmp_path / "out").glob("*.whl")

    with zipfile.ZipFile(again) as left, zipfile.ZipFile(wheel) as right:
        assert {i.filename: i.CRC for i in left.infolist()} == {
            i.filename: i.CRC for i in right.infolist()
        }


def test_every_entry_point_of_the_wheel_is_there(wheel: Path) -> None:
    points = ConfigParser(delimiters="=")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            name for name in archive.namelist() if name.endswith("/entry_points.txt")
        )
        points.read_string(archive.read(name).decode())

    loaded = {
        (group, key): _loaded(EntryPoint(key, value, group))
        for group in points.sections()
        for key, value in points[group].items()
    }

    declared = {
        **CONFIG["project"]["entry-points"],
        "console_scripts": CONFIG["project"]["scripts"],
    }
    assert set(loaded) == {
        (group, key) for group, keys in declared.items() for key in keys
    }
    assert None not in loaded.values()


def _loaded(point: EntryPoint) -> object:
    """Return what *point* names; of a plugin that wraps the classes of verl, which is not here, where it lies."""
    return (
        importlib.util.find_spec(point.module)
        if point.group == "verl.plugins"
        else point.load()
    )


def test_every_public_name_is_there() -> None:
    assert [
        name for name in otel_bridge.__all__ if not hasattr(otel_bridge, name)
    ] == []
    assert list(otel_bridge.__all__) == sorted(otel_bridge.__all__)


@pytest.mark.parametrize(
    "module",
    ["exporters.otel_bridge_wandb", "collector.otel_bridge_collector", "exporters"],
)
def test_a_source_root_may_not_be_imported_as_a_package(
    tmp_path: Path, module: str
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f"import {module}\n\nprint({module})\n", "utf-8")

    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--config",
        str(ROOT / "pyproject.toml"),
        "--select",
        "TID251",
    ]
    done = subprocess.run(
        [*command, str(file)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, "a source root, not a package" in done.stdout) == (
        1,
        True,
    ), done.stdout


def test_no_module_of_otel_bridge_imports_a_source_root_as_a_package() -> None:
    for name in NAMES:
        importlib.import_module(name)

    assert [
        name for name in sys.modules if name.split(".")[0] in {"exporters", "collector"}
    ] == []


# --- installed without extras -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and what it needs, nothing else; returns its Python."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True
    )
    return python


def in_bare(
    python: Path, folder: Path, code: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    env: Mapping[str, str] = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(folder),
        **variables,
    }
    command = [str(python), "-c", textwrap.dedent(code)]
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


@pytest.mark.long
def test_without_extras_a_held_run_is_appended_and_drained_into_files(
    bare: Path, tmp_path: Path
) -> None:
    code = """
        import sys, otel_bridge
        run = otel_bridge.init("plain", "held", exporters="file")
        for step in range(10):
            run.log({"loss": 1.0 / (step + 1)}, step=step)
        run.finish(timeout_s=0)
        print(sorted({"wandb", "mlflow", "trackio", "grpc", "numpy"} & set(sys.modules)))
    """

    held = in_bare(bare, tmp_path, code, OTEL_BRIDGE_OFFLINE="1")
    drained = in_bare(
        bare, tmp_path, "from otel_bridge.cli import main; main(['drain'])"
    )

    lines = [
        line
        for file in tmp_path.glob(".otel-bridge/*/file/*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert (held.returncode, held.stdout.strip()) == (0, "[]"), held.stderr
    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert len([line for line in lines if '"kind":"row"' in line]) == 10


@pytest.mark.long
@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "trackio"])
def test_without_its_extra_a_tracker_is_an_error_that_names_it(
    bare: Path, tmp_path: Path, tracker: str
) -> None:
    code = f"""
        import otel_bridge
        try:
            otel_bridge.init("plain", "missing", exporters="{tracker}")
        except otel_bridge.MissingExtraError as exc:
            print(exc)
    """

    done = in_bare(bare, tmp_path, code)

    said = f"exporter '{tracker}' needs {tracker}: pip install 'otel-bridge[{tracker}]'; or leave this environment"
    assert done.stdout.startswith(said), done.stdout + done.stderr
    assert not (tmp_path / ".otel-bridge").exists()


@pytest.mark.long
def test_without_extras_the_commands_work_and_run_receives_over_http(
    bare: Path, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    program = """
        import os, urllib.request
        import otel_bridge
        otel_bridge.init("plain", "run").log({"loss": 1.0})
        headers = {"Content-Type": "application/x-protobuf"}
        sent = urllib.request.Request(os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/metrics", b"", headers)
        print(urllib.request.urlopen(sent, timeout=60).status)
    """
    script.write_text(textwrap.dedent(program), "utf-8")
    code = f"from otel_bridge.cli import main; main(['run', '--exporters', 'file', '--', {str(bare)!r}, 'train.py'])"

    done = in_bare(bare, tmp_path, code)

    assert (done.returncode, done.stdout.split()) == (0, ["200"]), done.stderr
    assert os.listdir(tmp_path / ".otel-bridge")
