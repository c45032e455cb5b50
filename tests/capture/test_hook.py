"""The import hook: which module is captured, and that a program notices nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.capture import hook
from otel_bridge.emit.bridge_process.spawn import bridge_environment, bridge_path
from otel_bridge.emit.config.capture_env import (
    capture_folder,
    capture_variables,
    without_capture,
)
from otel_bridge.errors import ConfigError
from support.trainers.command_runs import PYTHON, call, environment, program

SITE = {"OTEL_BRIDGE_CAPTURE": "trackio", "PYTHONPATH": capture_folder()}
NOT_INSTALLED = (
    f"trackio is to be captured and is not installed in {PYTHON}: pip install trackio"
)
SHOWN = "trackio.init.otel_bridge_capture"


def run_child(folder: Path, code: str, *options: str, **variables: str) -> list[str]:
    """Run *code*; returns the lines that it printed."""
    done = call(
        [PYTHON, *options, program(folder, "child.py", code)],
        cwd=folder,
        env=environment(folder, **variables),
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_an_unknown_name_or_mode_names_what_is_known() -> None:
    with pytest.raises(
        ConfigError,
        match=r"capture\('mlflow'\): expected some of wandb, trackio, tensorboard",
    ):
        otel_bridge.capture("mlflow")
    with pytest.raises(ConfigError, match=r"capture\(no name\)"):
        otel_bridge.capture()
    with pytest.raises(
        ConfigError, match=r"mode='both'\): expected one of replace, tee"
    ):
        otel_bridge.capture("trackio", mode="both")


@pytest.mark.parametrize(
    "code",
    [
        "import otel_bridge; otel_bridge.capture('trackio'); import trackio",
        "import trackio, otel_bridge; otel_bridge.capture('trackio')",
        pytest.param(
            "import otel_bridge; otel_bridge.capture('trackio'); otel_bridge.capture('trackio'); import trackio",
            marks=pytest.mark.long,
        ),
        "import otel_bridge; otel_bridge.capture('trackio'); from trackio.run import Run; import trackio",
        pytest.param(
            "import otel_bridge, importlib; otel_bridge.capture('trackio'); import trackio; importlib.reload(trackio)",
            marks=pytest.mark.long,
        ),
        """
import importlib.util as u, sys, otel_bridge
otel_bridge.capture("trackio")
spec = u.find_spec("trackio")
spec.loader = u.LazyLoader(spec.loader)
trackio = sys.modules["trackio"] = u.module_from_spec(spec)
spec.loader.exec_module(trackio)
""",
        """
import otel_bridge, threading
otel_bridge.capture("trackio")
def load():
    import trackio
threads = [threading.Thread(target=load) for _ in range(8)]
[one.start() for one in threads]
[one.join() for one in threads]
import trackio
""",
    ],
    ids=["before", "after", "twice", "submodule-first", "reload", "lazy", "threads"],
)
@pytest.mark.slow
def test_the_package_is_captured_however_it_is_imported(
    tmp_path: Path, code: str
) -> None:
    assert run_child(tmp_path, f"{code}\nprint({SHOWN})") == ["True"]


def test_what_is_captured_is_known_before_the_program_imports_it(
    tmp_path: Path,
) -> None:
    code = "from otel_bridge.capture.hook import captured; print(captured()); import trackio; print(captured())"

    assert run_child(tmp_path, code, **SITE) == ["frozenset({'trackio'})"] * 2


@pytest.mark.slow
def test_the_module_keeps_its_own_loader_and_spec(tmp_path: Path) -> None:
    code = """
import importlib.util, otel_bridge, sys
otel_bridge.capture("trackio")
spec = importlib.util.find_spec("trackio")
import trackio
print(type(spec.loader).__name__, type(trackio.__loader__).__name__, trackio.__spec__.loader is trackio.__loader__)
print(sorted(vars(trackio.__loader__)), isinstance(trackio.Run, type), spec.origin == trackio.__file__)
"""
    lines = ["SourceFileLoader SourceFileLoader True", "['name', 'path'] True True"]

    assert run_child(tmp_path, code) == lines


@pytest.mark.parametrize(
    "loader",
    [
        "class Loader:\n    load_module = staticmethod(load)",
        """
class Loader:
    __slots__ = ()
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.value = 3
""",
    ],
    ids=["load_module alone", "no attributes"],
)
def test_a_loader_that_cannot_be_extended_is_one_line_and_its_module_is_imported(
    tmp_path: Path, loader: str
) -> None:
    code = f"""
import importlib.machinery, sys, types, otel_bridge
def load(name):
    module = sys.modules[name] = types.ModuleType(name)
    module.value = 3
    return module
{loader}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "trackio":
            return importlib.machinery.ModuleSpec(name, Loader(), origin="memory")
sys.meta_path.insert(0, Finder())
otel_bridge.capture("trackio")
import trackio
print(trackio.value)
"""

    assert run_child(tmp_path, code, "-W", "ignore") == [
        "3",
        "otel-bridge: trackio is not captured and works as usual: its loader is Loader, which cannot be extended",
    ]


def test_a_capture_that_fails_is_one_line_and_the_real_package_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "trackio.py").write_text("value = 3\n", "utf-8")

    lines = run_child(
        tmp_path,
        "import otel_bridge; otel_bridge.capture('trackio'); import trackio; print(trackio.value)",
    )

    assert lines[:1] == ["3"]
    assert [line.partition(": AttributeError")[0] for line in lines[1:]] == [
        "otel-bridge: trackio is not captured and works as usual"
    ]


def test_a_folder_of_that_name_is_not_the_package(tmp_path: Path) -> None:
    (tmp_path / "trackio").mkdir()
    code = "import sys; sys.path[1:] = [p for p in sys.path[1:] if 'site-packages' not in p]\n"

    lines = run_child(
        tmp_path,
        f"import otel_bridge; otel_bridge.capture('trackio')\n{code}import trackio; print(trackio.__path__ != [])",
    )

    assert lines == ["True", f"otel-bridge: {NOT_INSTALLED}"]


def test_a_captured_package_that_is_not_installed_is_one_line_that_names_what_to_install(
    tmp_path: Path,
) -> None:
    code = """
import sys
sys.meta_path[-1].find_spec = lambda name, path=None, target=None, real=sys.meta_path[-1].find_spec: (
    None if name == "trackio" else real(name, path, target))
for _ in range(2):
    try:
        import trackio
    except ModuleNotFoundError as exc:
        print(exc)
"""

    lines = run_child(tmp_path, code, **SITE)

    assert lines == ["No module named 'trackio'"] * 2 + [
        f"otel-bridge: {NOT_INSTALLED}"
    ]


def test_a_program_without_the_package_loads_nothing_of_otel_bridge(
    tmp_path: Path,
) -> None:
    code = "import sys, json; print([m for m in sys.modules if m.startswith('otel_bridge')], sys.path[1][-9:])"

    (line,) = run_child(tmp_path, code, **SITE)

    assert line.startswith("[] ")
    assert "sitecustomize" not in line


@pytest.mark.slow
def test_the_site_folder_captures_when_the_package_is_imported(tmp_path: Path) -> None:
    assert run_child(tmp_path, f"import trackio; print({SHOWN})", **SITE) == ["True"]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-I", "-E"])
def test_an_isolated_interpreter_is_not_captured(tmp_path: Path, option: str) -> None:
    code = "import trackio; print(hasattr(trackio.init, 'otel_bridge_capture'))"

    assert run_child(tmp_path, code, option, **SITE) == ["False"]


def test_the_users_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("value = 7\n", "utf-8")
    path = f"{capture_folder()}:{own}"

    lines = run_child(
        tmp_path, "import sitecustomize, sys; print(sitecustomize.value, len(sys.meta_path))", PYTHONPATH=path,
        OTEL_BRIDGE_CAPTURE="trackio",
    )  # fmt: skip
    plain = run_child(
        tmp_path,
        "import sitecustomize, sys; print(sitecustomize.value, len(sys.meta_path) + 1)",
        PYTHONPATH=str(own),
    )

    assert lines == plain


def test_an_error_in_the_users_sitecustomize_is_shown_as_python_does(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('mine')\n", "utf-8")
    path = f"{capture_folder()}:{own}"

    lines = run_child(
        tmp_path, "print('runs')", PYTHONPATH=path, OTEL_BRIDGE_CAPTURE="trackio"
    )

    assert lines == [
        "runs",
        "Error in sitecustomize; set PYTHONVERBOSE for traceback:",
        "RuntimeError: mine",
    ]


def test_without_otel_bridge_the_program_runs_and_one_line_names_the_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "trackio.py").write_text("value = 3\n", "utf-8")

    code = "import trackio; print(trackio.value)"
    lines = run_child(
        tmp_path, code, "-S", **SITE
    )  # -S: no site-packages, and no sitecustomize by itself
    found = run_child(tmp_path, f"import sys; sys.path.insert(0, {capture_folder()!r}); import sitecustomize; {code}",
                      "-S", **SITE)  # fmt: skip

    assert lines == ["3"]
    assert found == [
        "3",
        "otel-bridge: nothing is captured in this process: No module named 'otel_bridge'",
    ]


def test_the_bridge_gets_neither_the_variables_nor_the_folder() -> None:
    env = {"HOME": "/h", "PYTHONPATH": "/mine"}

    captured = env | capture_variables(env, ["trackio", "tensorboard"], "tee")

    assert captured["PYTHONPATH"] == f"{capture_folder()}:/mine"
    assert without_capture(captured) == env
    assert without_capture({"PYTHONPATH": f"{capture_folder()}/"}) == {}
    assert bridge_environment(captured) == {"HOME": "/h", "OTEL_BRIDGE_NO_BRIDGE": "1"}
    assert bridge_path(["/mine", capture_folder()])[:1] == ["/mine"]
    assert capture_folder() not in bridge_path(["/mine", capture_folder()])


def test_the_site_folder_waits_for_the_packages_of_every_name() -> None:
    source = ast.parse((Path(capture_folder()) / "sitecustomize.py").read_text())
    constants = [node for node in source.body if isinstance(node, ast.Assign)]
    packages = next(
        ast.literal_eval(node.value)
        for node in constants
        if ast.unparse(node.targets[0]) == "_PACKAGES"
    )

    roots = {
        name: {module.partition(".")[0] for module in found}
        for name, (_, found) in hook._TARGETS.items()
    }
    assert {name: set(found) for name, found in packages.items()} == roots
