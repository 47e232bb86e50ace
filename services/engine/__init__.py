"""Tensors: the decoder, its paged KV cache and the sampler, behind `interface.StepRunner`.

Owns how a `StepPlan` becomes a `StepResult`. Must not know of requests beyond their chunks, of text, of queues, of the
network or of asyncio. May import core and modelfiles; numpy, numba,
llvmlite, safetensors, torch, and triton where a GPU asks for it.
"""
