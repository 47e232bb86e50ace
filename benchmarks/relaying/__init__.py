"""What the scheduler costs: a decision, and a token that passes through."""
