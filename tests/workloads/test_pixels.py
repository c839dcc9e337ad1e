import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lowcomm.workloads import pixels


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


KINDS = [("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "JPEG"), ("RGBA", "PNG"), ("P", "PNG")]


@pytest.mark.parametrize(("mode", "form"), KINDS)
def test_every_kind_of_file_becomes_rgb(mode, form):
    image = pixels.decode(encoded(Image.new(mode, (5, 3)), form), "a")
    assert (image.mode, image.size) == ("RGB", (5, 3))


@pytest.mark.parametrize("raw", [b"", b"noise", encoded(Image.new("RGB", (64, 64)))[:60]])
def test_unreadable_images_are_named(raw):
    with pytest.raises(ValueError, match="train/cat/1.JPEG: not a readable image"):
        pixels.decode(raw, "train/cat/1.JPEG")


def test_a_bomb_is_named(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="bomb: not a readable image"):
        pixels.decode(encoded(Image.new("RGB", (64, 64))), "bomb")


@given(
    width=st.integers(1, 80),
    height=st.integers(1, 80),
    draws=st.lists(st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4), min_size=10, max_size=10),
)
def test_crops_lie_in_the_image(width, height, draws):
    left, top, w, h = pixels._crop_box(width, height, (0.08, 1.0), np.array(draws))
    assert min(left, top) >= 0
    assert min(w, h) >= 1
    assert left + w <= width
    assert top + h <= height


def test_crops_have_the_areas_and_ratios_asked_for():
    draws = np.random.default_rng(0).random((2000, 10, 4))
    boxes = np.array([pixels._crop_box(400, 400, (0.25, 0.5), d) for d in draws])
    areas, ratios = boxes[:, 2] * boxes[:, 3] / 160_000, boxes[:, 2] / boxes[:, 3]
    assert (areas.min(), areas.max(), areas.mean()) == pytest.approx((0.25, 0.5, 0.375), abs=0.01)
    assert (ratios.min(), ratios.max()) == pytest.approx((3 / 4, 4 / 3), abs=0.02)
    assert np.median(ratios) == pytest.approx(1, abs=0.03)  # uniform in the log


def gradient(width=40, height=30) -> Image.Image:
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x * 6, y * 8, x + y], -1).astype(np.uint8))


def test_crops_are_a_function_of_seed_and_position():
    def crop(seed, position):
        return np.asarray(pixels.random_crop(gradient(), 8, (0.08, 1.0), seed, position)).tolist()

    assert crop(1, 2) == crop(1, 2)
    assert len({str(crop(seed, position)) for seed in range(4) for position in range(4)}) == 16


def test_half_are_flipped():
    """Red grows to the right in the image, and to the left once it is flipped."""
    crops = [np.asarray(pixels.random_crop(gradient(), 8, (0.9, 1.0), 0, p)).astype(int) for p in range(400)]
    flipped = sum(bool(c[4, 0, 0] > c[4, 7, 0]) for c in crops)
    assert 150 < flipped < 250


def test_a_centre_crop_is_the_middle():
    image = Image.new("RGB", (30, 20), (0, 0, 0))
    image.paste((255, 255, 255), (10, 5, 20, 15))
    crop = np.asarray(pixels.center_crop(image, 10, 0.5))
    assert crop.shape == (10, 10, 3)
    assert crop.min() == 255


def test_values_are_normalised():
    tensor = pixels.to_tensor([Image.new("RGB", (2, 3), (255, 0, 51))])
    assert tensor.shape == (1, 3, 3, 2)
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    assert tensor[0, :, 0, 0].tolist() == pytest.approx(expected, abs=1e-6)
