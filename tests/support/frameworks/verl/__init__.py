"""Fake of ``verl``: it loads plugins as the real one does."""

import importlib
import logging
import os
from importlib.metadata import entry_points

for _module in filter(None, os.getenv("VERL_USE_EXTERNAL_MODULES", "").split(",")):
    importlib.import_module(_module)
if os.getenv("VERL_USE_EXTERNAL_PLUGINS", "auto") != "none":
    for _point in entry_points(group="verl.plugins"):
        try:
            _point.load()
        except Exception as _error:
            logging.getLogger(__name__).debug(
                "Failed to load plugin '%s': %s", _point.name, _error
            )
