"""The commands that look at runs: status, report, diff, explain, samples, preview and browse."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.terminal import (
    DIFFERENT,
    WRONG_USAGE,
    RunAddress,
    answer,
    console,
    fail,
    with_output_options,
)
from terminal_output import format_count

if TYPE_CHECKING:
    from pipeline.reporting.diff import RunDiff
    from pipeline.reporting.report import Report
    from pipeline.runs.run_folder import RunFolder


# The commands. The program adds them to its own.
app = typer.Typer()

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. select.language.min_score=0.65.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Also show what differs from another run."),
]
EuSummary = Annotated[
    bool,
    typer.Option(
        "--eu-summary",
        help="Write RUN/eu-summary.md: the summary of training content for the EU AI Act.",
    ),
]
SmallEnterprise = Annotated[
    bool,
    typer.Option(
        "--sme", help="With --eu-summary: list the domains of a small enterprise."
    ),
]
Decision = Annotated[
    str | None,
    typer.Option(
        "--decision", "--reason", help="kept, dropped, a drop reason, or a stage."
    ),
]
ScoreRanges = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="COLUMN=LOW:HIGH",
        help="Range of a stored score, e.g. perplexity=:300. Repeatable.",
    ),
]


@app.command()
@with_output_options
def status(run: RunAddress) -> None:
    """Show the progress of a run.

    Reads only the run folder, so any machine can run it, without Ray.
    """
    from pipeline.reporting.status import print_status, read_status
    from pipeline.runs.run_folder import RunFolder

    found = read_status(RunFolder.open(run), now=time.time())
    answer(found, lambda: print_status(found, console))


@app.command(name="report")
@with_output_options
def show_report(
    run: RunAddress,
    against: Against = None,
    eu_summary: EuSummary = False,
    sme: SmallEnterprise = False,
) -> None:
    """Print the summary of a run again.

    Also writes its report.html and report.json again.
    """
    from pipeline.reporting.diff import compare_runs, print_diff, to_value
    from pipeline.reporting.report import print_report, to_json
    from pipeline.runs.run_folder import RunFolder

    found = RunFolder.open(run)
    if sme and not eu_summary:
        fail("--sme needs --eu-summary", WRONG_USAGE)
    if eu_summary:
        _write_eu_summary(found, is_sme=sme)
        return
    compared = compare_runs(RunFolder.open(against), found) if against else None
    report = write_report(found, compared)

    def show() -> None:
        print_report(report, console)
        if compared:
            console.print()
            print_diff(compared, console)
        console.print(f"\nAs a page: {run}/report.html")

    answer(to_json(report, to_value(compared) if compared else None), show)


def _write_eu_summary(run: RunFolder, *, is_sme: bool) -> None:
    """Write the summary for the EU AI Act into the folder of a run."""
    from pipeline.reporting.cards import make_eu_summary

    run.run_dir.put("eu-summary.md", make_eu_summary(run, is_sme=is_sme).encode())
    path = run.run_dir.locate("eu-summary.md")
    message = f"{path}: fill in what is marked, it covers this run only"
    answer({"file": path}, lambda: console.print(message))


def write_report(run: RunFolder, compared: RunDiff | None = None) -> Report:
    """Write the report of a run into its folder, and return it.

    After `clean` removed the texts, the files stay as they are: they have the scores, domains and samples.
    """
    from pipeline.reporting.diff import to_value
    from pipeline.reporting.report import make_report, make_report_page, to_json
    from pipeline.runs.removed_outputs import list_removed

    report = make_report(run)
    if "documents.parquet" in list_removed(run.folder("annotate").root):
        console.print("report.html and report.json stay as they were before `clean`")
        return report
    page = make_report_page(run, report, compared)
    run.run_dir.put("report.html", page.encode())
    against = to_value(compared) if compared else None
    run.run_dir.put("report.json", to_json(report, against).encode())
    return report


@app.command()
@with_output_options
def diff(
    before: Annotated[str, typer.Argument(help="Folder or address of a finished run.")],
    after: Annotated[str, typer.Argument(help="The run to compare with it.")],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write it as an HTML page.")
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="End with code 4 if a document has another decision."
        ),
    ] = False,
) -> None:
    """Show what differs between two runs, and why.

    Compares configs, versions, the decision on each document, tokens, scores and domains. The runs
    may have read the same files or others.
    """
    from pipeline.reporting.diff import compare_runs, print_diff, to_value
    from pipeline.reporting.report.page import make_diff_page
    from pipeline.runs.run_folder import RunFolder

    found = compare_runs(RunFolder.open(before), RunFolder.open(after))
    if html:
        page = make_diff_page(f"{before} and {after}", found)
        html.write_text(page, encoding="utf-8")
    answer(to_value(found), lambda: print_diff(found, console))
    if exit_code and found.num_changed:
        raise typer.Exit(DIFFERENT)


@app.command()
@with_output_options
def explain(
    run: RunAddress,
    document: Annotated[str, typer.Argument(help="A URL or a doc_id.")],
) -> None:
    """Show why a document was kept or dropped.

    Prints where it was read, its scores, every rule with its limit, and where it is stored.
    """
    from pipeline.reporting.explain import explain as trace_document
    from pipeline.reporting.explain import format_trace, list_values
    from pipeline.runs.run_folder import RunFolder

    traces = trace_document(RunFolder.open(run), document)

    def show() -> None:
        for trace in traces:
            for line in format_trace(trace):
                console.print(line)
            console.print()

    answer(list_values(traces), show)


@app.command()
@with_output_options
def samples(
    run: RunAddress,
    decision: Decision = None,
    language: Annotated[str | None, typer.Option(help="Code of a language.")] = None,
    domain: Annotated[
        str | None, typer.Option(help="Host of the URL, or a domain above it.")
    ] = None,
    scores: ScoreRanges = None,
    num_samples: Annotated[
        int, typer.Option("-n", "--num-samples", min=1, help="Number of documents.")
    ] = 10,
    seed: Annotated[
        int, typer.Option(min=0, help="The same seed draws the same documents.")
    ] = 0,
    chars: Annotated[
        int, typer.Option(min=0, help="Print the first characters of a text; 0: all.")
    ] = 600,
    before: Annotated[
        bool,
        typer.Option("--before", help="Print the text before duplicate lines are removed."),
    ] = False,
) -> None:
    """Print random documents, by decision or score.

    Prints the text of each; with --json, one JSON object per document with both texts. `explain`
    shows more about one of them.
    """
    from pipeline.reporting import samples as sampling
    from pipeline.reporting.browse.search import Search, parse_scores
    from pipeline.runs.run_folder import RunFolder

    ranges = parse_scores(scores or [])
    wanted = Search(None, domain, language, decision, ranges)
    found = sampling.draw_samples(RunFolder.open(run), wanted, num_samples, seed)

    def show() -> None:
        for sample in found:
            lines = sampling.format_sample(sample, chars, before)
            console.print("\n".join(lines), "\n")

    answer("".join(map(sampling.to_json, found)), show)


@app.command()
@with_output_options
def preview(run: RunAddress, overrides: Overrides = None) -> None:
    """Show what other thresholds of `select` would keep.

    Uses the stored scores. Takes seconds and writes nothing.
    """
    from pipeline.reporting.preview import preview as preview_run
    from pipeline.reporting.preview import print_preview
    from pipeline.runs.run_folder import RunFolder

    if not overrides:
        fail(
            "nothing to preview: name a threshold, such as --set select.language.min_score=0.65",
            WRONG_USAGE,
        )
    found = preview_run(RunFolder.open(run), overrides)
    answer(found, lambda: print_preview(found, console))


@app.command()
@with_output_options
def browse(
    run: RunAddress,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")
    ] = 0,
) -> None:
    """Show documents, scores and limits on a local web page.

    Prints its address, which holds a secret. Reads the run only, and serves until Ctrl-C.
    """
    from pipeline.reporting.browse import build_index
    from pipeline.reporting.browse.server import serve
    from pipeline.runs.run_folder import RunFolder

    with build_index(RunFolder.open(run)) as index:
        console.print(
            f"{format_count(index.num_docs, 'document')} of {run}; Ctrl-C ends the server."
        )

        def announce(address: str) -> None:
            # One line, so that a program can read it while the server runs.
            value = {"address": address, "num_docs": index.num_docs}
            answer(json.dumps(value), lambda: console.print(address))

        serve(index, port, announce)
