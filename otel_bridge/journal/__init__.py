"""Run folders and segments: the files on disk between the trainer and the bridge."""
