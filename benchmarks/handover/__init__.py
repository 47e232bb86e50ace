"""What moving KV blocks costs, and what is left of it between two tokens."""
