"""The decode worker: fetches prompt blocks, runs the continuous batch, prefills by itself where no split pays."""
