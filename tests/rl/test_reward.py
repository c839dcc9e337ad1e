"""One reward for training and evaluation, and what it counts in the log."""

from types import SimpleNamespace

from lowcomm.rl.toy import Letters
from lowcomm.rl.trainer import GrpoTrainer
from lowcomm.tasks import Arithmetic


def rewarded(task, completions: list[str]) -> tuple[list[float], dict[str, float]]:
    problems = {p.id: p for p in task.problems("train")}
    trainer = SimpleNamespace(task=task, prompts=SimpleNamespace(problems=problems), rollout_values={})
    values = GrpoTrainer.reward(trainer, [next(iter(problems))] * len(completions), completions)
    return values, trainer.rollout_values


def test_the_graders_counts_are_those_of_the_batch_and_not_of_the_session():
    task = Arithmetic(name="sums", seed=0, levels=[1], train_size=4, test_size=4)
    answer = task.problems("train")[0].answer
    batch = [f"\\boxed{{{answer}}}", "\\boxed{1000}", "no idea"]
    for _ in range(2):  # a resumed run, whose grader begins at 0, logs the same
        values, logged = rewarded(task, batch)
        assert values == [1.0, 0.0, 0.0]
        assert logged["grade/fast_path"] == 2
        assert logged["grade/verify_timeout"] == logged["grade/verify_error"] == 0
        assert logged["rollout/correct"] == 1 / 3
    task.close()


def test_a_task_without_a_grader_counts_nothing():
    values, logged = rewarded(Letters(name="letters", seed=0), ["abc", "123"])
    assert values == [1.0, 0.0]
    assert "grade/share" in logged
