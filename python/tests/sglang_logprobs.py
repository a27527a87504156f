# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of given tokens in SGLang, for test_sglang_models.py.

usage: sglang_logprobs.py JOB.json   {"folder": checkpoint, "windows": [[id, ...], ...], "backend": of the experts, "port": number,
                                      "halved": end of names}

Prints a line for what ran the experts, from SGLang's process of the model, and one for the answer. With `halved`, another one
after an update from tensors: half of the checkpoint's tensors with such names.
"""
import json
import os
import sys
import time

MARK = "sglang_logprobs: "


def say(**what):
    print(MARK + json.dumps(what), flush=True)


def run_scheduler(*arguments, **named):
    """SGLang's process of the model, which says how many layers the plug-in has and when it runs one."""
    import sluice_moe._experts as experts
    from sglang.srt.managers.scheduler import run_scheduler_process
    call, init, layers = experts.Experts.__call__, experts.Experts.__init__, []

    def counted(self, *of):
        init(self, *of)
        layers.append(self)

    def said(self, *of):
        experts.Experts.__call__ = call
        say(layers=len(layers), spec=self.spec)
        return call(self, *of)

    experts.Experts.__init__, experts.Experts.__call__ = counted, said
    run_scheduler_process(*arguments, **named)


def scores(engine, job):
    """Each window's negative log likelihood."""
    answers = engine.generate(input_ids=job["windows"], sampling_params={"temperature": 0, "max_new_tokens": 1, "ignore_eos": True},
                              return_logprob=True, logprob_start_len=0)
    with open(os.path.join(job["folder"], "config.json")) as f:
        last = json.load(f)["vocab_size"] - 1
    nll = []
    for window, answer in zip(job["windows"], answers):
        rows = answer["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in rows] == [0 if token == last else token for token in window]  # 0.5.19 names the last id 0
        nll.append(-sum(row[0] for row in rows if row[0] is not None))
    return nll


def halved(job):
    from safetensors import safe_open
    out = []
    for name in sorted(os.listdir(job["folder"])):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(job["folder"], name), "pt", device="cuda") as file:
                out += [(key, file.get_tensor(key) / 2) for key in file.keys() if key.endswith(job["halved"])]
    return out


def main():
    begin = time.monotonic()
    with open(sys.argv[1]) as f:
        job = json.load(f)
    from sglang.srt.entrypoints.engine import Engine

    class Counting(Engine):
        run_scheduler_process_func = staticmethod(run_scheduler)

    # Attention by Triton needs no package beside SGLang's own.
    engine = Counting(model_path=job["folder"], skip_tokenizer_init=True, dtype="bfloat16", random_seed=0, context_length=1024,
                      max_running_requests=64, max_total_tokens=1 << 16, chunked_prefill_size=8192, disable_radix_cache=True,
                      attention_backend="triton", sampling_backend="pytorch", grammar_backend="none", disable_cuda_graph=True,
                      log_level="info", port=job["port"], nccl_port=job["port"] + 50, moe_runner_backend=job["backend"])
    say(window_nll=scores(engine, job), seconds=round(time.monotonic() - begin, 1))
    if job["halved"]:
        begin = time.monotonic()
        begun = getattr(engine, "begin_weight_update", None)  # 0.5.23 asks for it
        if begun is not None:
            begun()
        success, message = engine.update_weights_from_tensor(halved(job))[:2]
        if begun is not None:
            engine.end_weight_update()
        say(updated=bool(success), message=message, updated_nll=scores(engine, job), update_s=round(time.monotonic() - begin, 1))
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
