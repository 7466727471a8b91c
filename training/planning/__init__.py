"""Memory and speed of a training config, before it runs."""
