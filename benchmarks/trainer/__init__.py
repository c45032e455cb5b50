"""What the training process pays: calls, rollouts, media, memory, and rows lost by a kill."""
