"""Print, as JSON, the parameters of named functions and methods: ``signatures.py module:Class.method …``."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import sys
import typing

if sys.version_info < (3, 12):
    try:
        import typing_extensions
    except ImportError:
        pass
    else:
        typing.TypedDict = (
            typing_extensions.TypedDict
        )  # SkyRL 0.3 needs it for pydantic


def parameters(place: str) -> list[list[object]]:
    """Name, kind and whether there is a default, for each parameter; a property has none."""
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = (
            inspect.getattr_static(found, part)
            if inspect.isclass(found)
            else getattr(found, part)
        )
    if isinstance(found, property):
        return [["property"]]
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if isinstance(found, functools.cached_property):
        found = found.func
    if not callable(found):
        return [[type(found).__name__]]
    given = inspect.signature(found).parameters.values()
    return [
        [one.name, str(one.kind), one.default is not inspect.Parameter.empty]
        for one in given
    ]


if __name__ == "__main__":
    print(
        "signatures", json.dumps({place: parameters(place) for place in sys.argv[1:]})
    )
