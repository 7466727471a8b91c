"""Imported by the fork server after all other modules: excludes them from garbage collection.

A collection otherwise scans the modules of torch, and copies the pages of their objects that
forked processes share.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
