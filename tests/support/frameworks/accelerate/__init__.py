"""Fake of ``accelerate``: an ``Accelerator`` that calls its trackers as the real one does."""

from __future__ import annotations

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker


class Accelerator:
    is_main_process = True

    def __init__(self, log_with=None, cpu=True):
        self.log_with = list(log_with) if isinstance(log_with, list) else [log_with]
        self.trackers = []

    def init_trackers(self, project_name, config=None, init_kwargs=None):
        for tracker in self.log_with:
            if isinstance(tracker, GeneralTracker):
                self.trackers.append(tracker)
            else:
                self.trackers.append(
                    LOGGER_TYPE_TO_CLASS[tracker](
                        project_name, **(init_kwargs or {}).get(tracker, {})
                    )
                )
        for tracker in self.trackers:
            tracker.start()
        if config is not None:
            for tracker in self.trackers:
                tracker.store_init_configuration(config)

    def get_tracker(self, name, unwrap=False):
        (found,) = [one for one in self.trackers if one.name == name]
        return found.tracker if unwrap else found

    def log(self, values, step=None, log_kwargs=None):
        for tracker in self.trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def end_training(self):
        for tracker in self.trackers:
            tracker.finish()
