"""Numbered, labelled, encoded images: from class folders, or from a dataset on the hub."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowcomm.workloads.cache import digest
from lowcomm.workloads.web import pinned

SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class Images:
    """`labels`: int64 `(N,)`; `read(i)`: the bytes of image i and its name."""

    labels: np.ndarray
    read: Callable[[int], tuple[bytes, str]]


class ClassFolder:
    """`train/<class>/*` and `val/<class>/*`; class c is the c-th folder of `train` in order of name."""

    def __init__(self, path: str):
        root = Path(path).absolute()
        self.classes = _class_names(root / "train")
        extra = sorted(set(_class_names(root / "val")) - set(self.classes))
        if extra:
            raise ValueError(f"workload.path={path}: val has classes that train has not: {', '.join(extra[:5])}")
        self._names: dict[str, list[str]] = {}
        self.train, self.heldout = self._images(root, "train"), self._images(root, "val")

    def _images(self, root: Path, split: str) -> Images:
        names, labels = [], []
        for label, cls in enumerate(self.classes):
            folder = root / split / cls
            if not folder.is_dir():
                continue  # val may lack a class; _class_names has checked train
            files = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() in SUFFIXES)
            if not files and split == "train":
                raise ValueError(f"{folder}: no image ({', '.join(SUFFIXES)}); add some or remove the folder")
            names += [f"{split}/{cls}/{file}" for file in files]
            labels += [label] * len(files)
        if not names:
            raise ValueError(f"{root / split}: no image ({', '.join(SUFFIXES)}) in its class folders")
        self._names[split] = names
        return Images(np.array(labels, dtype=np.int64), lambda i: ((root / names[i]).read_bytes(), names[i]))

    def describe(self) -> dict[str, Any]:
        """Hash of all file names; of a folder there is no revision."""
        return {"hub": None, "revision": None, "manifest_sha256": digest(self._names)}  # names: hashing takes hours


def _class_names(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; workload.path must hold train/<class>/ and val/<class>/")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise ValueError(f"{folder}: no class folders; images must lie in {folder.name}/<class>/")
    return names


class HubImages:
    """Columns `image` and `label` of the splits `train` and `validation`."""

    def __init__(self, hub: str, revision: str | None):
        pinned(revision, "workload.revision", f"the dataset {hub}")
        from datasets import Image, load_dataset  # slow to import, and of no use to a folder

        from lowcomm.hub import asking, of_commit

        with asking(f"workload.hub={hub}", "give a copy with workload.path=FOLDER"):
            data = load_dataset(hub, revision=revision)
            data = {split: of_commit(data[split], revision) for split in data}
        for split in ("train", "validation"):
            if split not in data or not {"image", "label"} <= set(data[split].column_names):
                raise ValueError(f"workload.hub={hub}: needs a split {split!r} with columns 'image' and 'label'")
        self.classes = data["train"].features["label"].names
        self._hub, self._revision = hub, revision

        def images(split: str) -> Images:
            rows = data[split].cast_column("image", Image(decode=False))
            labels = np.asarray(rows["label"][:], dtype=np.int64)
            return Images(labels, lambda i: (_bytes(rows[i]["image"]), f"{hub}, {split} {i}"))

        self.train, self.heldout = images("train"), images("validation")

    def describe(self) -> dict[str, Any]:
        """Repository and commit."""
        return {"hub": self._hub, "revision": self._revision}


def _bytes(image: dict[str, Any]) -> bytes:
    """A row holds the image itself or, in datasets made of folders, where it is."""
    return Path(image["path"]).read_bytes() if image["bytes"] is None else image["bytes"]
