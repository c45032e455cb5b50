"""Fake of ``accelerate.tracking``."""

from __future__ import annotations

import functools

LOGGER_TYPE_TO_CLASS: dict = {}


def on_main_process(function):
    @functools.wraps(function)
    def execute(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    return execute


class GeneralTracker:
    main_process_only = True

    def __init__(self, _blank=False):
        for needed in ("name", "requires_logging_directory", "tracker"):
            assert needed in dir(self), needed

    def start(self): ...

    def store_init_configuration(self, values): ...

    def log(self, values, step=None, **kwargs): ...

    def finish(self): ...


def register_tracker_class(tracker_class):
    LOGGER_TYPE_TO_CLASS[tracker_class.name] = tracker_class
