"""Attacks on the software: kills, damaged files, full disks, hostile input. `make test-faults` runs all.

    python -m tests.faults                              # all attacks in full form, at most an hour
    python -m tests.faults --small                      # a few tries of each, under a minute
    python -m tests.faults --only 'fuzz' --seed 17      # repeat one try

To add an attack, write it in a module of this folder, and add it to the constant ATTACKS of that
module (a tuple of `Attack`). Attacks are found by that name. docs/faults.md has an example.
"""
