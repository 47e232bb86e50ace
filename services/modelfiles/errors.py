"""The one error of this package: a model that must not be served."""


class ModelError(Exception):
    """The model's files are missing, damaged, contradict each other, or ask for what is not supported.

    The message names the file, field or tensor. It ends a start or a preparation and never crosses the wire, hence
    it is not one of `core/errors.py`.
    """
