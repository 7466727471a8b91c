"""Attacks on the software: kills, damaged files, full disks, hostile input. `make test-faults` runs all.

To add an attack, write it in a module of this folder, and add it to the constant ATTACKS of that
module (a tuple of `Attack`). Attacks are found by that name. docs/faults.md has an example.
"""
