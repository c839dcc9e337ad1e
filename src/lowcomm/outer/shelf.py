"""Where the tensors of an idle worker rest: beside the model, in CPU memory, or memory-mapped on disk.

A shelf on disk is a file without a name: nothing is left behind by a run that ends or dies, since checkpoints are what
a run resumes from. Every tensor begins on a page of its own, so that it can be let go of alone.
"""

import mmap
import tempfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

Place = Literal["device", "cpu", "disk"]


class Shelf:
    """Copies of tensors, laid down with `put` and read with `get`.

    folder: the disk to rest on; None: CPU memory.
    """

    def __init__(self, tensors: dict[str, Tensor], folder: Path | None):
        self.tensors, self.spans = {}, {}
        if folder is None:
            self.map = None
            for name, t in tensors.items():
                self.tensors[name] = torch.empty(t.shape, dtype=t.dtype, device="cpu")
            return
        end = 0
        for name, t in tensors.items():
            self.spans[name] = (end, -(-max(1, t.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE)
            end += self.spans[name][1]
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(end)
            self.map = mmap.mmap(file.fileno(), end)
        for name, t in tensors.items():
            flat = torch.frombuffer(self.map, dtype=t.dtype, count=t.numel(), offset=self.spans[name][0])
            self.tensors[name] = flat.view(t.shape)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Copy tensors of the known names, shapes and dtypes onto the shelf, from any device."""
        for name, t in tensors.items():
            self.tensors[name].copy_(t)
            self.let_go(name)

    def let_go(self, name: str) -> None:
        """Give the memory of one tensor back to the system; its values stay on the disk."""
        if self.map is not None:
            self.map.madvise(mmap.MADV_DONTNEED, *self.spans[name])
