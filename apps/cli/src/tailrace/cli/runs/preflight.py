"""Checks a configuration before any process is started or file written."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tailrace.cli.errors import NotHereError
from tailrace.cli.runs.host_resources import with_room_here
from tailrace.fleetsim.footprint import Footprint, Machines, footprint
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import registered
from tailrace.pipeline.errors import Gathered
from tailrace.pipeline.roles.transfer import NODE
from tailrace.pipeline.run import build
from tailrace.pipeline.run.device_shares import cores_here, takes_cores
from tailrace.pipeline.run.model_check import check_model
from tailrace.pipeline.run.pools import ranker_gpus, replica_gpus
from tailrace.pipeline.run.prompts.data_check import check_data
from tailrace.pipeline.run.prompts.reading import FoundPrompts
from tailrace.pipeline.run.prompts.stop_tokens import stop_tokens
from tailrace.reward.verifiers import is_reference

CONNECT_S = 5.0
RAY_CLUSTER_FILE = Path("/tmp/ray/ray_current_cluster")  # noqa: S108 - the file in which Ray stores this machine's cluster


def check(config: RunConfig, where: str = "", *, prompts: bool = True, root: Path | None = None) -> FoundPrompts | None:
    """Check plugins, their options, scripted faults, the model's files, the prompts, devices, memory, disk, the Ray address.

    Args:
        config: the configuration.
        where: text before each line, for example the file.
        prompts: whether to check prompts; a run that is resumed has its own already.
        root: the run directory that will be created; None of a run that has one.

    Returns:
        What the prompt files hold; None if none were checked.

    Raises:
        ConfigError: a policy, plugin or fault is unknown, a file of the model is not complete, or a device or cluster is not
            available. The message has a line for each.
    """
    gathered = Gathered()
    for part in (build.check, _verifier, _model):
        with gathered.check():
            part(config)
    found = None
    with gathered.check():
        found = check_data(config) if prompts else None
    with gathered.check():
        _machine(config)
    if not gathered.lines:  # what is wrong in itself cannot be counted
        with gathered.check():
            _room(config, root)
    gathered.done(where)
    return found


def check_on_paper(config: RunConfig, machines: Machines, where: str = "") -> Footprint:
    """Check what needs neither this machine nor files: policies, options, scripted faults, and room on other machines.

    Args:
        machines: those that the run is counted for.
        where: text before each line, for example the file.

    Raises:
        ConfigError: something is wrong, or does not fit. The message has a line for each.
    """
    gathered, found = Gathered(), None
    # the network interface of other machines is none of this one's
    trainer = config.trainer.model_copy(update={"interface": ""})
    with gathered.check():
        build.check(config.model_copy(update={"trainer": trainer}))
    gathered.done(where)
    with gathered.check():
        found = footprint(config, machines)
        gathered.add(*found.shortages)
    gathered.done(where)
    assert found is not None
    return found


def _verifier(config: RunConfig) -> None:
    if config.task.generated:
        return
    named = {f"task.sources.{place}.verifier": one.verifier for place, one in enumerate(config.task.sources)}
    gathered = Gathered()
    for key, verifier in {"task.verifier": config.task.verifier, **named}.items():
        if verifier is not None and not is_reference(verifier):
            with gathered.check():
                registered(key, "tailrace.verifier", verifier)
    gathered.done()


def _model(config: RunConfig) -> None:
    if config.model.path is not None:
        check_model(config.model.path)
        stop_tokens(config, config.model.path)


def _machine(config: RunConfig) -> None:
    if _joins(config):
        assert config.executor.ray_address is not None
        check_ray(config.executor.ray_address)
    else:
        check_devices(config)
        _check_relay_host(config.relay.host)


def _room(config: RunConfig, root: Path | None) -> None:
    """Check that the run fits: on devices as it asks for them, and on this machine if it stands here alone.

    Raises:
        ConfigError: it does not; a line for each place.
    """
    gathered = Gathered()
    gathered.add(*footprint_here(config, root).shortages)
    gathered.done()


def footprint_here(config: RunConfig, root: Path | None) -> Footprint:
    """What a run takes, with what is free on this machine, unless it joins a cluster.

    Args:
        config: the configuration.
        root: the run directory that will be created; None of a run that has one.
    """
    found = footprint(config)
    return found if _joins(config) else with_room_here(found, root)


def _joins(config: RunConfig) -> bool:
    """Whether the run joins a Ray cluster that is up."""
    return config.executor.name == "ray" and config.executor.ray_address is not None


def check_devices(config: RunConfig) -> None:
    """Check that this machine has the devices that a run on it alone asks for.
    Raises:
        NotHereError: a device is missing.
    """
    asked = {
        "executor.device": config.executor.device,
        "trainer.options.device": config.trainer.options.get("device"),
        "rollout.options.device": config.rollout.options.get("device"),
    }
    key = next((key for key, device in asked.items() if str(device).startswith("cuda")), None)
    kinds = {f"rollout.pools.{place}.device": pool.device for place, pool in enumerate(config.rollout.pools)}
    kind = next((name for name, device in kinds.items() if device), None)
    gpus = replica_gpus(config) + config.trainer.processes * config.executor.trainer_gpus
    if takes_cores(config):
        gpus += config.executor.scorer_gpus + ranker_gpus(config)
        cores = cores_here(config)
        if gpus > cores:
            raise NotHereError(
                "keys 'executor.replica_gpus', 'executor.trainer_gpus', 'executor.scorer_gpus' and 'executor.ranker_gpus': "
                f"found {gpus:g} cores asked for (executor.device = 'cpu') and {cores} here, "
                "expected no more than there are; --ray-address joins a cluster"
            )
        return
    if key is None and kind is None and not gpus:
        return
    here = _gpus_here()
    if kind is not None and not here:
        raise NotHereError(
            f"key {kind!r}: found {kinds[kind]!r} and no GPU here, expected none; --ray-address joins a cluster"
        )
    if key is not None and not here:
        raise NotHereError(f"key {key!r}: found {asked[key]!r} and no CUDA device here, expected 'cpu' or 'auto'")
    if gpus > here:
        raise NotHereError(
            f"keys 'executor.replica_gpus' and 'executor.trainer_gpus': found {gpus:g} GPUs asked for and {here} here, "
            "expected no more than there are; --ray-address joins a cluster"
        )


def _check_relay_host(host: str) -> None:
    """Check that relays of a run on this machine alone can listen at their address.

    Raises:
        NotHereError: they cannot.
    """
    if host == NODE:
        return
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotHereError(
            f"key 'relay.host': found {host!r}, where nothing can listen here ({reason}), expected an address of this machine, "
            f"or {NODE!r}"
        ) from error


def check_ray(address: str) -> None:
    """Check that something listens at a Ray cluster's address.
    Raises:
        NotHereError: nothing listens there.
    """
    if address == "auto":
        if not os.environ.get("RAY_ADDRESS") and not RAY_CLUSTER_FILE.exists():
            raise NotHereError(
                "--ray-address auto: found no Ray cluster on this machine; start one with: ray start --head"
            )
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not host or not port.isdigit():
        raise NotHereError(f"key 'executor.ray_address': found {address!r}, expected auto or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = str(error) or type(error).__name__
        raise NotHereError(
            f"key 'executor.ray_address': no Ray cluster answers at {address} ({reason}); start one with: ray start --head"
        ) from error


def _gpus_here() -> int:
    try:
        import torch
    except ImportError as error:
        raise NotHereError(
            "GPUs are asked for, and torch is not installed; pip install 'tailrace-trainer[torch]'"
        ) from error
    count: int = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count
