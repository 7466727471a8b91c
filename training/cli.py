"""The command line: `python -m training run|plan|export|import CONFIG`, alone or under torchrun.

Parses and prints, decides nothing.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

DONE, FAILED, WRONG_USAGE, STOPPED = 0, 1, 2, 4

app = typer.Typer(
    name="training",
    help="Train a decoder on the loader's rows: DDP or FSDP, exact resume on any number of ranks.\n\n"
    "Exit codes: 0 done; 1 failed, the newest checkpoint stays; 2 wrong config or usage; 4 told to leave "
    "(SIGTERM), and saved.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Config = Annotated[
    str, typer.Argument(help="A YAML file, or the name of one in configs/.", metavar="CONFIG")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, e.g. parallel.strategy=zero3."
    ),
]


class Dtype(StrEnum):
    """Of exported weights."""

    BF16 = "bf16"
    FP32 = "fp32"


class Launcher(StrEnum):
    """Of the processes of a run."""

    TORCHRUN = "torchrun"
    RAY = "ray"


@app.callback()
def training() -> None:
    """Let `run` be a word of its own while it is the only one."""


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    launcher: Annotated[
        Launcher,
        typer.Option(help="Who starts the ranks: torchrun (nobody: one rank), or Ray Train."),
    ] = Launcher.TORCHRUN,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="ray: ranks; one for each GPU of the cluster unless given.", metavar="N"
        ),
    ] = None,
    max_failures: Annotated[
        int,
        typer.Option(
            min=-1, help="ray: how often lost ranks are started again; -1: always.", metavar="M"
        ),
    ] = 3,
) -> None:
    """Train, from the newest checkpoint of run_dir where there is one. Start it with torchrun for several ranks.

    With several nodes, run_dir must be on a volume that all of them mount, under the same path. Ray: RAY_ADDRESS names
    the cluster (none: this machine), where this package is installed on every node.
    """
    from training.config import load

    loaded = load(config, overrides or ())
    if launcher is Launcher.RAY:
        from training.ray_launcher import launch

        ended = launch(loaded, num_workers=workers, max_failures=max_failures)
    else:
        from training.parallel import distributed
        from training.trainer import train

        process = loaded.process
        here = distributed.join(
            loaded.parallel,
            timeout_s=process.start_timeout_s,
            dump_dir=Path(loaded.run_dir) / "hang",
        )
        try:
            ended = train(loaded, here)
        finally:
            distributed.leave()
    sys.exit(STOPPED if ended.was_stopped else DONE)


@app.command("import")
def import_(
    folder: Annotated[
        Path, typer.Argument(help="config.json and *.safetensors, as `hf download` makes it.")
    ],
) -> None:
    """Print the `model:` section of a config that starts from a Llama model in Hugging Face's form."""
    import yaml

    from training.hugging_face.export import model_settings

    print(yaml.safe_dump({"model": model_settings(folder)}, sort_keys=False), end="")


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(help="A run_dir, of which the newest is taken, or a checkpoint in it.")
    ],
    out: Annotated[Path, typer.Argument(help="A folder to be made.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json to lay beside it; the run's data.tokenizer unless given."
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights.")] = Dtype.BF16,
) -> None:
    """Write a checkpoint as LlamaForCausalLM, adapters merged; one process, no GPU."""
    from training.hugging_face import export as hugging_face

    written = hugging_face.export(source, out, tokenizer=tokenizer, dtype=dtype.value)
    print(f"{out}: {written}")


@app.command()
def plan(
    config: Config,
    gpus: Annotated[int, typer.Option(help="How many, one rank on each.", metavar="N")],
    gpu: Annotated[str, typer.Option(help="Their kind: h100-80gb, a100-40gb, ...")] = "h100-80gb",
    tokens: Annotated[
        float | None,
        typer.Option(
            help="To be trained on, e.g. 100e9; as many as the config's steps unless given."
        ),
    ] = None,
    mfu: Annotated[float, typer.Option(help="Share of the GPU's peak that is reached.")] = 0.4,
    picture: Annotated[Path | None, typer.Option(help="Also draw it: an SVG file.")] = None,
    overrides: Overrides = None,
) -> None:
    """Will it fit? Memory of each GPU, by strategy, and hours, without starting anything. Exit code 1: it does not."""
    from rich.console import Console

    from training.config import load
    from training.planning import plan_report
    from training.planning.plan import gpu_of, make_plan, vocab_size_for

    loaded = load(config, overrides or ())
    made = make_plan(
        loaded,
        num_gpus=gpus,
        gpu=gpu_of(gpu),
        vocab_size=vocab_size_for(loaded),
        mfu=mfu,
        tokens=tokens,
    )
    console = Console()
    plan_report.show(made, console if console.is_terminal else Console(width=160))
    if picture is not None:
        picture.write_text(plan_report.picture(made), encoding="utf-8")
    sys.exit(DONE if made.here.fits(made.gpu) else FAILED)


def main() -> NoReturn:
    """Run the command line; every expected fault becomes a message and an exit code, not a traceback."""
    from config_files.reader import ConfigError

    try:
        app(standalone_mode=True)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    except ValueError as error:
        from loader.state import ResumeMismatch
        from training.parallel.distributed import IncompatibleConfig

        if not isinstance(error, IncompatibleConfig | ResumeMismatch):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(WRONG_USAGE)
    sys.exit(DONE)
