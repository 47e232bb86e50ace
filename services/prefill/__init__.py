"""The prefill worker: computes prompt KV in chunks, publishes sealed blocks, draws the first token. Never decodes."""
