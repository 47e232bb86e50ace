"""vLLM as a contender: float32 on the CPU, its continuous batching stepped by hand so that each token has its time.

It opens Hugging Face directories; `hugging_face_files` writes the GGUF file as one, in float32.
"""

import os
import time
from pathlib import Path

import numpy as np
import torch
import vllm
from vllm import LLM, SamplingParams, TokensPrompt

from peers.channel import Job, Json, serve
from peers.trace import Trace
from peers.workloads import W1, W3

ALL = -1
"""Of the vocabulary, where a number of most likely tokens is asked for."""
LONGEST = W3.prompt_tokens + 64
WARM_UP = (2, 2)
"""Tokens of prompt and answer."""


class VLLM:
    """Options: `directory` (of the converted model), `threads`."""

    def load(self, options: Json) -> Json:
        torch.set_num_threads(options["threads"])
        self._llm = LLM(
            model=options["directory"],
            skip_tokenizer_init=True,
            dtype="float32",
            max_num_seqs=W1.requests,
            max_model_len=LONGEST,
            max_logprobs=ALL,
            enable_prefix_caching=False,
        )
        self._count = 0
        self._generate([[0] * WARM_UP[0]] * W1.requests, WARM_UP[1])
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "prefix_caching": False,
        }

    def run(self, job: Job) -> Trace:
        return self._generate(job.prompts, job.workload.answer_tokens)

    def logits(self, texts: list[list[int]], path: Path) -> None:
        """Log-probabilities, which are logits up to a shift."""
        np.save(path, np.concatenate([self._text(text) for text in texts]))

    def extras(self) -> Json:
        return {}

    def _generate(self, prompts: list[list[int]], tokens: int) -> Trace:
        engine = self._llm.llm_engine
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        names = []
        began = time.perf_counter()
        for prompt in prompts:
            self._count += 1
            names.append(str(self._count))
            engine.add_request(names[-1], TokensPrompt(prompt_token_ids=prompt), params)
        times: dict[str, list[float]] = {name: [] for name in names}
        answers: dict[str, list[int]] = {name: [] for name in names}
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - began
            for output in outputs:
                answer = list(output.outputs[0].token_ids)
                times[output.request_id] += [now] * (len(answer) - len(answers[output.request_id]))
                answers[output.request_id] = answer
        return Trace(
            len(prompts[0]),
            tuple(tuple(times[name]) for name in names),
            tuple(tuple(answers[name]) for name in names),
        )

    def _text(self, text: list[int]) -> np.ndarray:
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=ALL, logprobs=ALL, detokenize=False)
        (output,) = self._llm.generate([TokensPrompt(prompt_token_ids=text)], params, use_tqdm=False)
        rows = [*output.prompt_logprobs[1:], output.outputs[0].logprobs[0]]
        found = np.empty((len(rows), len(rows[-1])), np.float32)
        for row, by_token in enumerate(rows):
            for token, likelihood in by_token.items():
                found[row, token] = likelihood.logprob
        return found


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    serve(VLLM())
