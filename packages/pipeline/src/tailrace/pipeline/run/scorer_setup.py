"""The settings of the reward scheduler, from a configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import read_options, registered
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.roles.scorer import ScorerSettings
from tailrace.reward import AdaptiveTimeout, CodeSettings, JudgeSettings, SettingsError, VerifierSettings
from tailrace.reward.errors import JudgeError, WorkerDiedError
from tailrace.reward.judge import JudgeConfig, JudgeProcess
from tailrace.reward.judge.config import names_a_file
from tailrace.reward.sandbox import NoSandboxError, select_sandbox
from tailrace.reward.verifiers import is_reference


def score_settings(config: RunConfig, verifiers: Sequence[str]) -> ScorerSettings:
    """The settings of the scorer, and of each of its pools.

    Args:
        verifiers: names that rows use; references among them, such as ``my_task.py:verify``, are found by that name.

    Raises:
        ConfigError: two settings contradict each other.
    """
    functions, judge = config.reward.math, config.reward.judge
    own = {name: name for name in verifiers if is_reference(name)}
    # The controller tries again what fails, so a pool tries once.
    return ScorerSettings(
        verifiers=verifiers,
        math=VerifierSettings(
            workers=functions.workers,
            queue=functions.queue,
            attempts=1,
            own=own,
            timeout_s=config.deadlines.verify_s,
        ),
        code=code_settings(config),
        judge=JudgeSettings(
            workers=judge.workers,
            queue=judge.queue,
            attempts=1,
            judge=_judge(config),
            timeout_s=judge.timeout_s,
            start_timeout_s=config.deadlines.start_s,
        ),
    )


def code_settings(config: RunConfig) -> CodeSettings:
    """The settings of the pool of programs.

    Raises:
        ConfigError: two settings contradict each other.
    """
    code = config.reward.code
    try:
        timeouts = AdaptiveTimeout(code.min_timeout_s, code.max_timeout_s, code.timeout_factor)
    except SettingsError as error:
        raise ConfigError(f"keys 'reward.code.min_timeout_s', 'reward.code.max_timeout_s': {error}") from error
    return CodeSettings(
        workers=code.workers,
        queue=code.queue,
        attempts=1,
        sandbox=code.sandbox,
        modules=code.modules,
        timeouts=timeouts,
        recheck_share=code.recheck_share,
        memory_mib=code.memory_mib,
        output_kib=code.output_kib,
        tolerance=code.tolerance,
    )


def _judge(config: RunConfig) -> JudgeConfig | None:
    judge = config.reward.judge
    if judge.model is None:
        return None
    template = str(Path(judge.template).absolute()) if names_a_file(judge.template) else judge.template
    own: dict[str, Any] = {"model": str(judge.model.absolute()), "template": template}
    if judge.memory_mib is not None:
        own["memory_bytes"] = judge.memory_mib << 20
    try:
        found: JudgeConfig = read_options(JudgeConfig, {**judge.options, **own}, "key 'reward.judge.options'")
    except JudgeError as error:
        raise ConfigError(f"key 'reward.judge': {error}") from error
    return found


def check_scoring(config: RunConfig) -> None:
    """Check the settings of the pools.

    Raises:
        ConfigError: a sandbox is unknown, or two settings contradict each other.
    """
    gathered = Gathered()
    with gathered.check():
        score_settings(config, ())
    if config.reward.code.sandbox != "auto":
        with gathered.check():
            registered("reward.code.sandbox", "tailrace.sandbox", config.reward.code.sandbox.partition(":")[0])
    gathered.done()


def check_sandbox(config: RunConfig) -> None:
    """Check that programs can run safely here.

    Raises:
        ConfigError: no sandbox works on this machine, or the chosen one does not.
    """
    try:
        select_sandbox(config.reward.code.sandbox, config.reward.code.modules)
    except NoSandboxError as error:
        keys = (
            "keys 'reward.code.sandbox', 'reward.code.modules'"
            if config.reward.code.modules
            else "key 'reward.code.sandbox'"
        )
        raise ConfigError(f"{keys}: {error}") from error


def check_judge(config: RunConfig) -> None:
    """Load the judge once, unless it is to stand on another machine.

    Raises:
        ConfigError: there is none, or its model, template, tokens or memory budget is not as it should be.
    """
    judge = _judge(config)
    if judge is None:
        raise ConfigError("key 'reward.judge.model': found none, expected the model that judges: rows ask for a judge")
    if config.executor.ray_address is not None:
        return

    async def load() -> None:
        async with JudgeProcess(judge, start_timeout_s=config.deadlines.start_s) as process:
            await process.start()

    try:
        asyncio.run(load())
    except (JudgeError, WorkerDiedError) as error:
        raise ConfigError(f"key 'reward.judge': {error}") from error
