"""The weight-sync scheme `relays` for TorchRL (TorchRL 0.14): trainer and collectors move weights over relays.

    consumes     `send` on the trainer's side; `receive`, or a thread of the scheme's own, on each collector's
    waits for    a version that is newer than what the collector has
    unblocked by the relay of its host, the deadline, `shutdown`

```python
scheme = RelayWeightSyncScheme(relay.address, token=token)
collector = MultiSyncCollector(envs, policy, weight_sync_schemes={"policy": scheme}, ...)  # it calls the rest
```

`send` returns when the weights are copied: they travel while the trainer trains on, and each receiver takes the newest visible
version, checked against its checksums, when it asks for one. So receivers that come late, or again, need nobody's help, and one
that dies holds nothing up. A version that is superseded before it was sent is skipped.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from tailrace.contracts import extra
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.publisher import Publisher
from tailrace.paramserver.clients.reader import RelayReader, lease_version
from tailrace.paramserver.errors import (
    BridgeStateInvalid,
    ManifestInvalid,
    ParamServerError,
    VersionNotYet,
    VersionSuperseded,
    WeightsMismatch,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.wire.authentication import TOKEN_VARIABLE

with extra("tailrace-paramserver", "torchrl"):
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl._utils import logger
    from torchrl.weight_update import WeightSyncScheme

_POLL_S, _RETRY_S = 0.05, 1.0


class RelayWeightSyncScheme(WeightSyncScheme):
    """Weight versions over relays, for one model of TorchRL's collectors.

    It is made once, and travels to the collectors' processes with what it was made with. Names are those of the module's
    parameters and buffers, joined by dots.

    Args:
        address: the master relay's address.
        read: of the receivers' relay, or several, best first; None: the master.
        token: shared secret of the relays; None takes it from TAILRACE_RELAY_TOKEN, in each process.
        wait: whether `send` waits until the version is visible on the master relay, for `timeout_s` at most.
        background: whether a thread of each receiver takes new versions from `connect` on, as TorchRL's own schemes do for
            collectors in processes. Otherwise `receive` does, when it is called.
        timeout_s: how long a receiver waits for its first version, and `send` with `wait`.
        hold_s: how long a relay keeps a version for a receiver while it copies.
        poll_s: how often the receiver's thread looks for a version.

    Raises:
        BridgeStateInvalid: there is no token.
    """

    _receiver_transport: Any
    _sender_transports: Any

    def __init__(
        self,
        address: str,
        *,
        read: str | Sequence[str] | None = None,
        token: str | None = None,
        wait: bool = False,
        background: bool = True,
        timeout_s: float = 60.0,
        hold_s: float = 300.0,
        poll_s: float = _POLL_S,
    ) -> None:
        super().__init__()
        self._address, self._read, self._secret = address, read or address, token
        self._wait, self._background = wait, background
        self._timeout_s, self._hold_s, self._poll_s = timeout_s, hold_s, poll_s

    @property
    def version(self) -> int | None:
        """The version that was sent or received last; None before the first."""
        transport = self._receiver_transport or (self._sender_transports or {}).get(0)
        return None if transport is None else transport.version

    def create_transport(self, **kwargs: Any) -> Any:
        """The publisher's or a reader's end; TorchRL calls it."""
        token = self._secret or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise BridgeStateInvalid(
                f"found no token for the relays, expected {TOKEN_VARIABLE} in each process, or token="
            )
        if kwargs["sends"]:
            return _Sender(self._address, token, self._timeout_s if self._wait else None)
        return _Receiver(self._read, token, self._timeout_s, self._hold_s)

    def _init_on_sender_impl(
        self, *, model_id: str | None = None, context: Any = None, model: Any = None, **_: Any
    ) -> None:
        self.model_id, self.context, self.model = model_id or "policy", context, model
        self._register_worker_sender(worker_idx=0, sends=True)  # one publication is for all of them

    def _init_on_receiver_impl(
        self, *, model_id: str, context: Any = None, model: Any = None, worker_idx: int | None = None, **_: Any
    ) -> None:
        self.model_id, self.context, self.model, self.worker_idx = model_id, context, model, worker_idx
        self._register_transport_receiver(sends=False)

    def _setup_connection_and_weights_on_sender_impl(self, *, weights: Any = None, **_: Any) -> None:
        """Publish the first version, so that receivers begin with the trainer's weights."""
        self.send(weights)

    def _setup_connection_and_weights_on_receiver_impl(self, **_: Any) -> None:
        """Take the newest version, waiting for the first.

        Raises:
            VersionNotYet: there is none within `timeout_s`.
            WeightsMismatch: it is another model's. Nothing was written.
        """
        self.receive(self._timeout_s)
        if self.version is None:
            raise VersionNotYet(f"no version became visible on {self._read} in {self._timeout_s:.3g} s")
        if self._background:
            self._start_background_receiver()

    def send(self, weights: Any = None, worker_ids: Any = None) -> None:
        """Publish a module's weights, a tensordict of them, or those of the registered model, as the next version.

        Raises:
            BridgeStateInvalid: there are `worker_ids`, or there is no model.
            ManifestInvalid: something in it cannot be published.
            PublishTimeout: with `wait`, it is not visible in time.
        """
        if worker_ids is not None:
            raise BridgeStateInvalid(
                f"found worker_ids={worker_ids}, expected None: each receiver of a relay takes the newest version"
            )
        super().send(weights)

    def prepare_weights(self, weights: Any, model_id: str, strategy: Any, context: Any = None) -> Any:
        """The weights as a tensordict; TorchRL calls it."""
        if weights is None and self._model_ref is not None:
            weights = self.model
        found = super().prepare_weights(weights, model_id, strategy, context)
        if found is None:
            raise BridgeStateInvalid(
                "found no model to send, expected one in init_on_sender (model=, context=) or in send"
            )
        return found

    def _background_receive_loop(self) -> None:
        """Take each new version until `shutdown`. What goes wrong is told once, and tried again."""
        stop, told = self._stop_event, ""
        while not stop.wait(_RETRY_S if told else self._poll_s):
            try:
                self.receive()
                told = ""
            except Exception as error:  # whatever it is, the collector goes on with the weights that it has
                before, told = told, str(error) or repr(error)
                if told != before and not stop.is_set():
                    logger.warning("the policy stays at version %s: %s", self.version, told)

    def shutdown(self) -> None:
        """Stop the receiver's thread and close every connection. What is being sent has ten seconds to arrive."""
        super().shutdown()
        for transport in [self._receiver_transport, *(self._sender_transports or {}).values()]:
            if transport is not None:
                transport.close()
        self._receiver_transport = self._sender_transports = None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return state | {"_receiver_transport": None, "_sender_transports": None}


class _Sender:
    """TorchRL's transport of a trainer: a publisher, and the number of its last version."""

    def __init__(self, address: str, token: str, wait_s: float | None) -> None:
        with RelayReader(address, token=token) as reader:  # a relay that outlived another trainer may hold its versions
            self._next = max([0, *(version + 1 for version in reader.versions())])
        self._wait_s = wait_s
        self.version: int | None = None
        self._publisher = Publisher(address, token=token, on_published=self._published)

    def send_weights(self, weights: Any) -> None:
        named = _flat(TensorDict(weights) if isinstance(weights, dict) else weights)
        version = self._next
        self._publisher.publish(version, named)
        self.version, self._next = version, version + 1
        if self._wait_s is not None:
            self._publisher.wait(version, self._wait_s)

    def _published(self, version: int, error: ParamServerError | None) -> None:
        if error is not None and not isinstance(error, VersionSuperseded):
            logger.warning("version %d did not reach its relay: %s", version, error)

    def close(self) -> None:
        self._publisher.close()


class _Receiver:
    """TorchRL's transport of a collector: a reader, and the version that its model has."""

    def __init__(self, address: str | Sequence[str], token: str, timeout_s: float, hold_s: float) -> None:
        self._reader = RelayReader(address, token=token)
        self._timeout_s, self._hold_s = timeout_s, hold_s
        self.version: int | None = None
        self._model: Any = None  # a collector may copy the policy to another device, and go on with the copy

    def receive_weights(
        self, timeout: float | None = None, *, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> Any:
        """Overwrite the model's tensors with those of the newest version, all or, on any error before the first, none.

        Collectors make policies without memory (meta tensors) in their processes; these get theirs here.

        Args:
            timeout: how long to wait for a version that the model does not have; None does not wait.
            weights: the model's tensors.

        Returns:
            The model's tensors, or a copy of the version without a model; None if there is no newer version.
        """
        deadline = HOST.now() + (timeout or 0.0)
        while not self._newer(model):
            remaining = deadline - HOST.now()
            if remaining <= 0:
                return None
            HOST.sleep(min(_POLL_S, remaining))
        own = None if model is None else _flat(weights)
        in_place = own is not None and not any(tensor.is_meta for tensor in own.values())
        with lease_version(self._reader, None, timeout_s=self._timeout_s, hold_s=self._hold_s) as lease:
            received = _named(lease)
            if own is not None:
                _check_fits(lease.version, received, own)
            taken = TensorDict(received).unflatten_keys(".")
            if not in_place:
                taken = taken.clone()
            if model is not None:
                strategy.apply_weights(model, taken, inplace=in_place)
            version = lease.version
        self.version, self._model = version, None if model is None else weakref.ref(model)
        return taken if model is None else strategy.extract_weights(model)

    def _newer(self, model: Any) -> bool:
        """Whether there is a version that the model does not have."""
        known = self.version if model is None or (self._model is not None and self._model() is model) else None
        return self._reader.latest() not in (None, known)

    def close(self) -> None:
        self._reader.close()


def _named(lease: WeightLease) -> dict[str, torch.Tensor]:
    return {name: lease[stored] for name, stored in ({name: name for name in lease} | dict(lease.tied)).items()}


def _flat(weights: TensorDictBase) -> dict[str, torch.Tensor]:
    found = dict(weights.flatten_keys(".").items())
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise ManifestInvalid(f"{name!r}: found a {type(value).__name__} among the weights, expected tensors alone")
    return {name: value.detach() for name, value in found.items()}


def _check_fits(version: int, received: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> None:
    lacking, unknown = own.keys() - received.keys(), received.keys() - own.keys()
    if lacking or unknown:
        name, where = (
            (min(lacking), "the model has and it lacks") if lacking else (min(unknown), "it has and the model lacks")
        )
        raise WeightsMismatch(
            f"version {version}: found other tensors than the model's, expected the same: {where} {name!r}"
        )
    for name, tensor in own.items():
        other = received[name]
        if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
            raise WeightsMismatch(
                f"{name!r}: found {other.dtype} {list(other.shape)} in version {version}, expected {tensor.dtype} "
                f"{list(tensor.shape)} as in the model"
            )
