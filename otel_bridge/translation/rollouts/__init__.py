"""Translation of spans to rollouts, with sampling, statistics and evaluations. Pure."""
