"""Take documents out of a finished dataset on request: takedowns, opt-outs, changed robots.txt.

`retract` records a request in the run folder and applies it to the dataset; `apply_requests`
applies all recorded requests to a dataset that a later run has written. See docs/retraction.md.
"""

from pipeline.retraction.apply import apply_requests
from pipeline.retraction.retract import Retraction, retract

__all__ = ["Retraction", "apply_requests", "retract"]
