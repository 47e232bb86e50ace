"""How close an engine as it serves is to float32: its distributions on prompts, its matrices, its layers one by one.

`prompts` reads what is asked, `subject` is what is measured (`compiled_subject`, `torch_subject`), `rows`, `outliers`
and `report` are pure and judge, `matrices` and `stages` look for damage, `check` runs all of it; `__main__` is the
program that the command line starts.
"""
