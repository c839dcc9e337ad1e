"""PyCode, and what it shares with every text workload."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lowcomm.workloads import PyCode, text
from lowcomm.workloads.tokens import EOS
from tests.workloads.conftest import prose


@pytest.fixture
def make(sources, tmp_path):
    def make(**changes):
        given = {"name": "pycode", "seq_len": 16, "vocab_size": 300, "seed": 1, "holdout": 0.3}
        return PyCode(**(given | {"cache_dir": str(tmp_path / "cache")} | changes))

    return make


def caches(folder) -> list:
    return [path for path in folder.glob("pycode-*") if path.is_dir()]


def built(tmp_path, name="cache"):
    return caches(tmp_path / name)[0]


def documents(folder, split: str) -> list[str]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = np.load(folder / f"{split}.npy").tolist()
    ends = [i for i, token in enumerate(ids) if token == tokenizer.token_to_id(EOS)]
    starts = [0, *(end + 1 for end in ends[:-1])]
    assert ends[-1] == len(ids) - 1
    return [tokenizer.decode(ids[a:b]) for a, b in zip(starts, ends, strict=True)]


def test_every_file_is_on_exactly_one_side(make, tmp_path):
    """No file is lost or altered, and none of the held-out text can be seen in training."""
    make()
    train, heldout = documents(built(tmp_path), "train"), documents(built(tmp_path), "heldout")
    assert sorted(train + heldout) == sorted(prose(i) for i in range(40))
    assert 5 <= len(heldout) <= 20


def test_the_tokenizer_never_sees_held_out_text(make, tmp_path, monkeypatch):
    shown, train = [], text.train_tokenizer
    monkeypatch.setattr(text, "train_tokenizer", lambda texts, size: train(shown.extend(texts) or shown, size))
    make()
    assert sorted(shown) == sorted(documents(built(tmp_path), "train"))


def test_the_split_does_not_depend_on_the_seed_or_on_other_files(make, sources, tmp_path):
    before = make().describe()["heldout_sha256"]
    assert make(seed=2).describe()["heldout_sha256"] == before
    for i in range(100, 140):
        (sources / f"a{i}.py").write_text(prose(i))
    make(cache_dir=str(tmp_path / "more"))
    assert set(documents(built(tmp_path), "heldout")) < set(documents(built(tmp_path, "more"), "heldout"))
    assert not set(documents(built(tmp_path), "heldout")) & set(documents(built(tmp_path, "more"), "train"))


def test_batches(make):
    workload = make()
    batch = workload.batch(1, 2, 3, 5)
    assert set(batch) == {"input_ids"}
    assert (batch["input_ids"].shape, batch["input_ids"].dtype) == ((5, 16), torch.int64)
    assert batch["input_ids"].min() >= 0
    assert batch["input_ids"].max() < 300
    assert (workload.unit, workload.units_per_sample) == ("tokens", 16)
    assert workload.describe()["windows"] == len(np.unique(all_rows(workload), axis=0))


def all_rows(workload):
    n = workload.describe()["windows"]
    return np.concatenate(
        [workload.batch(w, 2, step, 1)["input_ids"] for step in range(n // 2) for w in range(2)]
        + [workload.batch(0, 2, n // 2, 1)["input_ids"]] * (n % 2)
    )


def test_an_epoch_is_the_training_stream(make, tmp_path):
    """All workers together show every window once, cut from the concatenated training files."""
    workload = make()
    stream = np.load(built(tmp_path) / "train.npy").astype(np.int64)
    windows = stream[: len(stream) // 16 * 16].reshape(-1, 16)
    assert sorted(all_rows(workload).tolist()) == sorted(windows.tolist())


def test_batches_are_pure(make, tmp_path):
    calls = [(w, 2, step, 4) for step in (0, 7, 200) for w in range(2)]
    first = make()
    told = [first.batch(*c)["input_ids"] for c in calls]
    again = [first.batch(*c)["input_ids"] for c in reversed(calls)][::-1]
    other_cache = [make(cache_dir=str(tmp_path / "other")).batch(*c)["input_ids"] for c in calls]
    assert all(torch.equal(a, b) for a, b in zip(told, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(told, other_cache, strict=True))
    told[0].zero_()  # a batch is the caller's own
    assert torch.equal(first.batch(*calls[0])["input_ids"], again[0])
    assert not torch.equal(make(seed=2).batch(*calls[1])["input_ids"], told[1])


def test_a_fresh_process_gives_the_same_batch(make, tmp_path, sources):
    code = f"""
from pathlib import Path
from lowcomm.workloads import PyCode, corpora
corpora.stdlib_files = lambda: [(f"stdlib/{{f.name}}", f) for f in Path({str(sources)!r}).glob("*.py")]
w = PyCode(name="pycode", seq_len=16, vocab_size=300, seed=1, holdout=0.3, cache_dir={str(tmp_path / "fresh")!r})
print(w.batch(1, 2, 3, 2)["input_ids"].tolist())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(told) == make().batch(1, 2, 3, 2)["input_ids"].tolist()


def test_a_step_shows_the_same_windows_for_any_number_of_workers(make):
    workload = make()
    alone = workload.batch(0, 1, 5, 12)["input_ids"].tolist()
    together = [row for w in range(4) for row in workload.batch(w, 4, 5, 3)["input_ids"].tolist()]
    assert sorted(alone) == sorted(together)


def test_too_little_data_says_what_to_do(make):
    workload = make()
    n = workload.describe()["windows"]
    workload.check(1, n)
    message = rf"3 workers x {n} samples = {3 * n} a step, but there are only {n} training windows.*=16.*packages"
    with pytest.raises(ValueError, match=message):
        workload.batch(0, 3, 0, n)
    with pytest.raises(ValueError, match=message):
        workload.check(3, n)
    with pytest.raises(ValueError, match="eval_samples=100000"):
        workload.check(1, 1, 100_000)


def test_loss_is_the_mean_over_predicted_tokens(make, tiny_llama):
    workload, model = make(), tiny_llama.eval()
    batch = workload.batch(0, 1, 0, 3)
    ids = batch["input_ids"]
    logits = model(input_ids=ids).logits.double()
    expected = -torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).mean()
    loss = workload.loss(model, batch)
    assert (loss.dtype, loss.shape) == (torch.float32, ())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_is_token_weighted_and_leaves_no_trace(make, tiny_llama):
    workload, model = make(), tiny_llama.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.random.get_rng_state()
    values = [workload.evaluate(model, 7, batch) for batch in (1, 3, 7, 50)]
    assert all(v["n"] == 7 * 15 for v in values)
    assert all(v["loss"] == pytest.approx(values[0]["loss"], rel=1e-6) for v in values)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_evaluation_shows_held_out_windows_the_same_for_every_seed(make, tiny_llama, tmp_path):
    shown = {}
    for seed in (1, 2):
        rows = shown.setdefault(seed, [])

        class Spy(torch.nn.Module):
            def __init__(self, rows):
                super().__init__()
                self.inner, self.rows = tiny_llama, rows

            def forward(self, input_ids, labels):
                self.rows += input_ids.tolist()
                return self.inner(input_ids=input_ids, labels=labels)

        make(seed=seed).evaluate(Spy(rows), 9, 4)
    assert shown[1] == shown[2]
    stream = np.load(built(tmp_path) / "heldout.npy").astype(int)
    windows = stream[: len(stream) // 16 * 16].reshape(-1, 16).tolist()
    assert all(row in windows for row in shown[1])
    assert len({tuple(row) for row in shown[1]}) == 9


def test_changed_sources_are_tokenized_anew(make, sources):
    before = make().describe()
    (sources / "module00.py").write_text(prose(1000))
    after = make().describe()
    assert before["manifest_sha256"] != after["manifest_sha256"]
    assert before["train_sha256"] != after["train_sha256"] or before["heldout_sha256"] != after["heldout_sha256"]


def test_damaged_tokens_are_not_trained_on(make, tmp_path):
    make()
    file = built(tmp_path) / "train.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"train\.npy: damaged since it was written; delete its folder"):
        make()


def test_description_is_for_everybody(make, tmp_path):
    told = json.dumps(make().describe())
    assert str(tmp_path) not in told
    assert sys.prefix not in told
    manifest = json.loads((built(tmp_path) / "manifest.json").read_text())
    assert len(manifest["files"]) == 40
    assert all(name.startswith("stdlib/") for name, _, _ in manifest["files"])


def test_another_recipe_is_another_cache(make, monkeypatch, tmp_path):
    make()
    monkeypatch.setattr(text, "RECIPE", 99)
    make()
    assert len(caches(tmp_path / "cache")) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 1}, "seq_len=1"),
        ({"vocab_size": 256}, "vocab_size=256"),
        ({"vocab_size": 70000}, "vocab_size=70000"),
        ({"holdout": 0.0}, "holdout=0.0"),
        ({"holdout": 1.0}, "holdout=1.0"),
        ({"corpus": "web"}, "corpus=web"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_refusals(make, change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)
