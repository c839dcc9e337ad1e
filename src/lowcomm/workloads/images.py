"""Image workloads: `Digits` ships inside scikit-learn, `ImageNet` is read from class folders or the hub."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lowcomm.workloads import pixels
from lowcomm.workloads.cache import digest
from lowcomm.workloads.classify import Classification
from lowcomm.workloads.folders import ClassFolder, HubImages


class Digits(Classification):
    """1797 handwritten digits of 8x8 pixels from scikit-learn, a fifth of each class held out.

    Args:
        name: what the record calls it.
        image_size, num_classes, channels: 8, 10 and 1; here so that model configs can refer to them.
        normalize: shift and scale pixels to mean 0 and deviation 1 over the training images; else they are in [0, 1].
        seed: order of the training images. The split does not depend on it.
    """

    def __init__(
        self,
        *,
        name: str,
        seed: int,
        image_size: int = 8,
        num_classes: int = 10,
        channels: int = 1,
        normalize: bool = True,
    ):
        from sklearn.datasets import load_digits  # slow to import, and of no use to others

        if (image_size, num_classes, channels) != (8, 10, 1):
            given = f"image_size={image_size}, num_classes={num_classes}, channels={channels}"
            raise ValueError(f"{given}: the digits have 8, 10 and 1, and are not scaled")
        data = load_digits()
        images, labels = data.images.astype(np.uint8), data.target.astype(np.int64)
        held = _held_out_digits(images, labels)
        values = images[:, None] / 16.0
        mean, std = (values[~held].mean(), values[~held].std()) if normalize else (0.0, 1.0)
        train, heldout = (torch.from_numpy((values[side] - mean) / std).float() for side in (~held, held))
        self._normalize, self._sha256 = normalize, hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
        super().__init__(
            name, lambda index, _: train[index], labels[~held], lambda index: heldout[index], labels[held], seed
        )

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "revision": "scikit-learn load_digits",
            "sha256": self._sha256,
            "normalize": self._normalize,
            "split": "of each class the fifth with the smallest sha256 of the pixels is held out",
            "licence": "UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak); shipped under BSD-3-Clause",
        }


def _held_out_digits(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """bool `(N,)`: stratified by class, decided by the images' contents alone."""
    hashes = np.array([hashlib.sha256(image.tobytes()).hexdigest() for image in images])
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        held[of_class[np.argsort(hashes[of_class])][: round(0.2 * len(of_class))]] = True
    return held


class ImageNet(Classification):
    """Class folders (`train/<class>/*.JPEG`, `val/<class>/*.JPEG`) or a dataset on the hub; classes in order of name.

    Training: random resized crop and flip, a function of (seed, position in the global order) and so the same for any
    number of workers. Evaluation: centre crop. Bilinear scaling, ImageNet's mean and deviation.

    Args:
        name: what the record calls it.
        path: folder with `train` and `val`.
        hub: instead of `path`, a dataset on the hub with columns `image` and `label`, splits `train` and `validation`;
            it is downloaded whole.
        revision: commit of `hub`, 40 hexadecimal digits.
        image_size: pixels of a side.
        num_classes: must be what the data have.
        channels: 3.
        crop_scale: smallest and largest share of the area that a training crop takes.
        eval_crop: share of the shorter side that the evaluation crop takes.
        decode_threads: images decoded at once; they do not change the batch.
        seed: order, crops and flips of the training images.
    """

    def __init__(
        self,
        *,
        name: str,
        image_size: int,
        num_classes: int,
        seed: int,
        path: str | None = None,
        hub: str | None = None,
        revision: str | None = None,
        channels: int = 3,
        crop_scale: tuple[float, float] = (0.08, 1.0),
        eval_crop: float = 0.875,
        decode_threads: int = 1,
    ):
        low, high = crop_scale
        if image_size < 1:
            raise ValueError(f"image_size={image_size}: must be at least 1")
        if channels != 3:
            raise ValueError(f"channels={channels}: images are decoded to RGB, so 3")
        if not 0 < low <= high <= 1:
            raise ValueError(f"crop_scale={list(crop_scale)}: two shares of the area, 0 < smallest <= largest <= 1")
        if not 0 < eval_crop <= 1:
            raise ValueError(f"eval_crop={eval_crop}: a share of the shorter side, in (0, 1]")
        if decode_threads < 1:
            raise ValueError(f"decode_threads={decode_threads}: must be at least 1")
        if (path is None) == (hub is None):
            raise ValueError(f"path={path}, hub={hub}: give one, a local folder or a dataset on the hub")
        source = ClassFolder(path) if hub is None else HubImages(hub, revision)
        if len(source.classes) != num_classes:
            raise ValueError(f"num_classes={num_classes}: the data have {len(source.classes)} classes; say so")
        self._pool = ThreadPoolExecutor(decode_threads)
        self._seed, self._size, self._scale, self._eval_crop = seed, image_size, (low, high), eval_crop
        self._train, self._heldout, self._source = source.train, source.heldout, source.describe()
        self._source |= {"classes_sha256": digest(source.classes)}
        super().__init__(name, self._augmented, self._train.labels, self._centred, self._heldout.labels, seed)

    def _augmented(self, index: np.ndarray, positions: np.ndarray) -> Tensor:
        def one(i: int, position: int):
            image = pixels.decode(*self._train.read(i))
            return pixels.random_crop(image, self._size, self._scale, self._seed, position)

        return pixels.to_tensor(list(self._pool.map(one, index.tolist(), positions.tolist())))

    def _centred(self, index: np.ndarray) -> Tensor:
        def one(i: int):
            return pixels.center_crop(pixels.decode(*self._heldout.read(i)), self._size, self._eval_crop)

        return pixels.to_tensor(list(self._pool.map(one, index.tolist())))

    def describe(self) -> dict[str, Any]:
        return (
            super().describe()
            | self._source
            | {
                "image_size": self._size,
                "crop_scale": list(self._scale),
                "eval_crop": self._eval_crop,
                "licence": "ImageNet: non-commercial research and education, terms of image-net.org",
            }
        )
