"""A real, small RL job: a numpy policy learns to use a calculator; three roles in four processes."""
