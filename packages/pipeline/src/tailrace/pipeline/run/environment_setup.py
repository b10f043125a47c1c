"""The environment of a run: which one it is, how its role is started, and what is wrong with it before it starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import PluginError, extra, plugins
from tailrace.environment import GROUP, Abilities, SetupError, environment_names, examine_environment
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import check_options, options_of
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.environment import EnvironmentRole, EnvironmentSettings
from tailrace.pipeline.roles.observations import Glue
from tailrace.pipeline.run.prompts.chat import has_template
from tailrace.runtime.executor.deployment import ENVIRONMENT
from tailrace.runtime.executor.seam import RoleSpec

if TYPE_CHECKING:
    from tailrace.reward.tasks import GeneratedTask

_ANSWER, _TURN = "tailrace-answer", "tailrace-turn"  # text that stands in no template


def environment_of(config: RunConfig) -> str | None:
    """The environment that answers the run's responses; None if each is one turn.

    Raises:
        ConfigError: the generated tasks of a mix have different ones.
    """
    if config.environment.name is not None:
        return config.environment.name
    found = {name: _environment_of_task(name) for name in config.task.generated}
    if len(set(found.values())) > 1:
        named = ", ".join(f"{name}: {environment or 'none'}" for name, environment in found.items())
        raise ConfigError(
            f"key 'task.mix': found tasks with different environments ({named}), expected the same for all"
        )
    return next(iter(found.values()), "") or None


def has_own_rows(config: RunConfig) -> bool:
    """Whether the rows are those of the environment: it is named, and the task names neither files nor a generated task."""
    return config.environment.name is not None and not config.task.generated and not config.task.training


def held_out_problems(config: RunConfig) -> int:
    """How many problems an evaluation asks."""
    task = config.task
    return task.held_out_size if task.generated or task.held_out is not None or has_own_rows(config) else 0


def environment_members(config: RunConfig) -> dict[str, Any]:
    """Members of the role and sessions of each, as arguments of `PipelineSpec`."""
    if environment_of(config) is None:
        return {"environments": 0, "environment_sessions": None}
    return {"environments": config.environment.members, "environment_sessions": config.environment.sessions}


def interpreter_of(config: RunConfig) -> str:
    """The interpreter of the environment's workers; empty: this one."""
    return "" if config.environment.python is None else str(config.environment.python)


def check_environment(config: RunConfig) -> None:
    """Find what is wrong with an environment before anything starts.

    Raises:
        ConfigError: it is unknown or does not load, an option is wrong, its interpreter is missing, a deadline is too short, or
            neither the task nor it has rows.
    """
    name, table = environment_of(config), config.environment
    if name is None:
        return
    if table.call_s >= config.deadlines.call_s:
        raise ConfigError(
            f"keys 'environment.call_s' and 'deadlines.call_s': found {table.call_s:g} and {config.deadlines.call_s:g} s, "
            "expected the second to be longer: otherwise one slow call ends the whole member"
        )
    if table.python is not None:
        if not os.access(table.python, os.X_OK) or table.python.is_dir():
            raise ConfigError(f"key 'environment.python': found {str(table.python)!r}, expected an interpreter")
    elif name in environment_names():
        check_options(_loaded(name), table.options, "key 'environment.options'")
    try:
        abilities = _examined(name, json.dumps(table.options), interpreter_of(config), table.start_s)
    except SetupError as error:
        raise ConfigError(f"table 'environment': {error}") from error
    except TypeError as error:
        raise ConfigError(f"key 'environment.options': found no JSON values ({error})") from error
    if has_own_rows(config) and not abilities.rows:
        raise ConfigError(
            "key 'task': found none of 'name', 'mix', 'train' and 'sources', expected one: the environment "
            f"{name!r} has no rows of its own"
        )


def environment_options(config: RunConfig, model: Path | None) -> dict[str, Any]:
    """The environment's options. One that takes a ``tokenizer`` and is told none gets the run's model.

    Args:
        config: the configuration.
        model: the model's directory; None: there is none yet.
    """
    name, options = environment_of(config), dict(config.environment.options)
    if model is None or name not in environment_names() or config.environment.python is not None:
        return options
    takes = "tokenizer" in options_of(_loaded(name))
    return {"tokenizer": str(model.absolute()), **options} if takes else options


def makes_prompts(config: RunConfig) -> bool:
    """Whether the environment is named and makes the model's prompts of the rows', for which it needs the model's tokenizer.

    Raises:
        ConfigError: it cannot be had.
    """
    name, table = config.environment.name, config.environment
    if name is None:
        return False
    try:
        return _examined(name, json.dumps(table.options), interpreter_of(config), table.start_s).reads_prompts
    except SetupError as error:
        raise ConfigError(f"table 'environment': {error}") from error


@lru_cache(maxsize=8)
def _examined(name: str, options: str, python: str, start_s: float) -> Abilities:
    """Examine an environment once in this process: a configuration is checked twice, and to load one may take a minute."""
    return examine_environment(name, json.loads(options), python=python, start_s=start_s)


def environment_role(
    config: RunConfig, model: Path, stop_token_ids: tuple[int, ...], variables: Mapping[str, str]
) -> dict[str, RoleSpec]:
    """How the role is started, by its name; nothing where no environment answers.

    Args:
        config: the configuration.
        model: the model's directory.
        stop_token_ids: tokens that end a turn.
        variables: environment variables of its process.
    """
    name, table = environment_of(config), config.environment
    if name is None:
        return {}
    settings = EnvironmentSettings(
        environment=name,
        options=environment_options(config, model),
        workers=table.workers,
        call_s=table.call_s,
        max_turns=table.max_turns,
        max_tokens=config.rollout.max_tokens,
        tokenizer=model / "tokenizer.json",
        stop_token_ids=stop_token_ids,
        glue=chat_glue(model, stop_token_ids),
        python=interpreter_of(config),
        start_s=table.start_s,
    )
    return {ENVIRONMENT: RoleSpec.of(EnvironmentRole, settings, environment=variables)}


def chat_glue(model: Path, stop_token_ids: tuple[int, ...]) -> Glue | None:
    """What a model's chat template writes around an environment's answer; None if the model has no template.

    It is the difference of two renderings: of a conversation that ends with the model's turn, and of one that goes on with an
    answer. A template without tool messages gives the answer as the user's.

    Raises:
        ConfigError: the template does not show an answer behind the model's turn.
    """
    if not has_template(model):
        return None
    with extra("tailrace-rollout", "transformers"):
        import jinja2
        from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
    begun = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}]
    stops = [text for stop in stop_token_ids if (text := tokenizer.decode([stop]))]
    for role in ("tool", "user"):
        try:
            whole: str = tokenizer.apply_chat_template(
                [*begun, {"role": role, "content": _ANSWER}], tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError):  # a template may refuse a role
            continue
        _, turn, rest = whole.rpartition(_TURN)
        before, answer, after = rest.partition(_ANSWER)
        if turn and answer:
            stop = next((text for text in stops if before.startswith(text)), "")
            return Glue(before.removeprefix(stop), after)
    raise ConfigError(
        f"key 'model.path': {model}: found a chat template that shows neither a tool's nor a user's message behind the model's "
        "turn, expected one that does"
    )


def no_tool_prefix(config: RunConfig) -> str:
    """The beginning of a response that does without the environment, for a control; empty where there is none."""
    name = config.task.name
    return "" if name is None or environment_of(config) is None else _task(name).no_tool_prefix


def _environment_of_task(name: str) -> str:
    return _task(name).environment


def _task(name: str) -> GeneratedTask:
    from tailrace.reward.errors import UnknownTaskError
    from tailrace.reward.tasks import get_task

    try:
        return get_task(name)
    except UnknownTaskError as error:
        raise ConfigError(f"key 'task.name': {error}") from error


def _loaded(name: str) -> Any:
    try:
        return plugins.load(GROUP, name)
    except PluginError as error:
        raise ConfigError(f"key 'environment.name': {error}") from error
