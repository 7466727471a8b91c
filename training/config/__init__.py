"""The YAML file of a training run: every key, its range and its meaning.

Loading checks that the config is consistent in itself. What depends on the number of ranks or on
the dataset is checked when the run starts, before the first step.

    config = load_config("train-tiny.yaml", ["steps=20"])
    config.parallel.strategy             # "zero2"
"""

from training.config.base import Section
from training.config.data import DataConfig, SourceConfig
from training.config.model import LoraConfig, ModelConfig, RopeScaling
from training.config.optimizer import AnomalyGuardConfig, OptimizerConfig
from training.config.outputs import (
    CheckpointConfig,
    ObservabilityConfig,
    PrometheusConfig,
    TasksConfig,
    ValidationConfig,
)
from training.config.parallel import ParallelConfig, PrecisionConfig
from training.config.run import AdvancedConfig, TrainConfig, load_config

__all__ = [
    "AdvancedConfig",
    "AnomalyGuardConfig",
    "CheckpointConfig",
    "DataConfig",
    "LoraConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "PrometheusConfig",
    "RopeScaling",
    "Section",
    "SourceConfig",
    "TasksConfig",
    "TrainConfig",
    "ValidationConfig",
    "load_config",
]
