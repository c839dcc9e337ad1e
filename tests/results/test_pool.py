import multiprocessing
import os
import time

import pytest

from lowcomm.results.pool import work_through


def work(what: str, folder: str) -> str:
    if what == "raise":
        raise ValueError("no good")
    if what == "die":
        os._exit(3)
    if what == "start others":
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join()
        return f"ended with {child.exitcode}"
    if what == "wait":
        open(f"{folder}/waiting", "w").close()
        time.sleep(250)
    return f"{what} by {os.getpid()}"


def ends(tasks: list[str], tmp_path, jobs: int) -> list[tuple]:
    left = list(tasks)
    take = lambda: left.pop(0) if left else None  # noqa: E731
    return list(work_through(take, lambda t: (t, str(tmp_path)), work, jobs, tmp_path / "logs"))


def test_a_failure_and_a_death_cost_one_task_each(tmp_path):
    results = ends(["a", "raise", "b", "die", "c"], tmp_path, jobs=1)
    assert [(t, s) for t, s, _ in results] == [
        ("a", "done"), ("raise", "failed"), ("b", "done"), ("die", "failed"), ("c", "done")
    ]  # fmt: skip
    said = [r for _, _, r in results]
    assert said[1] == "ValueError: no good"
    assert said[3] == "the process ended with exit code 3"
    assert said[0].split()[-1] == said[2].split()[-1] != said[4].split()[-1], "one process until it died"
    assert "no good" in (tmp_path / "logs" / "process0.log").read_text()


def test_a_task_may_start_processes_of_its_own(tmp_path):
    """As a run with several trainers does."""
    assert ends(["start others"], tmp_path, jobs=1) == [("start others", "done", "ended with 0")]


def test_tasks_may_appear_after_others_end(tmp_path):
    done = []

    def take():
        return "first" if not done else "second" if done == ["first"] else None

    taken = []

    def once():
        task = take()
        if task in taken:
            return None
        taken.append(task)
        return task

    for task, _, _ in work_through(once, lambda t: (t, ""), work, 2, tmp_path):
        done.append(task)
    assert done == ["first", "second"]


def test_leaving_early_stops_the_processes(tmp_path, capsys):
    tasks = iter(["wait", "a"])
    running = work_through(lambda: next(tasks, None), lambda t: (t, str(tmp_path)), work, 2, tmp_path)
    assert next(running)[0] == "a"
    while not (tmp_path / "waiting").exists():
        time.sleep(0.05)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt())
    assert not multiprocessing.active_children(), "the one at work was not left to finish"
    assert "stopping: jobs at work save their checkpoints (1 of them, 30 s at most)" in capsys.readouterr().err
