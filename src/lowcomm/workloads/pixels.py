"""From image bytes to normalised pixels, with PIL, NumPy and torch alone."""

import io
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training images, RGB in [0, 1]
RATIO = (3 / 4, 4 / 3)  # of a training crop's sides
ATTEMPTS = 10
STREAM = 1  # keeps the bits of crops apart from those of the order, which have the same key


def decode(raw: bytes, name: str) -> Image.Image:
    """RGB. Raises ValueError naming the image if it cannot be read."""
    try:
        return Image.open(io.BytesIO(raw)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}: not a readable image; replace or remove it") from error


def random_crop(image: Image.Image, size: int, scale: tuple[float, float], seed: int, position: int) -> Image.Image:
    """Random resized crop and horizontal flip ("Inception style"): a pure function of image, seed and position.

    The crop's area is uniform in `scale` (share of the image), the log of its ratio uniform in [log 3/4, log 4/3];
    after ten crops that do not fit, the middle. Draws depend on the position in the global order, not on the worker.
    """
    counter = np.array([0, 0, 0, STREAM], dtype=np.uint64)
    key = np.array([seed, position], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=counter).random_raw(4 * ATTEMPTS + 1)
    uniform = (bits >> np.uint64(11)) * 2.0**-53  # float64 in [0, 1)
    left, top, width, height = _crop_box(image.width, image.height, scale, uniform[1:].reshape(ATTEMPTS, 4))
    box = (left, top, left + width, top + height)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if uniform[0] < 0.5 else image


def _crop_box(width: int, height: int, scale: tuple[float, float], draws: np.ndarray) -> tuple[int, int, int, int]:
    for area, ratio, x, y in draws.tolist():
        target = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * ratio)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(x * (width - w + 1)), int(y * (height - h + 1)), w, h
    w = max(1, min(width, round(height * RATIO[1])))
    h = max(1, min(height, round(width / RATIO[0])))
    return (width - w) // 2, (height - h) // 2, w, h


def center_crop(image: Image.Image, size: int, share: float) -> Image.Image:
    """The middle square whose side is `share` of the shorter side, scaled to `size`."""
    side = share * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def to_tensor(images: list[Image.Image]) -> Tensor:
    """FP32 `(N, 3, height, width)`, normalised with ImageNet's mean and deviation."""
    pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD))
    return ((pixels.float() / 255 - mean) / std).contiguous()
