#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole models on one GPU: configurations of published widths for dummy weights, and the tables of
bench/results/model_h200.md and model_h200_kernels.md from what `sluice bench model --json` printed for them.

    bench/model_table.py configs DIR                            # writes DIR/<model>/config.json
    bench/model_table.py table OUT/speed-*.log > tables.md      # logs of: tools/gpu.sh run DIR model-speed
    bench/model_table.py table --no-peers OUT/speed-*.log       # without vLLM's figures and goals, which are an H200's
    bench/model_table.py kernels OUT/speed-*.log > kernels.md   # the kernels of single steps
"""
import json
import pathlib
import re
import sys

QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "bos_token_id": 151643,
    "eos_token_id": 151645, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_scaling": None,
    "rope_theta": 1000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_sliding_window": False,
    "vocab_size": 151936,
}
NANO = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "attention_bias": False, "bos_token_id": 1,
    "eos_token_id": 2, "chunk_size": 128, "conv_kernel": 4, "expand": 2, "head_dim": 128, "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "intermediate_size": 1856,
    "layer_norm_epsilon": 1e-5, "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
    "mamba_proj_bias": False, "max_position_embeddings": 262144, "mlp_bias": False, "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
    "n_routed_experts": 128, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 32,
    "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_key_value_heads": 2, "routed_scaling_factor": 2.5,
    "ssm_state_size": 128, "tie_word_embeddings": False, "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": False,
    "use_conv_bias": True, "vocab_size": 131072,
}
# DeepSeek-V3's widths in four layers, two of them with experts.
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False, "bos_token_id": 0,
    "eos_token_id": 1, "first_k_dense_replace": 2, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 16384, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 4, "num_key_value_heads": 128, "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 4,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280,
}
CONFIGS = {"qwen3-30b-a3b": QWEN3, "nemotron-3-nano": NANO, "deepseek-v3-4-layers": DEEPSEEK,
           "deepseek-v3-4-layers-mtp": {**DEEPSEEK, "num_nextn_predict_layers": 1}}

BATCHES = (1, 8, 32, 64, 256)
PROMPTS = ("1x1024", "1x8192", "16x1024")
# tok/s by batch size and by prompts. vLLM 0.26.0 on an H200 with the same routing (at B = 1 the model's own).
VLLM = {
    ("qwen3-30b-a3b", "bf16"): ((243, 876, 2039, 3567, 12200), (20100, 53300, 68200)),
    ("qwen3-30b-a3b", "fp8"): ((233, 1143, 3040, 5420, 16320), (17000, 66100, 88100)),
    ("qwen3-30b-a3b", "nvfp4"): ((208, 1130, 3036, 4961, 13065), (21500, 34300, 39700)),
    ("nemotron-3-nano", "bf16"): ((326, 1161, 2326, 3666, 10200), (21700, 64800, 65700)),
}
GOALS = {
    ("qwen3-30b-a3b", "bf16"): ((350, 1170, 2450, 4450, 15800), (32000, 63000, 92000)),
    ("qwen3-30b-a3b", "fp8"): ((470, 2000, 4500, 8300, 28000), (35000, 85000, 120000)),
    ("qwen3-30b-a3b", "nvfp4"): ((430, 2100, 5300, 9500, 27500), (32000, 62000, 90000)),
    ("nemotron-3-nano", "bf16"): ((430, 1400, 2600, 4250, 11800), (30000, 78000, 85000)),
}
# What is run beside the cells that are compared: contexts of 8k and 32k, --deterministic, drafts.
RUNS = ("long", "deterministic", "drafts")
LOG = re.compile(r"speed-(?P<model>.+)-(?P<format>[a-z0-9_]+)(\+(?P<run>" + "|".join(RUNS) + r"))?\.log$")


def write_configs(folder):
    for name, config in CONFIGS.items():
        path = pathlib.Path(folder) / name / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1) + "\n")


def read_logs(paths, run=None):
    """{(model, format): [row of bench model, ...]} of the logs of one run; lines that are no rows are skipped."""
    found = {}
    for path in paths:
        match = LOG.search(pathlib.Path(path).name)
        if not match:
            sys.exit(f"model_table.py: {path} is not named speed-MODEL-FORMAT[+RUN].log")
        if match["run"] != run:
            continue
        rows = found.setdefault((match["model"], match["format"]), [])
        for line in pathlib.Path(path).read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                rows.append(json.loads(line))
    return found


def beside(ours, known, key, column):
    """"| peer's | ours / peer's |" cells of one table row; empty ones where there is no figure."""
    figure = known[key][column[0]][column[1]] if key in known else None
    return f"{figure or ''} | {ours / figure:.2f}" if figure else " | "


def peer_cells(rate, key, at, peers):
    return "".join(f" {beside(rate, known if at else {}, key, at)} |" for known in peers)


def peer_columns(peers):
    return " vLLM | x vLLM | goal | x goal |" if peers else ""


def at_one_rate(found, rate):
    """The rows with floors at `rate` TB/s. Every process measures the copies' rate, and some measure less: those with four layers
    of DeepSeek-V3 had 3.83 where all others of the run had 4.26 to 4.28."""
    def of(row):
        if "step_bytes" not in row or "decode_ms" not in row:
            return row
        floor = row["step_bytes"] / rate / 1e9
        return {**row, "copy_tb_s": rate, "floor_ms": floor, "ratio": row["decode_ms"] / floor}
    return {key: [of(row) for row in rows] for key, rows in found.items()}


def decode_rows(found, peers=(VLLM, GOALS)):
    for key, rows in found.items():
        for row in rows:
            if "decode_ms" not in row:
                continue
            b, rate = row["batch_size"], row["decode_tok_s"]
            at = (0, BATCHES.index(b)) if b in BATCHES else None
            floor = f"{row['floor_ms']:.2f} | {row['ratio']:.2f}" if "floor_ms" in row else " | "
            yield f"| {' '.join(key)} | {b} | {row['decode_ms']:.3f} | {floor} | {rate:.0f} |" + peer_cells(rate, key, at, peers)


def prefill_rows(found, peers=(VLLM, GOALS)):
    for key, rows in found.items():
        for row in rows:
            name = f"{row.get('batch_size')}x{row['input_len']}"
            if name not in PROMPTS or "prefill_ms" not in row or "decode_ms" in row:
                continue
            at, rate = (1, PROMPTS.index(name)), row["prefill_tok_s"]
            yield f"| {' '.join(key)} | {name} | {row['prefill_ms']:.1f} | {rate:.0f} |" + peer_cells(rate, key, at, peers)


def long_rows(found, plain):
    """Decoding after long prompts. Attention twice: what its kernels take alone, and what a step takes more than one after 64
    tokens; each against what is read at the copies' rate."""
    short = {(key, r["batch_size"]): r for key, rows in plain.items() for r in rows if "decode_ms" in r}
    for key, rows in found.items():
        attention = {(r["profile_batch_size"], r["input_len"]): [k for k in r["kernels"] if "attention" in k["name"].lower()]
                     for r in rows if "profile_batch_size" in r}
        for row in rows:
            kernels = attention.get((row.get("batch_size"), row["input_len"]))
            if "decode_ms" not in row or not kernels or not row.get("copy_tb_s"):
                continue
            us = sum(k["us"] for k in kernels)
            read = row["batch_size"] * row["input_len"] * row["token_bytes"]
            more, base = "", short.get((key, row["batch_size"]))
            if base and row["decode_ms"] > base["decode_ms"]:
                seconds = (row["decode_ms"] - base["decode_ms"]) / 1e3
                positions = row["input_len"] + row["new_tokens"] / 2 - base["input_len"] - base["new_tokens"] / 2
                more = f"{100 * row['batch_size'] * positions * row['token_bytes'] / seconds / row['copy_tb_s'] / 1e12:.0f}"
            yield (f"| {' '.join(key)} | {row['batch_size']} | {row['input_len']} | {row['decode_ms']:.3f} | {row['floor_ms']:.2f} | "
                   f"{row['ratio']:.2f} | {row['decode_tok_s']:.0f} | {us:.0f} | {100 * read / us / row['copy_tb_s'] / 1e6:.0f} | {more} |")


def deterministic_rows(found, plain):
    rates = {(key, r["batch_size"]): r["decode_tok_s"] for key, rows in plain.items() for r in rows if "decode_tok_s" in r}
    for key, rows in found.items():
        for row in rows:
            other = rates.get((key, row.get("batch_size")))
            if other and "decode_tok_s" in row:
                yield f"| {' '.join(key)} | {row['batch_size']} | {row['decode_tok_s']:.0f} | {other:.0f} | {row['decode_tok_s'] / other:.2f} |"


def draft_rows(found):
    """Runs of one sequence without drafts and with some, in this order."""
    for key, rows in found.items():
        for row in rows:
            if "decode_tok_s" in row:
                length = f"{row['accept_length']:.2f}" if "accept_length" in row else ""
                gain = row["decode_tok_s"] / rows[0]["decode_tok_s"]
                drafts = f"{'' if row.get('speculative_fixed_steps', True) else 'up to '}{row.get('speculative_num_steps', 0)}"
                yield f"| {' '.join(key)} | {drafts} | {row['decode_tok_s']:.0f} | {length} | {gain:.2f} |"


def kernel_rows(rows, most=14):
    for row in rows:
        prompts = row.get("prompts", False)
        if row.get("profile_batch_size") not in ((1,) if prompts else (1, 64, 256)):
            continue
        kernels, others = row["kernels"][:most], row["kernels"][most:]
        what = f"Prompt of {row['input_len']}" if prompts else f"B = {row['profile_batch_size']}"
        yield f"\n{what}: {row['us']:.0f} us, kernel by kernel without overlap\n"
        yield "| kernel | calls | us | us each | % |\n|---|---|---|---|---|"
        if others:
            kernels = [*kernels, {"name": f"{len(others)} others", "count": sum(k["count"] for k in others),
                                  "us": sum(k["us"] for k in others)}]
        for k in kernels:
            name = k["name"].replace("|", "/")[:90]
            yield f"| {name} | {k['count']} | {k['us']:.1f} | {k['us'] / k['count']:.2f} | {100 * k['us'] / row['us']:.1f} |"


def more_tables(paths, found, rate):
    long, deterministic, drafts = (read_logs(paths, run) for run in RUNS)
    long = at_one_rate(long, rate)
    if any(long.values()):
        yield "\n## Long contexts\n"
        yield "Attention: its kernels of one step, each alone, which counts the start and the end of each, and the keys and values that they"
        yield "read per second, in percent of the rate of copies. The last column is the same for what a step takes and reads more than one"
        yield "after 64 tokens.\n"
        yield "| model | B | context | ms | floor ms | x floor | tok/s | attention us | % of copies | in the step, % |\n|" + "---|" * 10
        yield from long_rows(long, found)
    if any(deterministic.values()):
        yield "\n## With `--deterministic`\n\n| model | B | tok/s | without | ratio |\n|" + "---|" * 5
        yield from deterministic_rows(deterministic, found)
    if any(drafts.values()):
        yield "\n## Drafts of one sequence\n"
        yield "Deterministic, as drafts ask for. Random weights: hardly a draft is right, so this is what they cost.\n"
        yield "| model | drafts | tok/s | tokens of a step | x without |\n|" + "---|" * 5
        yield from draft_rows(drafts)


def table(found, paths=(), peers=(VLLM, GOALS)):
    copies = max((row["copy_tb_s"] for rows in found.values() for row in rows if "copy_tb_s" in row), default=0)
    found = at_one_rate(found, copies)
    yield "## Decoding"
    yield ""
    yield "Prompts of 64 tokens, then 128 steps at temperature 1; above B = 1 experts are chosen at random. Floors: bytes of touched weights and caches"
    rate = f"at the {copies:.2f} TB/s of copies in the same run." if copies else "at the rate of copies."
    yield rate + (" Goals are figures that were set before the work (`GOALS` in `bench/model_table.py`)." if peers else "")
    yield ""
    yield "| model | B | ms | floor ms | x floor | tok/s |" + peer_columns(peers) + "\n|" + "---|" * (6 + 2 * len(peers))
    yield from decode_rows(found, peers)
    yield "\n## Prompts\n"
    yield "| model | prompts | ms | tok/s |" + peer_columns(peers) + "\n|" + "---|" * (4 + 2 * len(peers))
    yield from prefill_rows(found, peers)
    yield from more_tables(paths, found, copies)
    yield "\n## Making the weights\n\n| model | GB | s |\n|---|---|---|"
    for key, rows in found.items():
        if rows and "load_s" in rows[0]:
            yield f"| {' '.join(key)} | {rows[0]['weight_bytes'] / 1e9:.1f} | {rows[0]['load_s']:.2f} |"


def kernel_tables(found):
    for key, rows in found.items():
        yield f"## {' '.join(key)}"
        yield from kernel_rows(rows)
        yield ""


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "configs":
        return write_configs(sys.argv[2])
    if len(sys.argv) < 3 or sys.argv[1] not in ("table", "kernels"):
        sys.exit(__doc__)
    logs = [a for a in sys.argv[2:] if a != "--no-peers"]
    found = read_logs(logs)
    if not any(found.values()):
        sys.exit("model_table.py: no row of sluice bench model --json in the logs")
    if sys.argv[1] == "kernels":
        return print("\n".join(kernel_tables(found)))
    print("\n".join(table(found, logs, () if "--no-peers" in sys.argv else (VLLM, GOALS))))


if __name__ == "__main__":
    main()
