"""A child process that does not outlive its parent, however that one ends."""

import os
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread


def end_with_parent() -> None:
    """To be called once in the child."""
    parent = parent_process()
    assert parent is not None, "this is no child"
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()
