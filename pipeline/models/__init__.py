"""Models and texts: the registry, downloads, the cache, and training."""
