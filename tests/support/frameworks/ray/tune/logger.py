"""Fake of ``ray.tune.logger``."""

from __future__ import annotations


class LoggerCallback:
    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info): ...

    def log_trial_start(self, trial): ...

    def log_trial_restore(self, trial): ...

    def log_trial_save(self, trial): ...

    def log_trial_result(self, iteration, trial, result): ...

    def log_trial_end(self, trial, failed=False): ...

    def on_trial_start(self, iteration, trials, trial, **info):
        self.log_trial_start(trial)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.log_trial_result(iteration, trial, result)

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.log_trial_end(trial, failed=False)

    def on_trial_error(self, iteration, trials, trial, **info):
        self.log_trial_end(trial, failed=True)

    def on_experiment_end(self, trials, **info): ...
