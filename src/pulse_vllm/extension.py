"""What a worker can be asked besides (`worker_extension_cls="pulse_vllm.extension.Inspect"`, `collective_rpc`).

Answers are JSON. A refusal is an answer here, never an exception: vLLM's multi-process executor leaves the answers of
further workers unread when the first one raises, and the next call would get them.
"""

import hashlib

import torch
from torch import Tensor

from pulse_vllm.engine import PulseEngine, Update


class Inspect:
    """Mixed into vLLM's worker, hence the names."""

    def pulse_status(self) -> dict:
        """What the model holds, what is staged, whether it is poisoned."""
        engine: PulseEngine = self.weight_transfer_engine
        return {
            "version": engine.version,
            "staged": engine.mirror.version if engine.mirror else None,
            "poisoned": engine.poisoned,
            "in_place": engine.in_place,
            "device": str(engine.device),
        }

    def pulse_stage(self, update: dict) -> dict:
        """Begin to fetch and verify while the engine goes on; `pulse_staged` tells what came of it."""
        engine: PulseEngine = self.weight_transfer_engine
        try:
            engine.begin_stage(Update(**update))
        except Exception as e:
            return {"error": f"{type(e).__name__}: {e}"}
        return {"error": ""}

    def pulse_staged(self) -> dict:
        """``error``: None while it is fetched and verified, then empty if the update can be applied."""
        engine: PulseEngine = self.weight_transfer_engine
        return {"error": engine.staged()}

    def pulse_digests(self) -> dict[str, str]:
        """SHA-256 of each parameter's bytes; a tied one under all its names."""
        return {name: hashlib.sha256(_bytes(p).numpy()).hexdigest() for name, p in self._pulse_parameters()}

    def pulse_empty(self) -> list[str]:
        """Parameters without elements: digests say nothing about them."""
        return [name for name, p in self._pulse_parameters() if not p.numel()]

    def pulse_snapshot(self) -> None:
        """Remember all parameters (and where they lie) for `pulse_changed`."""
        self._pulse_saved = {name: (p.data_ptr(), p.detach().clone()) for name, p in self._pulse_parameters()}

    def pulse_changed(self) -> dict[str, list[int]]:
        """By parameter, flat indices of the entries whose bits changed since the snapshot.

        Raises RuntimeError if a parameter moved in memory.
        """
        out = {}
        for name, p in self._pulse_parameters():
            place, old = self._pulse_saved[name]
            if p.data_ptr() != place:
                raise RuntimeError(f"{name} moved in memory: captured graphs would read the old one")
            rows = (_bytes(p) != _bytes(old)).view(-1, p.element_size()).any(1)
            if rows.any():
                out[name] = rows.nonzero().flatten().tolist()
        return out

    def _pulse_parameters(self) -> list[tuple[str, Tensor]]:
        return list(self.model_runner.get_model().named_parameters(remove_duplicate=False))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
