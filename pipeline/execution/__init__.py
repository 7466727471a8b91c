"""Runs a plan, in this process or on Ray Data."""
