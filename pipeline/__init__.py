"""Plan and run the chain. The only package that imports stages, shardwriter and Ray."""
