"""Which rollouts of a step are kept: one rule for the emitter's pre-selection and the bridge's choice."""
