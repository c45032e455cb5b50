"""What a run is begun with: identity, resource, exporters, hyperparameters."""
