"""Fuzzing: mutated inputs, made by Hypothesis from real and generated files."""
