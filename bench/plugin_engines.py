# SPDX-License-Identifier: Apache-2.0
"""The engines that bench/plugin_table.py measures: how each is started on random weights, with and without the plug-in, and
what it decodes. An engine is imported by its methods alone."""
import fcntl
import functools
import importlib
import json
import os
import subprocess
import time

# On the line of its answer, what a process has to say; the rest of its output goes to its log.
MARK = "plugin_table: "


def say(**what):
    print(MARK + json.dumps(what), flush=True)


def gpu():
    """(name, free MiB, MiB) of the first visible one. By nvidia-smi: a process that has begun to use CUDA cannot be forked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    words = subprocess.run(["nvidia-smi", "-i", visible, "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits"],
                           stdout=subprocess.PIPE, check=True, text=True).stdout.split(",")
    return words[0].strip(), int(words[1]), int(words[2])


def take_gpu(package, lock, memory):
    """Waits until no other process of the table has the GPU, and says so; it is this one's until it ends."""
    import torch
    version = importlib.import_module(package).__version__
    fcntl.flock(os.open(lock, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)  # never closed
    got = time.monotonic()
    name, free, total = gpu()
    while free < memory * total and time.monotonic() < got + 20:  # the process before may still give its memory back
        time.sleep(0.2)
        name, free, total = gpu()
    say(gpu=name, version=version, torch=torch.__version__)


def fill(name, tensor, generator):
    """Random weights that keep activations finite in every format; a scale is one number, so that codes make the values."""
    import torch
    if ".attn." in name:
        return  # scales of cached keys and values, which are bfloat16 here
    kind = str(tensor.dtype).removeprefix("torch.")
    scale = "scale" in name
    if kind in ("uint8", "int8", "float8_e8m0fnu"):
        raw = tensor.view(torch.uint8)
        raw.fill_(119) if scale else raw.random_(0, 256, generator=generator)  # 2^-8
    elif kind == "float8_e4m3fn":
        if scale:
            tensor.view(torch.uint8).fill_(0x38)  # 1
        else:  # of both signs, no NaN: exponents 0 to 7 of 15
            raw = tensor.view(torch.uint8)
            raw.random_(0, 128, generator=generator)
            raw.bitwise_and_(0x3F).bitwise_or_(torch.randint_like(raw, 0, 2).mul_(0x80))
    elif tensor.is_floating_point():
        if scale:
            encode = "global_scale" in name  # compressed-tensors' are reciprocals
            tensor.fill_(50.0 if encode else 0.02)
        elif tensor.dim() < 2:
            tensor.fill_(1.0 if "norm" in name else 0.0)
        else:
            tensor.normal_(0, 0.02, generator=generator)


def fill_all(model):
    import torch
    generators = {}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            device = tensor.device
            if device not in generators:
                generators[device] = torch.Generator(device=device).manual_seed(1)
            fill(name, tensor, generators[device])


def layers_by_sluice(model):
    """A plug-in that was loaded may still leave a layer to the engine."""
    return sum(hasattr(m, "sluice_experts") for m in model.modules())


class Vllm:
    title, package = "vLLM", "vllm"

    @staticmethod
    def environment(sluice, uniform):
        # The engine has a process of its own, which is vLLM's default: what it does for answers beside a step is not a part
        # of the step then. It is forked, so that it has the loader below.
        out = {"SLUICE_VLLM": str(int(sluice)), "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # apply_model() takes a function
        return out | ({"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"} if uniform else {})

    defaults = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}

    @staticmethod
    def register_loader():
        from vllm.model_executor.model_loader import register_model_loader
        from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

        @register_model_loader("plugin_table")
        class Loader(DummyModelLoader):
            def load_weights(self, model, model_config):
                fill_all(model)

    def __init__(self, o):
        from vllm import LLM
        self.register_loader()
        take_gpu(self.package, o.lock, o.memory)
        compilation = {"cudagraph_capture_sizes": o.batches, "max_cudagraph_capture_size": max(o.batches)}
        if not o.compile:
            compilation |= {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        self.llm = LLM(model=str(o.model), load_format="plugin_table", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
                       max_model_len=1024, max_num_seqs=max(o.batches), max_num_batched_tokens=8192,
                       gpu_memory_utilization=o.memory, enable_prefix_caching=False, disable_log_stats=True,
                       compilation_config=compilation)
        say(sluice_layers=self.llm.apply_model(layers_by_sluice)[0])

    def generate(self, prompts, answers):
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        params = SamplingParams(temperature=1.0, max_tokens=answers, ignore_eos=True, detokenize=False)
        self.llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params, use_tqdm=False)

    def close(self):
        self.llm.llm_engine.engine_core.shutdown()  # its process holds the GPU


def run_scheduler(lock, memory, *arguments, **named):
    """SGLang's process of a model. Its dummy weights are all but 0, and without meaning where codes are bytes. It imports for half
    a minute, so it takes the GPU, not the process that starts it."""
    from sglang.srt.layers.moe import topk
    from sglang.srt.managers.scheduler import run_scheduler_process
    from sglang.srt.model_loader import loader
    loader.initialize_dummy_weights = fill_all
    load = loader.DummyModelLoader.load_model

    @functools.wraps(load)
    def counted(self, **of):
        model = load(self, **of)
        say(sluice_layers=layers_by_sluice(model))
        return model

    loader.DummyModelLoader.load_model = counted
    topk._simulate_balanced_routing = draws_by_layer(topk._simulate_balanced_routing)
    take_gpu(Sglang.package, lock, memory)
    run_scheduler_process(*arguments, **named)


def draws_by_layer(simulate):
    """SGLang's simulation of an even choice, seeded by the number of the layer.

    SGLang takes its count of calls as the seed, and a captured graph keeps the draws of its capture. So two processes read
    different experts: 8 rows choose 52 of 128 on average, and the average over 48 layers has a standard deviation of 2 %.
    """
    @functools.wraps(simulate)
    def drawn(*arguments, layer_id=None, **named):
        return simulate(*arguments, layer_id=layer_id, **{**named, "seed": layer_id})
    return drawn


class Sglang:
    """Attention is by SGLang's Triton kernels, which need no package beside it; both columns have the same."""

    title, package = "SGLang", "sglang"
    OWN = {"nvfp4": "marlin"}  # SGLang's own backend of a format that it does not choose by itself on Hopper

    @staticmethod
    def environment(sluice, uniform):
        out = {"PLUGIN_TABLE_SLUICE": str(int(sluice))}
        return out | ({"SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"} if uniform else {})

    defaults = {}

    def __init__(self, o):
        from sglang.srt.entrypoints.engine import Engine

        class Counting(Engine):
            run_scheduler_process_func = staticmethod(functools.partial(run_scheduler, o.lock, o.memory))

        backend = "sluice" if os.environ["PLUGIN_TABLE_SLUICE"] == "1" else self.OWN.get(o.model.name, "auto")
        # Weights and cache are a part of the memory here, and graphs come on top.
        self.engine = Counting(model_path=str(o.model), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                               random_seed=0, context_length=1024, max_running_requests=max(o.batches), chunked_prefill_size=8192,
                               mem_fraction_static=o.memory - 0.06, disable_radix_cache=True, attention_backend="triton",
                               sampling_backend="pytorch", grammar_backend="none", cuda_graph_bs_decode=sorted(o.batches),
                               disable_prefill_cuda_graph=True, enable_torch_compile=o.compile, log_level="info",
                               moe_runner_backend=backend)

    def generate(self, prompts, answers):
        self.engine.generate(input_ids=prompts, sampling_params={"temperature": 1.0, "max_new_tokens": answers, "ignore_eos": True})

    def close(self):
        self.engine.shutdown()  # its processes hold the GPU


ENGINES = {"vllm": Vllm, "sglang": Sglang}
