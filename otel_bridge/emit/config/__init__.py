"""Configuration of a run at its start: identity, resource, exporters, hyperparameters."""
