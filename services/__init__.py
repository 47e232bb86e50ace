"""Diptych: large language models served with prefill and decode in separate pools."""
