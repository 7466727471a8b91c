"""Plans and runs the chain: the only package that knows stages and shard writing together, and the only one on Ray."""
