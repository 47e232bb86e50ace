"""The simulator beside a live cluster on this machine."""
