# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that says what a test wants, so that clients can be tried on calls of tools that no small model would make.

It is a Qwen3-MoE whose only layer adds nothing, with one-hot embeddings and a head that maps each token of a script to the
next: the text depends on the prompt's last token alone, at any temperature. The chat template puts it there: for a user's
message whose first line is the name of a script, that script; after a tool's message, the script "after".
"""
import json
import pathlib
import struct

ONE, HEAD = 0x3F80, 0x4180  # bfloat16: 1, 16
HIDDEN = 512

# Qwen3's way to show tools, calls and results, shortened.
TOOL_TEMPLATE = r"""
{%- if tools %}
    {{- '<|im_start|>system\n<tools>' }}
    {%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
    {{- '\n</tools>\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""
# The same with the name of the script, and a word that chooses the parser of thoughts. Clients may append lines to a message
# (instructor's MD_JSON asks for a code block so).
TEMPLATE = TOOL_TEMPLATE.removesuffix("{%- endif %}") + r"""
    {{- '<|after|>' if messages[-1].role == 'tool' else '<|' + messages[-1].content.split('\n')[0] + '|>' }}
{%- endif %}
{#- </think> #}"""


def pieces_of(text, used):
    """The text in pieces of at least six characters; none stands twice in a checkpoint, as each is a token."""
    pieces = []
    while text:
        n = next(n for n in range(min(6, len(text)), len(text) + 1) if text[:n] not in used)
        used.add(text[:n])
        pieces.append(text[:n])
        text = text[n:]
    return pieces


def scripted_model(tokenizer_folder, folder, scripts):
    """Writes the checkpoint. `scripts`: name -> what the model says."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    base = len(tokenizer["model"]["vocab"])
    texts, following, used = [], {}, set(tokenizer["model"]["vocab"])
    for name, text in scripts.items():
        chain = [f"<|{name}|>", *pieces_of(text, used)]
        for i in range(len(chain)):
            following[len(texts)] = len(texts) + 1 if i + 1 < len(chain) else None  # None: the end
            texts.append(chain[i])
    assert len(texts) <= HIDDEN, len(texts)
    for i, text in enumerate(texts):
        tokenizer["added_tokens"].append({"id": base + i, "content": text, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    vocab = base + len(texts)
    embedding, head = bytearray(2 * vocab * HIDDEN), bytearray(2 * vocab * HIDDEN)
    for i, after in following.items():
        struct.pack_into("<H", embedding, 2 * ((base + i) * HIDDEN + i), ONE)
        struct.pack_into("<H", head, 2 * ((0 if after is None else base + after) * HIDDEN + i), HEAD)
    write_layerless(folder, vocab, embedding, head)
    return folder


def write_layerless(folder, vocab, embedding, head, hidden=HIDDEN, positions=8192):
    """config.json and model.safetensors of a Qwen3-MoE whose only layer adds nothing."""
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": hidden, "vocab_size": vocab,
        "num_hidden_layers": 1, "mlp_only_layers": [0], "decoder_sparse_step": 1, "intermediate_size": 64,
        "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": positions, "attention_bias": False, "tie_word_embeddings": False,
        "use_sliding_window": False, "eos_token_id": 0, "dtype": "bfloat16", "torch_dtype": "bfloat16"}))
    one, layer = struct.pack("<H", ONE), "model.layers.0."
    tensors = {"model.embed_tokens.weight": ([vocab, hidden], embedding), "lm_head.weight": ([vocab, hidden], head)}
    for name, size in {"model.norm.weight": hidden, layer + "input_layernorm.weight": hidden,
                       layer + "post_attention_layernorm.weight": hidden, layer + "self_attn.q_norm.weight": 64,
                       layer + "self_attn.k_norm.weight": 64}.items():
        tensors[name] = ([size], one * size)
    for name, rows, columns in (("self_attn.q_proj", 128, hidden), ("self_attn.k_proj", 64, hidden),
                                ("self_attn.v_proj", 64, hidden), ("self_attn.o_proj", hidden, 128),
                                ("mlp.gate_proj", 64, hidden), ("mlp.up_proj", 64, hidden), ("mlp.down_proj", hidden, 64)):
        tensors[layer + name + ".weight"] = ([rows, columns], bytes(2 * rows * columns))
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            file.write(data)


WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lisbon", "days": 2}}\n</tool_call>'
SCRIPTS = {
    "weather": "<think>\nThey want the weather.\n</think>\n\nI look it up.\n" + WEATHER,
    "two": WEATHER.replace("Lisbon", "Oslo") + "\n" + WEATHER.replace("Lisbon", "Riga"),
    "one": WEATHER,
    "json": '{"city": "Lisbon", "days": 2}',
    "fenced": 'Here it is:\n```json\n{"city": "Lisbon",\n"days": 2}\n```\nWhat else?',
    "broken": "<tool_call>\n{'name': 'get_weather'}\n</tool_call> is how it might look.",
    "after": "It is sunny: 21 degrees.",
    "hello": "Good morning to you all.",
}
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of the next days.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]
