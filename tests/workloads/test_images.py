import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from lowcomm.workloads import Digits, ImageNet

CLASSES = ("n01", "n02", "n10")
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path):
    """Three classes of different colours: 6 training and 4 validation images each, no two alike."""
    for split, count in (("train", 6), ("val", 4)):
        for c, name in enumerate(CLASSES):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                y, x = np.mgrid[0:36, 0 : 40 + 4 * i]
                pixels = [x + 130 if k == c else 2 * y + 9 * i for k in range(3)]
                image = Image.fromarray(np.stack(pixels, -1).astype(np.uint8))
                image.save(tmp_path / split / name / f"{name}_{i}.JPEG", quality=95)
    return tmp_path


@pytest.fixture
def make(folder):
    def make(**changes):
        given = {"name": "imagenet", "path": str(folder), "image_size": 16, "num_classes": 3, "seed": 1}
        return ImageNet(**(given | changes))

    return make


def vit(image_size: int, channels: int, classes: int):
    torch.manual_seed(0)
    return ViTForImageClassification(
        ViTConfig(
            image_size=image_size,
            patch_size=image_size // 2,
            num_channels=channels,
            num_labels=classes,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.5,
        )
    )


def numbered(workload, workers, steps, size):
    return [workload.batch(w, workers, s, size) for s in range(steps) for w in range(workers)]


def test_digits_split_is_stratified_fixed_and_whole():
    one, two = Digits(name="digits", seed=1), Digits(name="digits", seed=2)
    told = one.describe()
    assert (told["images"], told["heldout_images"]) == (1438, 359)
    assert torch.equal(one._heldout_labels, two._heldout_labels)
    counts = torch.stack([torch.bincount(x) for x in (one._train_labels, one._heldout_labels)])
    assert counts.sum() == 1797
    assert ((counts[1] / counts.sum(0) - 0.2).abs() < 0.005).all()
    shown = numbered(one, 2, 1, 719)
    train = {tuple(x) for b in shown for x in b["pixel_values"].flatten(1).tolist()}
    heldout = {tuple(x) for x in one._heldout_images(np.arange(359)).flatten(1).tolist()}
    assert (len(train), len(heldout), len(train & heldout)) == (1438, 359, 0)


def test_digits_are_normalised_over_the_training_images():
    batch = Digits(name="digits", seed=1).batch(0, 1, 0, 1438)
    assert (batch["pixel_values"].shape, batch["pixel_values"].dtype) == ((1438, 1, 8, 8), torch.float32)
    assert batch["labels"].dtype == torch.int64
    assert batch["pixel_values"].mean().item() == pytest.approx(0, abs=1e-5)
    assert batch["pixel_values"].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    plain = Digits(name="digits", seed=1, normalize=False).batch(0, 1, 0, 1438)["pixel_values"]
    assert (plain.min(), plain.max()) == (0, 1)


def test_digits_pixels_and_labels_belong_together():
    from sklearn.datasets import load_digits

    data = load_digits()
    known = {x.tobytes(): y for x, y in zip((data.images / 16).astype(np.float32), data.target, strict=True)}
    batch = Digits(name="digits", seed=3, normalize=False).batch(1, 2, 4, 50)
    assert [known[x.numpy().tobytes()] for x in batch["pixel_values"][:, 0]] == batch["labels"].tolist()


def test_too_few_digits():
    workload = Digits(name="digits", seed=1)
    with pytest.raises(ValueError, match="23 workers x 64 samples = 1472 a step, .* only 1438 training images"):
        workload.batch(0, 23, 0, 64)
    with pytest.raises(ValueError, match="eval_samples=360: there are only 359 held-out images"):
        workload.check(1, 1, 360)


@pytest.mark.parametrize("change", [{"image_size": 16}, {"num_classes": 2}, {"channels": 3}])
def test_digits_are_not_scaled(change):
    with pytest.raises(ValueError, match="the digits have 8, 10 and 1"):
        Digits(name="digits", seed=1, **change)


@pytest.mark.parametrize("kind", ["digits", "imagenet"])
def test_loss_and_evaluation(kind, make):
    workload = Digits(name="digits", seed=1) if kind == "digits" else make()
    model = vit(8, 1, 10) if kind == "digits" else vit(16, 3, 3)
    model.train()
    n = 11
    random = torch.random.get_rng_state()
    values = [workload.evaluate(model, n, batch) for batch in (1, 4, 11, 20)]
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    index = workload._evaluation[:n]
    with torch.no_grad():
        logits = model.eval()(pixel_values=workload._heldout_images(index)).logits.double()
    labels = workload._heldout_labels[index]
    loss = -torch.log_softmax(logits, -1)[torch.arange(n), labels].mean().item()
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    for value in values:
        assert value == {"loss": pytest.approx(loss, rel=1e-5), "accuracy": pytest.approx(accuracy), "n": n}
    batch = workload.batch(0, 1, 0, 5)
    train_loss = workload.loss(model, batch)
    logits = model(pixel_values=batch["pixel_values"]).logits.double()
    assert train_loss.item() == pytest.approx(
        -torch.log_softmax(logits, -1)[torch.arange(5), batch["labels"]].mean().item(), rel=1e-5
    )
    assert (train_loss.dtype, train_loss.shape) == (torch.float32, ())


def test_a_batch_of_imagenet(make):
    workload = make()
    batch = workload.batch(0, 2, 0, 9)
    assert (batch["pixel_values"].shape, batch["pixel_values"].dtype) == ((9, 3, 16, 16), torch.float32)
    both = torch.cat([batch["labels"], workload.batch(1, 2, 0, 9)["labels"]])
    assert torch.bincount(both).tolist() == [6, 6, 6]
    assert (batch["pixel_values"].mean((2, 3)).argmax(1) == batch["labels"]).all()  # the class is the brightest colour
    assert (workload.unit, workload.units_per_sample) == ("images", 1)


def test_imagenet_batches_are_pure(make):
    calls = [(w, 2, step, 3) for step in (0, 2, 40) for w in range(2)]
    first = make()
    told = [first.batch(*c)["pixel_values"] for c in calls]
    again = [first.batch(*c)["pixel_values"] for c in reversed(calls)][::-1]
    threads = [make(decode_threads=4).batch(*c)["pixel_values"] for c in calls]
    assert all(torch.equal(a, b) for a, b in zip(told, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(told, threads, strict=True))
    assert not torch.equal(make(seed=2).batch(*calls[0])["pixel_values"], told[0])


def test_a_step_shows_the_same_crops_for_any_number_of_workers(make):
    workload = make()
    alone = workload.batch(0, 1, 5, 12)["pixel_values"].flatten(1).tolist()
    together = [x for b in numbered(workload, 4, 6, 3)[-4:] for x in b["pixel_values"].flatten(1).tolist()]
    assert sorted(alone) == sorted(together)


def test_an_image_is_cropped_anew_in_each_epoch(make):
    workload = make()
    first, second = (workload.batch(0, 1, step, 18)["pixel_values"].flatten(1).tolist() for step in (0, 1))
    assert not {tuple(x) for x in first} & {tuple(x) for x in second}


def test_evaluation_images_are_centre_crops_in_a_fixed_order(make):
    one, two = make(), make(seed=5)
    assert torch.equal(one._heldout_images(np.arange(12)), two._heldout_images(np.arange(12)))
    assert one._evaluation.tolist() == two._evaluation.tolist()
    assert one._evaluation.tolist() != sorted(one._evaluation.tolist())


def test_folders_that_are_not_as_they_should_be(make, folder):
    with pytest.raises(ValueError, match="num_classes=1000: the data have 3 classes"):
        make(num_classes=1000)
    with pytest.raises(ValueError, match=r"train: no such folder; workload\.path must hold train/<class>/"):
        make(path=str(folder / "nowhere"))
    (folder / "val" / "n99").mkdir()
    with pytest.raises(ValueError, match="val has classes that train has not: n99"):
        make()
    (folder / "val" / "n99").rmdir()
    (folder / "train" / "n05").mkdir()
    with pytest.raises(ValueError, match=r"n05: no image \(.jpeg"):
        make()


def test_an_unreadable_image_is_named(make, folder):
    (folder / "train/n02/n02_3.JPEG").write_bytes(b"noise")
    with pytest.raises(ValueError, match=r"train/n02/n02_3\.JPEG: not a readable image"):
        make().batch(0, 1, 0, 18)


def test_the_hub_gives_the_same_batches_as_folders(make, folder, monkeypatch):
    files = {local: sorted((folder / local).rglob("*.JPEG")) for local in ("train", "val")}

    def load_dataset(name, *, revision):
        assert (name, revision) == ("a/b", SHA)
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
        return {
            split: datasets.Dataset.from_dict(
                {
                    "image": [
                        str(f) if local == "val" else {"path": None, "bytes": f.read_bytes()} for f in files[local]
                    ],
                    "label": [CLASSES.index(f.parent.name) for f in files[local]],
                },
                features=features,
            )
            for split, local in (("train", "train"), ("validation", "val"))
        }

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    local, hub = make(), make(path=None, hub="a/b", revision=SHA)
    a, b = local.batch(0, 1, 0, 6), hub.batch(0, 1, 0, 6)
    assert torch.equal(a["labels"], b["labels"])
    assert torch.equal(a["pixel_values"], b["pixel_values"])
    assert torch.equal(local._heldout_images(np.arange(12)), hub._heldout_images(np.arange(12)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": None}, "give one"),
        ({"hub": "a/b"}, "give one"),
        ({"path": None, "hub": "a/b"}, "workload.revision=None"),
        ({"channels": 1}, "channels=1"),
        ({"crop_scale": (0.0, 1.0)}, "crop_scale"),
        ({"crop_scale": (0.9, 0.5)}, "crop_scale"),
        ({"eval_crop": 0.0}, "eval_crop=0.0"),
        ({"decode_threads": 0}, "decode_threads=0"),
        ({"image_size": 0}, "image_size=0"),
    ],
)
def test_refusals(make, change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_descriptions_are_for_everybody(make, folder):
    told = make().describe()
    assert str(folder) not in json.dumps(told)
    assert (told["images"], told["heldout_images"]) == (18, 12)
    json.dumps(Digits(name="digits", seed=1).describe())
