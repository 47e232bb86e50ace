"""From logits to tokens: the same for every engine, on logits in host memory. Needs no torch.

    logits ─ best ─▶ each row's best token, and whether the row is sound     (all that a greedy row needs)
             edits ─▶ bans, bias, penalties, on a copy of the rows that ask for them
             draw ─▶ temperature, top-k, top-p, min-p, one draw
             logprobs ─▶ how likely the model finds what was drawn, from the logits as they came

`sample.py` is the way in.
"""
