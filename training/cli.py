"""The command line `python -m training`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from terminal_output import escape_output

if TYPE_CHECKING:
    from training.config import TrainConfig
    from training.parallel.distributed import RankContext

# torch takes seconds to import. Commands import it themselves, so that --help is fast.


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    STOPPED = 4


class Dtype(StrEnum):
    """Dtype of exported weights."""

    BF16 = "bf16"
    FP32 = "fp32"


class Launcher(StrEnum):
    """Program that starts the ranks."""

    TORCHRUN = "torchrun"
    RAY = "ray"


app = typer.Typer(
    name="training",
    help="Train a decoder with DDP or FSDP. Runs resume exactly, on any number of ranks.\n\n"
    "Exit codes: 0 done; 1 failed (complete checkpoints remain); 2 wrong config or usage; "
    "4 stopped by SIGTERM or Ctrl-C after saving a checkpoint.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ConfigArgument = Annotated[
    str, typer.Argument(help="YAML file, or name of a file in configs/.", metavar="CONFIG")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, such as parallel.strategy=zero3. Repeat it for more keys.",
    ),
]
LauncherOption = Annotated[
    Launcher,
    typer.Option(
        help="torchrun: this process is one rank, of several under torchrun. "
        "ray: start the ranks on Ray."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With ray: number of ranks. [default: one per GPU of the cluster]",
        metavar="N",
    ),
]
MaxFailuresOption = Annotated[
    int,
    typer.Option(
        min=-1,
        help="With ray: how often lost ranks are restarted; -1 is unlimited.",
        metavar="M",
    ),
]
GpusOption = Annotated[
    int, typer.Option(help="Number of GPUs; each runs one rank.", metavar="N")
]
TokensOption = Annotated[
    float | None,
    typer.Option(
        help="Tokens to train on, such as 100e9. [default: those of the config's steps]"
    ),
]


@app.callback()
def set_up() -> None:
    """Print log messages to stderr; of several ranks, only rank 0 prints INFO."""
    from training.observability.console import configure_logging

    # The process group does not exist yet; torchrun gives the rank in the environment.
    configure_logging(is_first_rank=os.environ.get("RANK", "0") == "0")


@contextmanager
def _join_ranks(config: TrainConfig) -> Generator[RankContext]:
    """Join the process group of the launcher, and leave it at the end."""
    from training.parallel.distributed import init_distributed, shutdown_distributed

    dump_dir = Path(config.run_dir) / "hang"
    try:
        yield init_distributed(
            config.parallel,
            timeout_s=config.advanced.start_timeout_s,
            dump_dir=dump_dir,
            eager_connections=config.advanced.eager_connections,
        )
    finally:
        shutdown_distributed()


@app.command()
def run(
    config: ConfigArgument,
    overrides: SetOption = None,
    launcher: LauncherOption = Launcher.TORCHRUN,
    workers: WorkersOption = None,
    max_failures: MaxFailuresOption = 3,
) -> None:
    """Train, or resume from the newest checkpoint.

    Use torchrun for several ranks. With several nodes, run_dir must be on a volume that all nodes
    mount under the same path. With ray, RAY_ADDRESS names the cluster, on which this
    package must be installed; without it, Ray is started on this machine.
    """
    from training.config import load_config

    train_config = load_config(config, overrides or ())
    if launcher is Launcher.RAY:
        from training.ray_launcher import launch

        result = launch(train_config, num_workers=workers, max_failures=max_failures)
    else:
        from training.trainer import train

        with _join_ranks(train_config) as context:
            result = train(train_config, context)
    sys.exit(ExitCode.STOPPED if result.was_stopped else ExitCode.DONE)


@app.command()
def plan(
    config: ConfigArgument,
    gpus: GpusOption,
    gpu: Annotated[
        str, typer.Option(help="GPU type: h100-80gb, a100-40gb, ...")
    ] = "h100-80gb",
    tokens: TokensOption = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            help="Model FLOPs utilization to assume, 0..1. [default: the published one of the "
            "nearest shape]"
        ),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Estimate memory and time without training.

    Compares the config with other strategies. If it does not fit, the exit code is 1, and changes
    that make it fit are listed.
    """
    from terminal_output.console import SafeConsole
    from training.config import load_config
    from training.planning.gpus import find_gpu
    from training.planning.plan import find_vocab_size, make_plan
    from training.planning.report import print_plan

    train_config = load_config(config, overrides or ())
    result = make_plan(
        train_config,
        num_gpus=gpus,
        gpu=find_gpu(gpu),
        vocab_size=find_vocab_size(train_config),
        mfu=mfu,
        tokens=tokens,
    )
    # Piped output has no terminal width; rich would cut the table at 80 columns.
    print_plan(result, SafeConsole(width=None if sys.stdout.isatty() else 160))
    sys.exit(ExitCode.DONE if result.configured.fits(result.gpu) else ExitCode.FAILED)


@app.command("eval")
def eval_(
    config: ConfigArgument,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A checkpoint. [default: the newest one of the run]"),
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Evaluate a checkpoint on held-out documents and tasks.

    The figures are those that training logs at this step. They are printed as JSON. Use torchrun
    for several ranks, of any number.
    """
    from training.config import load_config
    from training.evaluation.evaluations import evaluate_checkpoint

    train_config = load_config(config, overrides or ())
    with _join_ranks(train_config) as context:
        path, figures = evaluate_checkpoint(train_config, context, checkpoint)
        if context.is_first:
            print(json.dumps({"checkpoint": str(path), **figures}, indent=1))


@app.command()
def bench(
    config: ConfigArgument,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure.")] = 10,
    overrides: SetOption = None,
) -> None:
    """Measure speed and memory on random rows.

    The figures of the plan are printed beside the measured ones. As many steps run before, for
    compilation. The data of the config is not read, and nothing is saved. Use torchrun for several
    ranks.
    """
    from training.bench import describe, measure, plan_figures
    from training.config import load_config
    from training.planning.plan import find_vocab_size

    train_config = load_config(config, overrides or ())
    vocab_size = find_vocab_size(train_config)
    with _join_ranks(train_config) as context:
        measured = measure(train_config, context, vocab_size, steps)
        if measured is not None:
            planned = plan_figures(train_config, context, vocab_size)
            num_ranks = context.world_size
            lines = describe(train_config, num_ranks, vocab_size, measured, planned)
            print("\n".join(lines))


@app.command()
def sweep(
    config: ConfigArgument,
    rates: Annotated[
        list[float], typer.Option("--lr", help="A learning rate. Repeat it for more rates.")
    ],
    overrides: SetOption = None,
) -> None:
    """Train with several learning rates, and compare the losses.

    The runs have the same seed and rows, in run_dir/lr-RATE. Started again, the sweep goes on.
    """
    from training.config import load_config
    from training.sweep import format_table, sweep

    train_config = load_config(config, overrides or ())
    with _join_ranks(train_config) as context:
        runs = list(sweep(train_config, rates, context))
        if context.is_first and runs:
            print("\n".join(format_table(runs)))
    sys.exit(ExitCode.DONE if len(runs) == len(rates) else ExitCode.STOPPED)


@app.command("import")
def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Folder with config.json and *.safetensors, as from `hf download`.",
        ),
    ],
) -> None:
    """Print the model section for Hugging Face weights.

    Paste it into a config to start from the weights of a Llama model.
    """
    import yaml

    from training.hugging_face.config_json import read_model_settings

    print(yaml.safe_dump({"model": read_model_settings(folder)}, sort_keys=False), end="")


@app.command()
def report(
    run_dir: Annotated[
        Path,
        typer.Argument(metavar="RUN_DIR", help="Folder of a run, also of a running one."),
    ],
) -> None:
    """Draw the curves of a run into run_dir/report.html."""
    from training.observability.curves import write_report

    print(write_report(run_dir))


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A run_dir (its newest checkpoint is used), or a checkpoint.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to create.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json to include. [default: data.tokenizer of the run]"
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Dtype of the weights.")] = Dtype.BF16,
) -> None:
    """Write a checkpoint in Hugging Face format.

    transformers reads it as LlamaForCausalLM, or Qwen3ForCausalLM with `model.qk_norm`. Adapters
    are merged. No GPU is needed.
    """
    from training.hugging_face.export import export_checkpoint

    exported = export_checkpoint(source, out, tokenizer=tokenizer, dtype=dtype.value)
    print(f"{out}: the model of {exported}")
    print(f"Load it: transformers.AutoModelForCausalLM.from_pretrained({str(out)!r})")


@app.command()
def verify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A run_dir, a checkpoint, or the address of checkpoint.upload.",
        ),
    ],
) -> None:
    """Compare all files of checkpoints with their digests.

    Prints a line for each checkpoint, and one for each damaged file. If there is one, the exit
    code is 1.
    """
    from training.checkpoint.stores import find_checkpoints, verify_checkpoint

    is_damaged = False
    for store in find_checkpoints(source):
        result = verify_checkpoint(store)
        state = "damaged" if result.damage else "whole"
        print(f"{result.name}: {state}, {result.num_bytes / 1e9:.3f} GB")
        for damage in result.damage:
            print(f"  {damage}")
        is_damaged = is_damaged or bool(result.damage)
    sys.exit(ExitCode.FAILED if is_damaged else ExitCode.DONE)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a config.

    Editors complete and check keys with it.
    """
    from config_files.editor_schema import make_schema
    from training.config import TrainConfig

    sys.stdout.write(make_schema(TrainConfig, "Config of a corpusmill training run"))


def main() -> NoReturn:
    """Run the command line. Foreseen errors become one line on stderr and an exit code."""
    escape_output()
    try:
        app(standalone_mode=True)
    except Exception as error:
        exit_code = _find_exit_code(error)
        if exit_code is None:
            raise
        print(error, file=sys.stderr)
        sys.exit(exit_code)
    sys.exit(ExitCode.DONE)


def _find_exit_code(error: Exception) -> ExitCode | None:
    """Return the exit code of a foreseen error, whose message is enough; None for others."""
    from config_files.reader import ConfigError

    # An error of shardwriter.format, which this package does not import.
    from loader.reading.dataset import FormatError
    from loader.state import ResumeMismatch
    from storage import StorageError
    from training.errors import (
        CheckpointDamaged,
        CheckpointFailed,
        IncompatibleConfig,
        TrainingStopped,
    )

    if isinstance(error, ConfigError | ResumeMismatch | IncompatibleConfig):
        return ExitCode.WRONG_USAGE
    failures = (CheckpointDamaged, CheckpointFailed, TrainingStopped)
    if isinstance(error, (*failures, FormatError, StorageError)):
        return ExitCode.FAILED
    return None
