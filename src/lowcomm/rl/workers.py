"""Text from rollout workers: `lowcomm.rollout.dispatcher` as the trainer sees it."""

from lowcomm.rl.publishing import Publishing
from lowcomm.rollout import Completion, Job
from lowcomm.rollout.dispatcher import Dispatcher


class Workers:
    """Jobs go to whichever workers are there; they must stand on exactly the published bits."""

    def __init__(self, listen: str, token: str, wait_limit_s: float, publishing: Publishing):
        self.dispatcher = Dispatcher(listen, token, wait_limit_s)
        self.address = self.dispatcher.address
        publishing.on_version = self.announce

    def announce(self, version: int, digest: str) -> None:
        """Workers take the version now, between jobs, rather than when they are asked for text."""
        self.dispatcher.announce(version, digest)
        self.dispatcher.follow(version)

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        return self.dispatcher.generate(jobs, at_least, at_most)

    def close(self) -> None:
        self.dispatcher.close()
