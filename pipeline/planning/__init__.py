"""Plans of runs: input splits, fingerprints, previous runs, and the models that a plan needs."""
