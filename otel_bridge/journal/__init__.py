"""Run folders and segments: what lies on disk between the trainer and the bridge."""
