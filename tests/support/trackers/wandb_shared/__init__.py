"""W&B's shared mode: a job of several machines, and what each of them is."""
