"""The weight-transfer backend "pulse": every worker of an engine follows the store by itself."""

import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_world_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from lowcomm.pulse import StaleBase, Store
from pulse_vllm import NO_PREPACK, load
from pulse_vllm.mirror import Mirror

WAYS = ("layerwise", "direct")


@dataclass
class Init(WeightTransferInitInfo):
    """``store``: URL of the patches. ``base``: folder of the weights that the engine loaded (None: the engine's own).
    ``dtype``: of the published weights, must be the engine's. ``public_key``: hex; refuses what its owner did not sign.
    ``options``: to the store's file system.
    """

    store: str
    base: str | None = None
    dtype: str = "bfloat16"
    public_key: str | None = None
    options: dict | None = None


@dataclass
class Update(WeightTransferUpdateInfo):
    """``digest``: of the version, hex (`Marker.target_digest`). ``base_version``: what the caller believes the model
    holds (None: whatever). ``way``: layerwise, right for every kernel, or direct, faster. ``full``: send every tensor,
    the only update that a poisoned engine takes.
    """

    version: int
    digest: str
    base_version: int | None = None
    way: str = "layerwise"
    full: bool = False

    def __post_init__(self) -> None:
        numbers = [self.version] + ([] if self.base_version is None else [self.base_version])
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"version={self.version!r}, base_version={self.base_version!r}: integers from 0 on")
        if not re.fullmatch("[0-9a-f]{32}", str(self.digest)):
            raise ValueError(f"digest={self.digest!r}: 32 hex digits are needed, as in the version's marker")
        if self.way not in WAYS:
            raise ValueError(f"way={self.way!r}: must be one of {', '.join(WAYS)}")
        if type(self.full) is not bool:
            raise ValueError(f"full={self.full!r}: true or false")


class PulseEngine(WeightTransferEngine[Init, Update]):
    """``version``: of the store, what the model holds (None: not known). ``poisoned``: why nothing but a full update is
    taken; a failed apply has no way back. ``in_place``: whether the direct way is right here.
    """

    init_info_cls, update_info_cls, supports_draft_weight_update = Init, Update, False

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.version: int | None = None
        self.poisoned: str | None = None
        self.in_place = False
        self.mirror: Mirror | None = None
        self._init: Init | None = None
        self._aside = ThreadPoolExecutor(1, "pulse-stage")
        self._staging: Future | None = None

    def init_transfer_engine(self, init_info: Init) -> None:
        """Build the mirror and compare it with the model. The same information again changes nothing.

        Raises ValueError for another dtype than the engine's and for weights packed out of reach, FileNotFoundError for
        a ``base`` without weights.
        """
        if init_info == self._init:
            return
        self._settle()
        dtype = getattr(torch, init_info.dtype, None)
        if dtype is not self.model_config.dtype:
            raise ValueError(f"dtype={init_info.dtype}: the engine runs in {self.model_config.dtype}; publish in that")
        if empty := [name for name, p in self.model.named_parameters() if not p.numel()]:
            raise ValueError(
                f"{empty[0]} has no elements ({len(empty)} parameters in all): its weights are packed out of reach; "
                f"start the engine with {NO_PREPACK}=1"
            )
        key = bytes.fromhex(init_info.public_key) if init_info.public_key else None
        store = Store(init_info.store, public_key=key, options=init_info.options)
        mirror = Mirror(Path(init_info.base or self.model_config.model), store, dtype)
        self._compare(mirror)
        self.mirror, self._init = mirror, init_info
        self.version = mirror.version if self.in_place else None

    @torch.no_grad()
    def _compare(self, mirror: Mirror) -> None:
        """What the model does not hold for certain is part of the next update, whatever it changes."""
        different = load.differing(self.model, mirror.tensors)
        self.in_place = not different
        members = load.groups(self.model, mirror.tensors)
        for name in [name for module in different for name in members[module]]:
            del mirror.held[name]

    def stage(self, update: Update) -> None:
        """Fetch, decode and verify, ahead of the pause if called so.

        Raises ValueError for what cannot be done now, StaleBase for another ``base_version`` than the model's, and
        other PatchErrors; the model is untouched.
        """
        if self.mirror is None:
            raise ValueError("the backend has no store yet: call init_weight_transfer_engine first")
        if self.poisoned and not update.full:
            raise ValueError(f"an apply failed ({self.poisoned}): only an update with full=true is taken now")
        if update.base_version is not None and update.base_version != self.version:
            raise StaleBase(f"the model holds version {self.version}, not {update.base_version}")
        if update.way == "direct" and not self.in_place:
            raise ValueError("way=direct: this model's memory is not laid out as loaded; use layerwise")
        self.mirror.advance(update.version, update.digest)

    def begin_stage(self, update: Update) -> None:
        """`stage` in a thread of its own: whatever a worker is asked is answered between two steps of its engine, which
        would stand still for as long as the store takes.
        """
        self._staging = self._aside.submit(self._attempt, self.stage, update)

    def staged(self) -> str | None:
        """What came of the last `begin_stage`: why it was refused, "" if it was not, None while that is open."""
        if self._staging is None or not self._staging.done():
            return None
        error = self._staging.result()
        return "" if error is None else f"{type(error).__name__}: {error}"

    def _settle(self) -> None:
        """Nothing else touches the mirror from here on."""
        if self._staging is not None:
            self._staging.result()

    @torch.no_grad()
    def receive_weights(self, update_info: Update) -> None:
        """Bring the model to a version. All workers or none: a refusal of one is a refusal of all, the model untouched;
        a failure while applying poisons all.
        """
        self._settle()
        self._together(self._attempt(self.stage, update_info))
        self.version, self.poisoned = None, "an update did not finish"  # until it has, whatever ends it
        error = self._attempt(self._apply, update_info)
        if error is not None:
            self.poisoned = f"{type(error).__name__}: {error}"
        self._together(error)
        self.mirror.commit()
        self.version, self.poisoned = update_info.version, None

    def _apply(self, update: Update) -> None:
        tensors = self.mirror.tensors
        changed = set(tensors if update.full else self.mirror.changed())
        whole = {
            name: tensors[name]
            for names in load.groups(self.model, tensors).values()
            if not changed.isdisjoint(names)
            for name in names
        }
        if not whole:
            return
        if update.way == "direct":
            load.direct(self.model, whole)
        else:
            load.layerwise(self.model, self.model_config, whole)
        different = load.differing(self.model, whole)
        if self.in_place and different:
            raise RuntimeError(f"{different[0]} does not hold what was sent to it ({len(different)} modules in all)")
        if update.full:
            self.in_place = not different

    @staticmethod
    def _attempt(function, update: Update) -> Exception | None:
        try:
            function(update)
        except Exception as e:
            return e
        return None

    def _together(self, error: Exception | None) -> None:
        """Raise on every worker if one has an error: its own there, a note of it elsewhere."""
        if self.parallel_config.world_size > 1:
            failed = torch.tensor([error is not None], dtype=torch.int32)
            dist.all_reduce(failed, dist.ReduceOp.MAX, group=get_world_group().cpu_group)
            if error is None and failed.item():
                error = RuntimeError("another worker of this engine failed; see its message")
        if error is not None:
            raise error

    def start_weight_update(self) -> None:
        """One message carries the whole update."""

    def finish_weight_update(self) -> None:
        """Nothing is left to do."""

    def shutdown(self) -> None:
        """Forget store and mirror."""
        self._settle()
        self._aside.shutdown()
        self.mirror = self._init = None
