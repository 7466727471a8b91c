"""The errors of the pipeline that a user can see, in one tree.

    Exception
    ├── PipelineError              the message is all that a user needs; the command line prints no traceback
    │   ├── RunAborted             exit code 1: the run stopped; committed tasks stay done, the same command resumes
    │   │   ├── EngineLost         exit code 1: processes that run the tasks died
    │   │   └── pipeline.runs.run_lock.HeldByAnother    exit code 1: another process works in the run folder
    │   └── TaskFailed             one task failed; the other tasks go on, then the run stops with RunAborted
    └── (defined elsewhere)
        ├── config_files.reader.ConfigError            exit code 2: wrong config or wrong use
        ├── pipeline.runs.run_folder.RunNotFound        exit code 2: there is no run here, or it has not got that far
        ├── pipeline.models.registry.AssetError        exit code 1: a model can neither be fetched nor made
        ├── pipeline.models.kenlm_build.TrainingFailed exit code 1: a model could not be trained
        ├── shardwriter.format.FormatError             exit code 1: a dataset is damaged
        └── storage.StorageError                       exit code 1: a file is damaged (DamagedFile) or cannot be read

Exit code 3 is no error: the run finished, but more input could not be read than the config allows
(`input.max_quarantined_share`, `input.max_lost_files_share`).
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of the pipeline's own errors."""


class RunAborted(PipelineError):
    """The run stopped. Everything that was committed stays and is not done again."""


class EngineLost(RunAborted):
    """The processes that run the tasks died. Nothing needs to be fixed before the run continues."""


class TaskFailed(PipelineError):
    """One task failed. The other tasks of its phase are still finished before the run stops."""
