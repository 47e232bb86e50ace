"""The one error of this package: what ends a command with a sentence and exit code 1, without a traceback."""


class CommandError(Exception):
    """The message is for the person at the terminal: what is wrong, and what to do about it."""
