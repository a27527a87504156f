# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of given tokens in vLLM, for test_vllm_models.py: vLLM keeps state in its process, so each side has one.

usage: vllm_logprobs.py JOBS.json   {"folders": {name: checkpoint}, "windows": [[id, ...], ...]}; prints a line for each name
"""
import gc
import json
import logging
import os
import sys
import time

MARK = "vllm_logprobs: "


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def sums(folder, windows, lines):
    """Each window's negative log likelihood, its first token not counted, and what ran the experts."""
    import sluice_moe._experts as experts
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    lines.lines.clear()
    calls = []
    own = experts.Experts.__call__

    def counted(self, *arguments):
        calls.append(1)
        return own(self, *arguments)

    experts.Experts.__call__ = counted
    try:
        llm = LLM(model=folder, skip_tokenizer_init=True, dtype="bfloat16", enforce_eager=True, max_model_len=1024, seed=0,
                  max_num_seqs=64, max_num_batched_tokens=8192, gpu_memory_utilization=0.08, kv_cache_memory_bytes=1 << 30,
                  enable_prefix_caching=False, disable_log_stats=True)
        layers = llm.apply_model(lambda model: sum(hasattr(m, "sluice_experts") for m in model.modules()))[0]
        calls.clear()  # of the profile run
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, prompt_logprobs=0)
        answers = llm.generate([TokensPrompt(prompt_token_ids=w) for w in windows], params, use_tqdm=False)
        nll = [-sum(place[token].logprob for place, token in zip(answer.prompt_logprobs[1:], window[1:]))
               for answer, window in zip(answers, windows)]
        return {"window_nll": nll, "layers": layers, "calls": len(calls), "log": lines.lines}
    finally:
        experts.Experts.__call__ = own


def clean():
    """What is left of a model that has run, before the next."""
    import torch
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
    gc.collect()
    cleanup_dist_env_and_memory()
    torch.cuda.empty_cache()


def main():
    with open(sys.argv[1]) as f:
        jobs = json.load(f)
    lines = Lines()
    logging.getLogger("vllm.sluice_moe").addHandler(lines)
    logging.getLogger("vllm.sluice_moe").setLevel(logging.INFO)
    for name, folder in jobs["folders"].items():
        begin = time.monotonic()
        try:
            answer = sums(folder, jobs["windows"], lines)
        except Exception as problem:  # vLLM's own, of any kind: the other formats go on
            import traceback
            traceback.print_exc()
            answer = {"error": f"{type(problem).__name__}: {problem}"[:500], "log": lines.lines}
        print(MARK + json.dumps({"name": name, "seconds": round(time.monotonic() - begin, 1), **answer}), flush=True)
        try:
            clean()
        except Exception as problem:
            print(f"clean: {problem}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
