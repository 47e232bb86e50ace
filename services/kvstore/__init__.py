"""The KV transfer service and shared prefix cache: immutable blocks by hash, hand-overs, pins. Knows bytes and hashes,
never tensors or tokens."""
