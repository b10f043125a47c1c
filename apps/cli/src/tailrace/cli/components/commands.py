"""Commands about single components: judges, rankers, the sandbox, the stream service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app

sandbox = typer.Typer(help="See whether programs can be run safely here, and run one.", no_args_is_help=True)
judge_app = typer.Typer(help="A language model as a judge.", no_args_is_help=True)
app.add_typer(judge_app, name="judge")

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")]


@judge_app.command("fit")
def fit_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The judge's model directory: new or empty.")],
    task: Annotated[str, typer.Option(help="The generated task: short-chain-sum or long-chain-sum.")] = (
        "short-chain-sum"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training data and of the weights.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 300,
    heldout: Annotated[int, typer.Option(min=1, help="Responses to held-out questions to measure it on.")] = 1000,
    examples: Annotated[int, typer.Option(min=1, help="Training examples.")] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a small judge on a generated task, and show its agreement with the exact verifier."""
    from tailrace.cli.components.judge import FitOptions, fit_judge

    fit_judge(FitOptions(directory, task, seed, steps, heldout, examples), json_file)


@judge_app.command("score")
def score_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSONL rows with response and, where the template shows them, prompt, answer, rubric."
        ),
    ],
    model: Annotated[str, typer.Option(help="Directory of a Hugging Face causal language model.")],
    template: Annotated[str, typer.Option(help="A text with {response}, or a .txt or .md file with it.")],
    chat: Annotated[bool, typer.Option("--chat", help="Put the text into the model's chat template.")] = False,
    yes: Annotated[str, typer.Option(help="The token for a right response.")] = " yes",
    no: Annotated[str, typer.Option(help="The token for a wrong one.")] = " no",
    memory_mib: Annotated[
        int | None, typer.Option(min=1, help="Device memory in MiB. What does not fit is streamed from host memory.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest input, in tokens.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json_file: JsonFile = None,
) -> None:
    """Score responses. Where rows say "right": true or false, show how often the judge agrees."""
    from tailrace.cli.components.judge import score_file
    from tailrace.reward.judge import JudgeConfig

    memory_bytes = None if memory_mib is None else memory_mib << 20
    config = JudgeConfig(
        model, template, chat=chat, yes=yes, no=no, memory_bytes=memory_bytes, max_tokens=max_tokens, device=device
    )
    score_file(file, config, json_file)


@app.command("rank")
def rank_command(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A run's directory, or a file of prompts and lengths (JSONL, JSON, CSV, Parquet, Arrow), or hf:NAME:SPLIT.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The ranker's directory, to be written.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="The ranker's method; auto takes the one that finds most of the longest."),
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is held out and of training.")] = 0,
    budget_s: Annotated[float, typer.Option(help="Seconds of training, of all methods together.")] = 300.0,
    policy: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model that generates the responses, for the method hidden.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A causal language model that sft fine-tunes, instead of one from scratch."),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(help="What sft learns of --init: write, quantiles, pairwise, listmle; auto tries three of them."),
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="An option of --method, such as lora_rank=8 or steps=100; may be repeated."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Try this method beside --method; may be repeated; else all."),
    ] = None,
    transfer: Annotated[
        str | None, typer.Option(metavar="DATA", help="Also measure on these, such as another policy's lengths.")
    ] = None,
    split: Annotated[str, typer.Option(help="Parts of the prompts: learned from, held back, held out.")] = "7:2:1",
    by_family: Annotated[bool, typer.Option("--by-family", help="Hold families out, not prompts.")] = False,
    prompt_column: Annotated[
        str, typer.Option(metavar="NAME", help="The column of prompts: text, or chat messages for --policy's template.")
    ] = "",
    length_column: Annotated[
        str, typer.Option(metavar="NAME", help="The column of lengths: a number, or a list of them.")
    ] = "",
    response_column: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="A column of responses, whose tokens by --policy's tokenizer are the lengths."
        ),
    ] = "",
) -> None:
    """Learn which prompts have the longest responses, and show how well each method finds them on prompts held out."""
    from tailrace.cli.components.rank import Columns, RankOptions, rank

    rank(
        RankOptions(
            data,
            out,
            json_file,
            method,
            seed,
            budget_s,
            policy,
            init,
            objective=objective,
            options=tuple(option or ()),
            only=tuple(only or ()),
            transfer=transfer,
            split=split,
            by_family=by_family,
            columns=Columns(prompt_column, length_column, response_column),
        )
    )


app.add_typer(sandbox, name="sandbox")


Name = Annotated[
    str,
    typer.Option(
        "--sandbox", metavar="NAME", help="auto, sandlock, bubblewrap, sandbox-fusion:URL, or another registered one."
    ),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@sandbox.command("check")
def check_command(name: Name = "auto", as_json: AsJson = False) -> int:
    """Run a program that tries to get out of each backend. Exit status 2 if none works."""
    from tailrace.cli.components.sandbox import check

    return check(name, as_json=as_json)


@sandbox.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program.")],
    name: Name = "auto",
    cpu_s: Annotated[float, typer.Option(help="CPU seconds, of all its processes.")] = 10.0,
    wall_s: Annotated[float, typer.Option(help="Seconds.")] = 30.0,
    memory_mib: Annotated[int, typer.Option(help="MiB of memory, of all its processes.")] = 256,
    as_json: AsJson = False,
) -> int:
    """Run a Python program in the sandbox and say how it ended. Exit status 1 only if the sandbox failed."""
    from tailrace.cli.components.sandbox import run

    return run(file, name, cpu_s=cpu_s, wall_s=wall_s, memory_mib=memory_mib, as_json=as_json)


@app.command("doctor")
def doctor_command(as_json: AsJson = False) -> int:
    """Say what this machine has, and which app's quick start can run on it. Exit status 1 if none can."""
    from tailrace.cli.components.doctor import doctor

    return doctor(as_json=as_json)


@app.command("serve")
def serve_command(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A Hugging Face model directory; its weights are version 0.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen at; this machine alone reaches the default.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    replicas: Annotated[int, typer.Option(help="Engines, each in a process of its own.", min=1)] = 2,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="vllm, transformers or a plugin; auto: the fastest here.")
    ] = ("auto"),
    ranker: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A ranker from tailrace rank: prompts start longest first.", show_default=False
        ),
    ] = None,
    relay: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A relay from which clients may have weights taken; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model's samples over HTTP, each as it ends, while its weights change; prints url and token_file when ready."""
    from tailrace.cli.components.serve import ServeOptions, serve_model

    serve_model(ServeOptions(target, host, port, replicas, engine, ranker, tuple(relay or ())))
