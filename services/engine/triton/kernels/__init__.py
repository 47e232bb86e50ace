"""Device code. A kernel's docstring says what one program of its grid does; shapes are those of `KVFormat`."""
