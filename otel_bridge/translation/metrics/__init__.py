"""Translation of the metrics and configs of all producers to rows and config records. Pure."""
