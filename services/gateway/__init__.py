"""The access layer: text in, text out. Validates, tokenizes, asks a scheduler, turns tokens back into text.

Owns text, the public API's two forms (gRPC and OpenAI's HTTP) and the closing of a request's ledger. Keeps nothing
that another gateway would need. Must not know workers, blocks or tensors. May import core, runtime, pb and modelfiles;
never torch.
"""
