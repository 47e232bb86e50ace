"""`transformers` as a contender: float32, `generate` with its KV cache.

Either all requests as one static batch, or one after another as a script would do it; then only the first few of them,
for the rate does not depend on how many there are and each takes long.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from peers.channel import Job, Json, serve
from peers.trace import Trace

WARM_UP_TOKENS = 2


class Clock(StoppingCriteria):
    """Asked after every token whether to stop: notes the time, and never stops."""

    def __init__(self, began: float) -> None:
        self.times: list[float] = []
        self._began = began

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter() - self._began)
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Transformers:
    """Options: `file`, `threads`, `at_once` (requests in a batch), `most` (requests that are run)."""

    def load(self, options: Json) -> Json:
        torch.set_num_threads(options["threads"])
        file = Path(options["file"])
        self._model: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0
        self._at_once = int(options["at_once"])
        self._most = int(options["most"])
        self._generate([[0] * WARM_UP_TOKENS] * min(self._at_once, self._most), WARM_UP_TOKENS, time.perf_counter())
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "attention": self._model.config._attn_implementation,
            "requests_at_once": self._at_once,
            "requests_run": self._most,
        }

    def run(self, job: Job) -> Trace:
        times: list[tuple[float, ...]] = []
        tokens: list[tuple[int, ...]] = []
        prompts = job.prompts[: self._most]
        began = time.perf_counter()
        for first in range(0, len(prompts), self._at_once):
            group = prompts[first : first + self._at_once]
            came, answers = self._generate(group, job.workload.answer_tokens, began)
            times += [tuple(came)] * len(group)
            tokens += [tuple(answer) for answer in answers]
        return Trace(job.workload.prompt_tokens, tuple(times), tuple(tokens))

    def logits(self, texts: list[list[int]], path: Path) -> None:
        with torch.inference_mode():
            rows = [self._model(torch.tensor([text])).logits[0].numpy() for text in texts]
        np.save(path, np.concatenate(rows))

    def extras(self) -> Json:
        return {}

    def _generate(self, prompts: list[list[int]], tokens: int, began: float) -> tuple[list[float], list[list[int]]]:
        ids = torch.tensor(prompts)
        clock = Clock(began)
        with torch.inference_mode():
            answers = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        return clock.times, answers[:, ids.shape[1] :].tolist()


if __name__ == "__main__":
    serve(Transformers())
