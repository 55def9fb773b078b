"""Notices randomness that is drawn while a function's modules are imported (see `preload.py`).

What the standard library draws for itself when it is imported does not count. Nor does what numpy,
scipy and scikit-learn draw: an instance seeds the generators of `random` and `numpy.random` again
(`runtime.reseed`), and the others keep nothing of it.
"""

import os
import sys

HARMLESS = ("numpy", "scipy", "sklearn")
DRAWING = ("urandom", "getrandom")


class Draws:
    """From `begin` to `end`: whether anything was drawn, and where."""

    def __init__(self, is_stdlib):
        self._is_stdlib = is_stdlib
        self._active = False
        self._found = None
        self._before = []

    def begin(self):
        """Puts itself in the place of the system's sources, and looks at the global generator."""
        import random

        self._active = True
        for name in DRAWING:
            if hasattr(os, name):
                self._replace(os, name, self._watched(getattr(os, name), "os." + name))
        self._replace(random, "_urandom", os.urandom)
        self._replace(random.Random, "seed", self._watched_seed(random.Random.seed))
        self._random, self._state = random, random.getstate()

    def end(self):
        """Puts everything back; what was drawn, in words, or None."""
        self._active = False
        for owner, name, before in self._before:
            setattr(owner, name, before)
        if self._found is None and self._random.getstate() != self._state:
            self._found = "it used or seeded the generator of `random` while it was imported"
        return self._found or _numpy_used()

    def _replace(self, owner, name, value):
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def _watched(self, draw, name):
        def call(*args, **kwargs):
            self._note(name)
            return draw(*args, **kwargs)

        call.__name__ = call.__qualname__ = draw.__name__
        return call

    def _watched_seed(self, seed):
        def call(generator, a=None, *args, **kwargs):
            if a is None:
                self._note("random.Random")
            return seed(generator, a, *args, **kwargs)

        call.__name__, call.__qualname__ = "seed", "Random.seed"
        return call

    def _note(self, name):
        """Attributes a draw to the innermost module whose import is in progress."""
        if not self._active or self._found is not None:
            return
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "<module>":
            if frame.f_globals.get("__name__") == "tempfile":
                return  # names of files, by a generator of each process's own
            frame = frame.f_back
        where = "a thread of the module"
        if frame is not None:
            module = frame.f_globals.get("__name__", "")
            filename = frame.f_code.co_filename
            if self._is_stdlib(filename) or module.partition(".")[0] in HARMLESS:
                return
            where = "%s:%d" % (filename, frame.f_lineno)
        self._found = "every instance would have the random bytes that it drew (%s, %s)" % (
            name,
            where,
        )


def _numpy_used():
    """True if numpy's global generator was reseeded or used since its initial seeding."""
    module = sys.modules.get("numpy.random.mtrand")
    try:
        generator = module._rand._bit_generator
        now, seeds = generator.state["state"], generator.seed_seq
        then = type(generator)(seeds).state["state"] if seeds is not None else {"pos": None}
    except (AttributeError, KeyError, TypeError):
        return None  # no numpy, or another one
    if then["pos"] == now["pos"] and bytes(then["key"]) == bytes(now["key"]):
        return None
    return "it used or seeded the generator of `numpy.random` while it was imported"
