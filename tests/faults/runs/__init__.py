"""Attacks on whole runs of the pipeline: kills, full disks, paused and rival drivers."""
