"""Read a dataset of token shards for training: one row order for any number of ranks, exact resume.

`import loader` needs only numpy and isal. torch is imported when tensors are made, obstore when a
remote dataset is opened.
"""

from loader.order.mixture import Mixture
from loader.read_plan import shards_for_rank
from loader.state import LoaderState
from loader.token_dataset import TokenDataset
from loader.token_loader import TokenLoader

__all__ = ["LoaderState", "Mixture", "TokenDataset", "TokenLoader", "shards_for_rank"]
