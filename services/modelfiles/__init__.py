"""Model files: a GGUF file or a Hugging Face directory becomes one prepared directory with a digest, once.

Gateway and workers open only prepared directories. Owns formats, weights as numpy arrays, tokenizers and
chat templates; must not know torch, other services, or how a model is computed. May import `services.core`.
"""
