import pytest
import torch

from lowcomm.pulse import Missing, digest
from lowcomm.rollout.generation import Job, Sampling, generate_job
from lowcomm.rollout.transformers_engine import TransformersEngine, end_tokens, skeleton
from tests.rollout.tiny import masters, model, publish, save, served

GREEDY = Sampling(12, temperature=0.0)
PROMPTS = [[7, 3, 9, 21, 4, 4, 17], [5], [11, 2, 8], [5]]


@pytest.fixture
def store(tmp_path):
    return publish(tmp_path / "store", range(5))


def engine(store, family="llama", eos=None, version=0, **arguments):
    made = TransformersEngine(model(family, seed=99, eos=eos), store, **arguments)
    made.advance(version)
    return made


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_greedy_is_what_generate_of_hugging_face_gives(tmp_path, family):
    ours = engine(publish(tmp_path, range(1), family), family)
    theirs = model(family)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(p.bfloat16())
    out = ours.generate(PROMPTS, [0] * 4, GREEDY)
    for prompt, completion in zip(PROMPTS, out, strict=True):
        expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
        assert completion.tokens == expected.tolist()
        assert not completion.finished
        # the trainer's own computation: one pass over the whole text
        with torch.no_grad():
            logits = theirs(torch.tensor([prompt + completion.tokens])).logits[0, len(prompt) - 1 : -1]
        values = torch.log_softmax(logits, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), values, atol=2e-5, rtol=0)


def test_padding_changes_nothing_that_is_seen(store):
    """transformers#26569: padding on the right makes the shorter prompts' continuations nonsense."""
    ours = engine(store)
    together = ours.generate(PROMPTS, [1, 2, 3, 4], GREEDY)
    for prompt, seed, completion in zip(PROMPTS, [1, 2, 3, 4], together, strict=True):
        (alone,) = ours.generate([prompt], [seed], GREEDY)
        assert alone.tokens == completion.tokens
        torch.testing.assert_close(alone.logprobs, completion.logprobs, atol=2e-5, rtol=0)


def test_a_completion_depends_on_its_seed_and_not_on_its_neighbours(store):
    ours, how = engine(store), Sampling(10, temperature=1.3)
    group = ours.generate([PROMPTS[0]] * 3, [10, 11, 12], how)
    others = ours.generate([PROMPTS[2], PROMPTS[0], PROMPTS[1]], [10, 11, 13], how)
    assert group[1].tokens == others[1].tokens
    assert len({tuple(c.tokens) for c in group}) == 3
    job = Job(PROMPTS[0], [10, 11, 12], how)
    assert generate_job(ours, job) == group  # bitwise, log-probabilities too


def test_log_probabilities_are_divided_by_the_temperature(store):
    ours = engine(store)
    (completion,) = ours.generate([PROMPTS[0]], [3], Sampling(5, temperature=0.5))
    tokens = PROMPTS[0] + completion.tokens
    with torch.no_grad():
        logits = ours.model(torch.tensor([tokens])).logits[0, len(PROMPTS[0]) - 1 : -1]
    values = torch.log_softmax(logits / 0.5, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.logprobs), values, atol=2e-5, rtol=0)


def test_every_end_token_ends_and_is_kept(store):
    """huggingface/trl#7039: Gemma ends with 106 as well as with 1."""
    free = engine(store).generate(PROMPTS, [1, 2, 3, 4], Sampling(20))
    first, second = free[0].tokens[4], next(t for t in free[2].tokens[3:] if t != free[0].tokens[4])
    bound = engine(store, eos=[first, second]).generate(PROMPTS, [1, 2, 3, 4], Sampling(20))
    assert {c.tokens[-1] for c in bound if c.finished} == {first, second}
    for long, short in zip(free, bound, strict=True):
        ends = [i for i, t in enumerate(long.tokens) if t in (first, second)]
        assert short.tokens == (long.tokens[: ends[0] + 1] if ends else long.tokens)
        assert short.finished == bool(ends)
        assert len(short.logprobs) == len(short.tokens)


def test_end_tokens_come_from_the_generation_config_first():
    made = model(eos=[4, 6])
    made.config.eos_token_id = 4
    assert end_tokens(made) == {4, 6}
    made.generation_config.eos_token_id = None
    assert end_tokens(made) == {4}


def test_the_engine_holds_the_masters_cast_at_every_version(store):
    ours = engine(store)
    for version in (0, 1, 4, 2):  # forward, a jump, and back through an anchor
        assert ours.advance(version) == ours.version == version
        assert ours.digest() == digest(served(masters(version))).hex()
        assert all(torch.equal(p, p.bfloat16().float()) for p in ours.model.parameters())
    assert ours.generate([[5]], [0], GREEDY)[0].version == 2


def test_a_version_that_is_not_there_leaves_the_weights(store):
    ours = engine(store, version=3)
    before = ours.digest()
    with pytest.raises(Missing, match="version 9"):
        ours.advance(9)
    assert (ours.version, ours.digest()) == (3, before)


def test_skeleton_takes_the_architecture_and_the_end_tokens(tmp_path, store):
    made = skeleton(save(tmp_path / "model", eos=[3, 5]))
    ours = TransformersEngine(made, store)
    ours.advance(1)
    assert ours.eos == {3, 5}
    assert ours.digest() == digest(served(masters(1))).hex()
    with pytest.raises(ValueError, match="config.json"):
        skeleton(tmp_path)


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "at least one"), ([50], "from 0 to 49"), ([1] * 120, "exceed the model's 128")]
)
def test_prompts_that_do_not_fit_are_refused(store, prompt, message):
    with pytest.raises(ValueError, match=message):
        engine(store).generate([[1], prompt], [0, 1], GREEDY)
    with pytest.raises(ValueError, match="no weights yet"):
        TransformersEngine(model(), store).generate([[1]], [0], GREEDY)


def test_truncated_sampling_is_warned_of_once(store, caplog):
    ours = engine(store)
    for _ in range(2):
        ours.generate([[1]], [0], Sampling(1, top_p=0.9))
    assert [r.message for r in caplog.records if "biased" in r.message] != []
    assert len([r for r in caplog.records if "biased" in r.message]) == 1
