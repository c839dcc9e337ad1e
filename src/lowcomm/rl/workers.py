"""Text from rollout workers: `lowcomm.rollout.dispatcher` as the trainer sees it."""

from lowcomm.rl.publishing import Publishing
from lowcomm.rollout import Completion, Job
from lowcomm.rollout.dispatcher import Dispatcher
from lowcomm.rollout.local import LocalWorkers


class Workers:
    """Jobs go to whichever workers are there; they must stand on exactly the published bits.

    ``newest``: the next text may come from the version just published; where it is to be older, workers stay behind.
    ``local``, if given before the first version: workers that start with it and end with the run.
    """

    local: LocalWorkers | None = None

    def __init__(self, listen: str, token: str, wait_limit_s: float, publishing: Publishing, newest: bool):
        self.dispatcher, self.newest = Dispatcher(listen, token, wait_limit_s), newest
        self.address = self.dispatcher.address
        self.publishing = publishing
        publishing.on_version = self.announce

    def announce(self, version: int, digest: str) -> None:
        """Workers take the version now, between jobs, rather than when they are asked for text; if it will serve."""
        self.dispatcher.announce(version, digest)
        if self.newest:
            self.dispatcher.follow(version)
        if self.local:
            self.local.start()

    def generate(self, jobs: list[Job], at_least: int, at_most: int) -> list[list[Completion]]:
        if at_least not in self.dispatcher.expected:  # published before this session; its bits are known all the same
            for version, digest in self.publishing.digests(at_least, at_most).items():
                self.dispatcher.announce(version, digest)
        return self.dispatcher.generate(jobs, at_least, at_most)

    def close(self) -> None:
        self.dispatcher.close()
        if self.local:
            self.local.close()
