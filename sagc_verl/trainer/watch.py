"""Ends a run that would otherwise hang for ever: a dead rollout worker, or a weight sync that never comes back.

veRL 0.9.1 polls its replay buffer without end when the process that should fill it is gone, and the sending side of a
weight sync waits without end for a receiver that failed (bucketed_weight_transfer.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.exceptions

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0


class WorkerWatch:
    """Notices dead Ray actors without waiting for the live ones."""

    def __init__(self, actors: Sequence[tuple[str, Any]]) -> None:
        """`actors`: names for messages, and handles."""
        self._actors = list(actors)
        self._pings: dict[Any, str] = {}
        self._next_check = 0.0

    def check(self) -> None:
        """Raise when an actor is dead; cheap enough to be called at every poll.

        Raises:
            RuntimeError: names the actor and Ray's reason.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        waiting = set(self._pings.values())
        for name, actor in self._actors:
            if name not in waiting:
                self._pings[actor.__ray_ready__.remote()] = name
        answered, _ = ray.wait(list(self._pings), num_returns=len(self._pings), timeout=0.05)
        for ping in answered:
            name = self._pings.pop(ping)
            try:
                ray.get(ping)
            except ray.exceptions.RayActorError as error:
                raise RuntimeError(
                    f"sagc_verl: {name} died while the trainer waited for its rollouts; training cannot go on. {error}"
                ) from error


def within(seconds: float, what: str, action: Callable[[], None], kill: Sequence[Any]) -> None:
    """Run `action`; when it takes longer than `seconds`, kill the actors it waits for and raise.

    Raises:
        TimeoutError: names `what` and the limit.
    """
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        logger.error("sagc_verl: %s has not come back within %.0f s: ending the run", what, seconds)
        for actor in kill:
            ray.kill(actor)  # the only way to wake a caller that waits for it

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        action()
    except ray.exceptions.RayActorError as error:
        if not expired.is_set():
            raise
        raise TimeoutError(
            f"sagc_verl: {what} did not come back within {seconds:.0f} s (sagc.hang_timeout); the run is ended rather "
            "than left hanging. Look for the first error of the rollout server above."
        ) from error
    finally:
        timer.cancel()
