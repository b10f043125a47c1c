"""Commands about judges: fine-tune a small one on the spot, score a file of responses with any."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.app import app

judge_app = typer.Typer(help="A language model as a judge.", no_args_is_help=True)
app.add_typer(judge_app, name="judge")

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures as JSON.")]


@judge_app.command("fit")
def fit_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The judge's model directory, to be written.")],
    task: Annotated[str, typer.Option(help="The generated task: short-chain-sum or long-chain-sum.")] = (
        "short-chain-sum"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the training data and of the weights.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 300,
    heldout: Annotated[int, typer.Option(min=1, help="Responses to held-out questions to measure it on.")] = 1000,
    examples: Annotated[int, typer.Option(min=1, help="Training examples.")] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a small judge on a generated task, and show its agreement with the exact verifier."""
    from tailrace.cli.judge_fit import FitOptions, fit_judge

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
    from tailrace.cli.judge_score import score_file
    from tailrace.reward.judge import JudgeConfig

    memory_bytes = None if memory_mib is None else memory_mib << 20
    config = JudgeConfig(
        model, template, chat=chat, yes=yes, no=no, memory_bytes=memory_bytes, max_tokens=max_tokens, device=device
    )
    score_file(file, config, json_file)
