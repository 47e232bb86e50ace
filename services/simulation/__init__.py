"""Runs the scheduler's own policy code on virtual time, with worker models in place of workers."""
