"""Leader election among waiting threads: one thread polls for all of them.

One *leads*: it makes steps (takes what came, or sleeps until something comes), and after each lets
the others ask whether theirs is there. When it has its own, another one leads.
"""

from _thread import allocate_lock


class LeaderElection:
    """The base of what has `_step()`, which blocks, and `_before_wait()`, which may raise."""

    def __init__(self):
        self._lock = allocate_lock()
        self._leading = False
        self._followers = []

    def _before_wait(self):
        raise NotImplementedError

    def _step(self):
        raise NotImplementedError

    def _wait(self, ready):
        """Returns when `ready()`, which is asked under the lock, and may take what it waits for."""
        with self._lock:
            led = False
            try:
                while not ready():
                    self._before_wait()
                    if self._leading:
                        self._follow()
                    else:
                        led = True
                        self._lead()
            finally:
                if led:
                    self._wake()

    def _lead(self):
        """One step for everybody."""
        self._leading = True
        self._lock.release()
        try:
            self._step()
        finally:
            self._lock.acquire()
            self._leading = False
            self._wake()

    def _follow(self):
        """Sleeps until the leader has made a step."""
        mine = allocate_lock()
        mine.acquire()
        self._followers.append(mine)
        self._lock.release()
        try:
            mine.acquire()
        finally:
            self._lock.acquire()
            if mine in self._followers:
                self._followers.remove(mine)

    def _wake(self):
        """Lets every follower ask again: only its own `ready` may take what it waits for."""
        waiting, self._followers = self._followers, []
        for mine in waiting:
            mine.release()
