"""Import hook of the capture: lets the real package load, then installs the capture in it.

The module's own loader stays in its ``__spec__``. Reloads and lazy imports run the hook again. If
the installation fails, one line on stderr names the reason and the program continues with the real
package.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading

TYPE_CHECKING = (
    False  # importing `typing` would cost every captured program some milliseconds
)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_TARGETS = {
    "wandb": ("otel_bridge.capture.wandb.sdk", ("wandb",)),
    "trackio": ("otel_bridge.capture.trackio_sdk", ("trackio",)),
    "tensorboard": (
        "otel_bridge.capture.tensorboard",
        (
            "tensorboard.summary.writer.event_file_writer",
            "tensorboardX.event_file_writer",
        ),
    ),
    # A framework that writes its rollouts to files, and has no place for a logger of the user's.
    "open_instruct": (
        "otel_bridge.adapters.open_instruct",
        ("open_instruct.rl_utils", "open_instruct.data_loader"),
    ),
    # The timers of slime, and of its fork miles.
    "slime": (
        "otel_bridge.adapters.parts.slime_timers",
        ("slime.observability.timer", "slime.utils.timer", "miles.utils.timer"),
    ),
}
"""Maps a package to its capture module and to the modules in which the capture is installed."""
KNOWN = tuple(_TARGETS)


def capture(*names: str, mode: str | None = None) -> None:
    """Record in otel-bridge what this program logs to other trackers, before or after it imports them.

    Args:
        names: ``wandb``, ``trackio``, ``tensorboard``, ``open_instruct``, ``slime``; none: those of
            ``OTEL_BRIDGE_CAPTURE``.
        mode: ``replace`` (the tracker itself gets nothing) or ``tee`` (both get everything);
            default: ``OTEL_BRIDGE_CAPTURE_MODE``, else ``replace``.

    Raises:
        ConfigError: A name or the mode is unknown, or the name is captured in another mode already.
    """
    from otel_bridge.settings import CAPTURE, CAPTURE_MODE, NO_BRIDGE  # noqa: PLC0415  # see TYPE_CHECKING

    requested_mode = CAPTURE_MODE.read() if mode is None else mode
    requested_names = names or CAPTURE.read()
    _check(requested_names, requested_mode)
    if NO_BRIDGE.read():  # the bridge writes with the real packages
        return
    for name in requested_names:
        _finder.add(name, requested_mode)


def _check(names: Sequence[str], mode: str) -> None:
    """Raise `ConfigError` if a name or the mode is unknown, or a name is captured in another mode already."""
    from otel_bridge.errors import ConfigError  # noqa: PLC0415
    from otel_bridge.settings import CAPTURE_MODES  # noqa: PLC0415

    unknown = [name for name in names if name not in _TARGETS]
    if unknown or not names:
        listed = ", ".join(map(repr, unknown)) or "no name"
        raise ConfigError(f"capture({listed}): expected some of {', '.join(KNOWN)}")
    if mode not in CAPTURE_MODES:
        raise ConfigError(
            f"capture(mode={mode!r}): expected one of {', '.join(CAPTURE_MODES)}"
        )
    for name in names:
        earlier_mode = _finder.modes.get(name, mode)
        if earlier_mode != mode:
            raise ConfigError(
                f"capture({name!r}, mode={mode!r}): it is captured in mode {earlier_mode!r} already"
            )


def captured() -> frozenset[str]:
    """Return the names of the trackers that this process captures, also those that it has not imported yet.

    The finder of `sitecustomize` knows names before this module knows them: it hands them over at
    the first import of a captured package.
    """
    waiting: Any = [
        getattr(finder, "otel_bridge_names", ()) for finder in sys.meta_path
    ]
    return frozenset(_finder.modes).union(*waiting)


def find(
    name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return the spec of a captured module, for the finder of `sitecustomize` at the import that loads this module.

    ``None`` for every other module, and when nothing is captured, which leaves the import to the
    other finders.
    """
    if _finder in sys.meta_path:
        return _finder.find_spec(name, path, target)
    return None


def release() -> None:
    """Remove the import hooks of the capture from this process.

    Packages that were imported before stay captured. A later `capture` puts the hook back.

    The command ``otel-bridge`` writes with the real packages, and may be started by a captured
    program.
    """
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if not getattr(finder, "otel_bridge_capture", False)
    ]


class _CaptureFinder:
    """Finds the modules of captured packages with the other finders, and installs the capture after they have run."""

    otel_bridge_capture = True

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}
        self._modules: dict[str, str] = {}
        self._missing: set[str] = set()
        # Of each thread: an import in another thread is not a search within this one.
        self._searching = threading.local()
        self._lock = threading.Lock()

    def add(self, name: str, mode: str) -> None:
        """Capture *name*, also where its modules are imported already.

        A name that is captured already keeps what is installed. Nothing raises, see `_install`.
        """
        modules = _TARGETS[name][1]
        with self._lock:
            # Under the lock: of two threads that capture a name one installs it.
            new = name not in self.modes
            self.modes[name] = mode
            self._modules.update(dict.fromkeys(modules, name))
            if self not in sys.meta_path:
                # Ahead of the other finders, which would load the module without the capture.
                sys.meta_path.insert(0, self)
        for module in modules:
            if new and module in sys.modules:
                # Waits for another thread that imports it.
                self._install(importlib.import_module(module), name)

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of another finder, whose loader installs the capture.

        ``None`` for every other module.

        ``None`` also while this very search asks the other finders, since one of them may search
        with all of `sys.meta_path`, and where none has the package: then one line says so, and the
        import fails as without the capture. What another finder raises is raised.
        """
        if name not in self._modules:
            return None
        under_way: set[str] = self._searching.__dict__.setdefault("names", set())
        if name in under_way:  # another hook searches with all finders
            return None
        under_way.add(name)
        try:
            spec = _search(name, path, target)
        finally:
            under_way.discard(name)
        # A folder named wandb is not the package.
        if spec is None or spec.loader is None or spec.origin is None:
            self._report_missing(name)
            return None
        self._install_after(spec.loader, name)
        return spec

    def _report_missing(self, name: str) -> None:
        """Print one line for a captured package that this Python does not have, the first time that it is imported.

        Only for a name that is a package: TensorBoard's writers are in either of two packages, and
        a program may have one.
        """
        if name in self.modes and name not in self._missing:
            self._missing.add(name)
            _print(
                f"{name} is to be captured and is not installed in {sys.executable}: pip install {name}"
            )

    def _install_after(self, loader: Any, name: str) -> None:
        """Let *loader* install the capture after it has executed the module *name*, once.

        One line names a loader that executes no modules (`load_module` alone) or takes no
        attribute: the program gets the module without the capture. A module that raises is not
        captured, and its next import comes here again.
        """

        def exec_module(module: ModuleType) -> None:
            """Execute *module* as without the capture, whose exceptions pass, then install the capture."""
            if (
                getattr(module.__spec__, "name", "") != name
            ):  # a loader of several modules
                original(module)
                return
            # First: a module that raises, or imports itself, must find the loader as it was.
            loader.__dict__.pop("exec_module", None)
            original(module)
            self._install(module, self._modules[name])

        try:
            original: Callable[[ModuleType], object] = loader.exec_module
            loader.exec_module = exec_module  # of this loader alone, not of its class
        except AttributeError:
            _report(
                name, f"its loader is {type(loader).__name__}, which cannot be extended"
            )

    def _install(self, module: ModuleType, name: str) -> None:
        """Install the capture of the package *name* in *module*; print one line if that fails.

        The line is all: a capture that cannot be installed, e.g. in an old version of the package,
        leaves the program with the real package.
        """
        try:
            importlib.import_module(_TARGETS[name][0]).install(module, self.modes[name])
        except Exception as exc:  # noqa: BLE001  # the program must continue
            _report(name, f"{type(exc).__name__}: {exc}")


def _search(
    name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the spec of the first finder that has *name*, captures left out.

    ``None`` when none has it.

    Raises whatever a finder raises, as an import without the capture does.
    """
    # A copy, since a finder may import what adds another one.
    for finder in list(sys.meta_path):
        search: Any = getattr(finder, "find_spec", None)
        if search is None or getattr(finder, "otel_bridge_capture", False):
            continue
        spec: ModuleSpec | None = search(name, path, target)
        if spec is not None:
            return spec
    return None


def _report(name: str, reason: str) -> None:
    _print(f"{name} is not captured and works as usual: {reason}")


def _print(line: str) -> None:
    """Write *line* to stderr, whose Python object the program may have replaced.

    A closed stderr is ignored.
    """
    try:
        os.write(2, f"otel-bridge: {line}\n".encode("utf-8", "replace"))
    except OSError:
        return


_finder = _CaptureFinder()
