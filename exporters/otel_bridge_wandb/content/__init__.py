"""What W&B is given: rows as flat dicts, rollouts as tables, media and alerts."""
