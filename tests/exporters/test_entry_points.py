"""Tests of how exporters are found, whatever a process has imported before."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.metadata import entry_points

import pytest

from otel_bridge import exporter


@pytest.mark.parametrize("name", ["console", "file", "webhook"])
def test_an_exporter_is_the_same_after_each_module_of_its_package_was_imported(
    name: str,
) -> None:
    before = exporter.load(name)
    (entry_point,) = entry_points(group="otel_bridge.exporters", name=name)
    package = importlib.import_module(entry_point.module)
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

    assert entry_point.load() is before
