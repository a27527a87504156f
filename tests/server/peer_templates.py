# SPDX-License-Identifier: Apache-2.0
"""The chat templates that vLLM brings, and what `sluice serve --chat-template` takes from each: how the model writes calls, and
the prompt of a conversation with a call, which has to be jinja2's.

    python3 -m venv V && V/bin/pip install jinja2
    V/bin/python tests/server/peer_templates.py PROGRAM . --vllm FOLDER

FOLDER is vLLM's source archive on PyPI, unpacked. Nothing of its templates is in here but their names; a name that is not in the
list is a family whose calls are not known here, for which no format may be chosen.
"""
import argparse
import json
import pathlib
import sys

import jinja2.ext
import jinja2.sandbox

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from scripted_model import TOOLS  # noqa: E402
from serve_driver import Server  # noqa: E402

FORMATS = {  # by what vLLM's files are named after
    "tool_chat_template_deepseekr1": "deepseekv3", "tool_chat_template_deepseekv3": "deepseekv3",
    "tool_chat_template_deepseekv31": "deepseekv31", "tool_chat_template_glm4": "glm45", "tool_chat_template_hermes": "hermes",
    "tool_chat_template_qwen3coder": "qwen3_coder", "qwen3": "hermes", "qwen35": "qwen3_coder",
}
CONVERSATION = [
    {"role": "user", "content": "How warm will it be?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Lisbon", "days": 2}}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
]


def by_jinja(file):
    """The prompt, with jinja2 set up as transformers does it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return environment.from_string(file.read_text()).render(messages=CONVERSATION, tools=TOOLS, add_generation_prompt=True)


def as_sent():
    """A client's call has its arguments as text; templates get an object."""
    messages = json.loads(json.dumps(CONVERSATION))
    function = messages[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])
    return messages


def wrong_with(program, model, file, expected):
    server = Server(program, model, "--chat-template", file)
    try:
        chosen = json.loads(server.get("/server_info")[2])["tool_call_parser"]
        if chosen != expected:
            return f"its calls are taken for {chosen}, not {expected}"
        status, answer = server.post("/apply-template", {"messages": as_sent(), "tools": TOOLS})
        if expected is None:
            return None if status == 400 else f"tools are taken ({status})"
        prompt = by_jinja(file)
        return None if answer.get("prompt") == prompt else f"{status}, {answer} instead of {prompt!r}"
    finally:
        server.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", type=lambda s: pathlib.Path(s).resolve())
    p.add_argument("source", type=lambda s: pathlib.Path(s).resolve(), help="the source folder, for the bundled model")
    p.add_argument("--vllm", type=lambda s: pathlib.Path(s).resolve(), required=True)
    o = p.parse_args()
    files = sorted([*o.vllm.glob("examples/tool_chat_template_*.jinja"), *o.vllm.glob("rust/src/chat/tests/templates/*.jinja")])
    found = {f.stem for f in files}
    failed = [f"{name}: not there" for name in FORMATS if name not in found]
    for file in files:
        wrong = wrong_with(o.program, o.source / "models" / "tiny-nemotron-h", file, FORMATS.get(file.stem))
        print(f"{file.stem}: {wrong or FORMATS.get(file.stem, 'no format')}", flush=True)
        failed += [f"{file.stem}: {wrong}"] if wrong else []
    print(f"{len(files)} templates, {len(failed)} of them wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
