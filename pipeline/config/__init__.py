"""The YAML file of a run: its sections, keys, ranges and defaults.

There is one section per phase, and inside it one section per stage, with the name of the
stage. `null` turns an optional part off. A phase's fingerprint contains its section.

    config = load("configs/ccnet.yaml", ["select.language.min_score=0.65"])
    config.select.language.min_score     # 0.65
"""

from pipeline.config.engine import EngineConfig, PhaseResources
from pipeline.config.input import (
    CommonCrawl,
    InputConfig,
    PageQuery,
    SampleCrawl,
    TextInput,
)
from pipeline.config.load import change, load
from pipeline.config.run import ReportConfig, RunConfig
from pipeline.config.storage import StorageConfig

__all__ = [
    "CommonCrawl",
    "EngineConfig",
    "InputConfig",
    "PageQuery",
    "PhaseResources",
    "ReportConfig",
    "RunConfig",
    "SampleCrawl",
    "StorageConfig",
    "TextInput",
    "change",
    "load",
]
