"""Reads a dataset of shards for training: rank-aware, exact, resumable at once on any number of ranks.

`import loader` needs numpy and isal alone; torch is imported by whoever hands out tensors, obstore for remote
addresses.
"""

from loader.dataset import TokenDataset
from loader.loader import TokenLoader
from loader.mixture import Mixture
from loader.read_plan import shards_for_rank
from loader.state import LoaderState

__all__ = ["LoaderState", "Mixture", "TokenDataset", "TokenLoader", "shards_for_rank"]
