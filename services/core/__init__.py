"""Pure objects and decisions: standard library only, no I/O, clock, randomness, logging, asyncio or threads."""
