# SPDX-License-Identifier: Apache-2.0
"""The templates and variables of chat_template_vectors.py. They were written for these tests; they use the constructs of
the chat templates of Qwen3, Nemotron-3 and DeepSeek-V3."""
from chat_template_expressions import VARIABLES

# ---- whole templates
PEOPLE = {"people": VARIABLES["people"], "xs": [1, 2, 3], "t": True}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the weather in Z\u00fcrich?"},
    {"role": "assistant", "content": "<think>\nI look it up.\n</think>\n\nOne moment.", "tool_calls": [
        {"type": "function", "id": "1", "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2, "units": ["C", "%"], "deep": {"a": None}}}},
        {"type": "function", "function": {"name": "time", "arguments": {}}}]},
    {"role": "tool", "content": "{\"t\": 21}"},
    {"role": "tool", "content": "12:00"},
    {"role": "assistant", "content": "<think>\nok\n</think>\n\nIt is 21 \u00b0C."},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": " The weather. ", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "Which city"}, "days": {"type": ["integer", "null"], "enum": [1, 2], "minimum": 1, "strict": True}}, "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}, "extra": {"x": [1]}}},
]

CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

# tools as JSON, thinking cut from old turns, reverse scan with a namespace, tool results grouped into one turn
THINKING_TOOLS = r"""{%- if tools %}
    {{- '<S>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Functions\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\nreturn {\"name\": <name>, \"arguments\": <json>}<E>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<S>system\n' + messages[0].content + '<E>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<S>' + message.role + '\n' + content + '<E>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last or (loop.last and thought) %}
            {{- '<S>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<S>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<E>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<S>user' }}
        {%- endif %}
        {{- '\n<r>\n' }}
        {{- content }}
        {{- '\n</r>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<E>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<S>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

# a macro over a JSON schema, ~ chains, previtem and nextitem, conditional expressions as defaults
MACRO_TOOLS = r"""{% macro extra(fields, handled) %}
    {%- if fields is mapping %}
        {%- for key in fields if key not in handled %}
            {%- if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) %}
                {{- '\n<' ~ key ~ '>' ~ (fields[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{-'\n<' ~ key ~ '>' ~ (fields[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- set thinking = thinking if thinking is defined else True %}
{%- set ns = namespace(last_user = -1) %}
{%- for m in messages %}
  {%- if m["role"] == "user" %}
    {%- set ns.last_user = loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
    {%- set rest = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = [] %}
{%- endif %}
{{- "<S>system\n" + system_message }}
{%- if tools is iterable and tools | length > 0 %}
    {%- for tool in tools %}
        {%- if tool.function is defined %}
            {%- set tool = tool.function %}
        {%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- '\n<description>' ~ (tool.description | trim) ~ '</description>' }}
        {%- endif %}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for name, fields in tool.parameters.properties|items %}
                {{- '\n<parameter>\n<name>' ~ name ~ '</name>' }}
                {%- if fields.type is defined %}
                    {{- '\n<type>' ~ (fields.type | string) ~ '</type>' }}
                {%- endif %}
                {%- if fields.enum is defined %}
                    {{- '\n<enum>' ~ (fields.enum | tojson | safe) ~ '</enum>' }}
                {%- endif %}
                {%- set handled = ['name', 'type', 'enum'] %}
                {{- extra(fields, handled) }}
                {{- '\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {% set handled = ['type', 'properties', 'required'] %}
        {{- extra(tool.parameters, handled) }}
        {{- extra(tool, handled=['name', 'description', 'parameters']) }}
        {{- '\n</function>' }}
    {%- endfor %}
{%- endif %}
{{- '<E>\n' }}
{%- for message in rest %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content | default('', true) %}
        {%- if message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
            {{- '<S>assistant\n' }}
            {%- set keep = not (loop.index0 < ns.last_user) %}
            {%- if content is string and content | trim | length > 0 %}
                {%- if keep %}
                    {{- (content | trim) ~ '\n' -}}
                {%- else %}
                    {%- set c = (content | string) %}
                    {%- if '</think>' in c %}
                        {%- set c = c.split('</think>')[-1] %}
                    {%- elif '<think>' in c %}
                        {%- set c = c.split('<think>')[0] %}
                    {%- endif %}
                    {{- "<think></think>" ~ c ~ '\n' -}}
                {%- endif %}
            {%- endif %}
            {%- for tool_call in message.tool_calls %}
                {%- set tool_call = tool_call.function if tool_call.function is defined else tool_call %}
                {{- '<call=' ~ tool_call.name ~ '>\n' -}}
                {%- for name, value in tool_call.arguments|items %}
                    {%- set value = value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string %}
                    {{- '<' ~ name ~ '>\n' ~ value ~ '\n</' ~ name ~ '>\n' -}}
                {%- endfor %}
            {%- endfor %}
            {{- '<E>\n' }}
        {%- else %}
            {{- '<S>assistant\n' ~ (content | default('', true) | string | trim) ~ '<E>\n' }}
        {%- endif %}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<S>user\n' }}
        {%- endif %}
        {{- '<r>\n' ~ message.content ~ '\n</r>\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<E>\n' }}
        {%- elif loop.last %}
            {{- '<E>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<S>' + message.role + '\n' }}
        {%- set content = message.content | string %}
        {{- content }}
        {{- '<E>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<S>assistant\n<think>' ~ ('\n' if thinking else '</think>') }}
{%- endif %}
"""

# one line, flags in a namespace, tool outputs after each other
FLAGS = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, first_output=true, system='', first_system=true) %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.first_system %}{% set ns.system = ns.system + message['content'] %}{% set ns.first_system = false %}"
    "{%- else %}{% set ns.system = ns.system + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}"
    "{%- for message in messages %}{% set content = message['content'] %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<\uff5cUser\uff5c>' + content}}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{% endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}{%- set ns.is_first = false %}{%- set ns.first_output = true %}"
    "{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{'<\uff5cAssistant\uff5c>' + content + '<calls>' + tool['type'] + '<sep>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments']|tojson + '\\n' + '```'}}{%- set ns.is_first = true -%}"
    "{%- else %}{{'\\n' + tool['function']['name'] + tool['function']['arguments']|tojson}}{%- endif %}{%- endfor %}{{'</calls>'}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'</outputs>' + content + '<end>'}}{%- set ns.is_tool = false -%}{%- else %}{{'<\uff5cAssistant\uff5c>' + content + '<end>'}}{%- endif %}{%- endif %}"
    "{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.first_output %}{{'<outputs>' + content}}{%- set ns.first_output = false %}{%- else %}{{'\\n' + content}}{%- endif %}{%- endif %}{%- endfor -%}"
    "{% if ns.is_tool %}{{'</outputs>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<\uff5cAssistant\uff5c><think>\\n'}}{% endif %}"
)

CHAT = {"messages": MESSAGES, "tools": None, "add_generation_prompt": True, "bos_token": "<s>"}
# calls as text added to text, found by a message without content; results counted in a namespace
TEXT_CALLS = r"""{%- set ns = namespace(first=true, after=false) -%}
{{- bos_token -}}
{%- for m in messages -%}
{%- if m['role'] == 'user' -%}{{- '<U>' + m['content'] -}}{%- set ns.after = false -%}{%- endif -%}
{%- if m['role'] == 'assistant' and m['content'] is none -%}
  {%- for call in m['tool_calls'] -%}
    {%- if loop.first -%}{{- '<A><calls>' -}}{%- else -%}{{- '\n' -}}{%- endif -%}
    {{- '<call>' + call['type'] + '<sep>' + call['function']['name'] + '\n' + '```json' + '\n' + call['function']['arguments'] + '\n' + '```' + '</call>' -}}
  {%- endfor -%}
  {{- '</calls><E>' -}}
{%- endif -%}
{%- if m['role'] == 'assistant' and m['content'] is not none -%}{{- '<A>' + m['content'] + '<E>' -}}{%- endif -%}
{%- if m['role'] == 'tool' -%}{{- ('<outs><out>' if not ns.after else '\n<out>') + m['content'] + '</out>' -}}{%- set ns.after = true -%}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<A>' -}}{%- endif -%}"""
TEXT_CALL_MESSAGES = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "id": "1", "function": {"name": "weather", "arguments": "{\"city\": \"Z\u00fcrich\"}"}},
        {"type": "function", "id": "2", "function": {"name": "time", "arguments": "{}"}}]},
    {"role": "tool", "content": "21", "tool_call_id": "1"},
    {"role": "tool", "content": "12:00", "tool_call_id": "2"},
]

# a pair of tags per argument, strings as they are and the rest as JSON; contents of parts by a macro
TAGGED_CALLS = r"""{%- macro visible(content) -%}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}{%- for item in content %}{{- item.text if item is mapping else item }}{%- endfor %}
    {%- else %}{{- content }}{%- endif %}
{%- endmacro -%}
{%- for m in messages %}
{%- if m.role == 'assistant' %}<A>{{ visible(m.content) }}
{%- for tc in m.tool_calls or [] %}
{%- set f = tc.function or tc %}
{{ '\n<call>' + f.name }}
{% for k, v in f.arguments.items() %}
<key>{{ k }}</key>
<value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</value>
{% endfor %}
</call>{% endfor %}
{%- elif m.role == 'tool' %}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}
{{- '\n<response>\n' ~ visible(m.content) ~ '\n</response>' }}
{%- else %}<|{{ m.role }}|>{{ visible(m.content) }}{% endif %}
{%- endfor %}"""

TEMPLATES = [
    # white space
    ("a\n{% if t %}\nb\n{% endif %}\nc\n", PEOPLE),
    ("a\n   {% if t %}\n  b\n   {% endif %}   \nc\n\n", PEOPLE),
    ("a  {%- if t -%}  b  {%- endif -%}  c", PEOPLE),
    ("a\n  {%+ if t %}\n b {%+ endif +%}\nc", PEOPLE),
    ("  {{ t }}  \n  {{- t }}\n{{ t -}}\n  x\n", PEOPLE),
    ("a {# comment {{ t }} #}\nb\n  {# c #}  \n{#- d -#}\n e", PEOPLE),
    ("{% raw %}\n{{ t }} {% if %}\n{% endraw %}\nx {%- raw -%} {# y #} {%- endraw -%}  z", PEOPLE),
    ("\r\na\r\n{% if t %}\r\nb\r\n{% endif %}\r\n", PEOPLE),
    ("{{ '{{' }} {{ {'a': {'b': 1}} }} {{ \"%}\" }}", PEOPLE),
    ("{%if t%}x{%else%}y{%endif%}{{t}}{{-t-}}", PEOPLE),
    ("{% for x in xs %}\n  {{ x }}\n{% endfor %}\n", PEOPLE),
    ("{% for x in xs -%}\n  {{ x }}\n{%- endfor %}\n.", PEOPLE),
    ("{% set a = 1 %}\n\n{% set b = 2 %}{{ a + b }}\n", PEOPLE),
    ("", PEOPLE),
    ("\n", PEOPLE),
    ("plain { text } % # } }}", PEOPLE),
    # statements
    ("{% for p in people %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }} {{ p.name }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}", PEOPLE),
    ("{% for x in [] %}x{% else %}none{{ t }}{% endfor %}", PEOPLE),
    ("{% for p in people if p.role == 'user' %}{{ loop.index0 }}{{ loop.length }}{{ p.name }};{% endfor %}", PEOPLE),
    ("{% for p in people if p.role == 'nobody' %}x{% else %}nobody{% endfor %}", PEOPLE),
    ("{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}", PEOPLE),
    ("{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}-{{ b }};{% endfor %}", PEOPLE),
    ("{% for x in xs %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in xs %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", PEOPLE),
    ("{% for x in xs %}{% for y in xs %}{% if y > x %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.depth }} {% endfor %}|{{ loop.index }}{% endfor %}", PEOPLE),
    ("{% for x in xs %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }} {% endfor %}", PEOPLE),
    ("{% for c in 'h\u00e9\U0001f600' %}{{ c }}.{% endfor %}{% for x in undefined_thing %}x{% endfor %}", PEOPLE),
    ("{% set v = 1 %}{% for x in xs %}{% set v = x %}{{ v }}{% endfor %}{{ v }}{% if t %}{% set v = 9 %}{% endif %}{{ v }}", PEOPLE),
    ("{% set ns = namespace(n=0, found=false) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.n }}{{ ns.found }}", PEOPLE),
    ("{% set a, b = 1, 2 %}{% set (c, d) = [3, 4] %}{{ a }}{{ b }}{{ c }}{{ d }}", PEOPLE),
    ("{% set block %}\n  hi {{ t }}\n{% endset %}[{{ block }}]{% set up | upper | trim %} abc {% endset %}[{{ up }}]", PEOPLE),
    ("{% set ns = namespace() %}{% set ns.x %}q{{ t }}{% endset %}{{ ns.x }}", PEOPLE),
    ("{% if 0 %}a{% elif '' %}b{% elif t %}c{% else %}d{% endif %}{% if not t %}x{% endif %}{% if people %}y{% endif %}", PEOPLE),
    ("{% macro m(a, b=2, c=none) %}[{{ a }}|{{ b }}|{{ c is none }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=5) }}{{ m(b=7, a=0) }}{{ m() }}{{ m('x') | length }}", PEOPLE),
    ("{% macro outer(xs) %}{% for x in xs %}{{ inner(x) }}{% endfor %}{% endmacro %}{% macro inner(x) %}<{{ x }}{{ g }}>{% endmacro %}{% set g = '!' %}{{ outer(xs) }}", PEOPLE),
    ("{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", PEOPLE),
    ("{% macro m(x) %}\n  {%- set y = x ~ '!' %}\n  {{- y }}\n{%- endmacro %}\n{% set y = 1 %}\n{{ m('a') }}{{ y }}", PEOPLE),
    ("{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", PEOPLE),
    ("{% generation %}said{% endgeneration %}\n{{ xs | length }}", PEOPLE),
    ("{{ people[0].name }}{{ people[-1]['name'] }}{{ people | map(attribute='name') | join(', ') }}", PEOPLE),
    ("{% for p in people | sort(attribute='name') | reverse %}{{ p.name }}{% endfor %}{% for p in people[::-1] %}{{ p.name }}{% endfor %}", PEOPLE),
    ("{% set x = 'a' if t else 'b' %}{{ x }}{% set y = [] %}{% for p in people %}{% set y = y + [p.name] %}{% endfor %}{{ y }}", PEOPLE),
    ("{{- 'a' }}\n\n{{- 'b' }}\n{{ 'c' -}}\n\nd", PEOPLE),
    # failing
    ("{% if t %}", PEOPLE),
    ("{% endif %}", PEOPLE),
    ("{% for x in xs %}{% endif %}", PEOPLE),
    ("{{ t", PEOPLE),
    ("{# t", PEOPLE),
    ("{% for x %}{% endfor %}", PEOPLE),
    ("{% for a, b in xs %}{% endfor %}", PEOPLE),
    ("{% set people.x = 1 %}", PEOPLE),
    ("{% break %}", PEOPLE),
    ("{% nonsense %}", PEOPLE),
    ("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", PEOPLE),
    ("{% macro m(a) %}{% endmacro %}{{ m(z=2) }}", PEOPLE),
    ("{% if messages[0].role != 'user' %}{{ raise_exception('Expected ' ~ messages[0].role) }}{% endif %}", CHAT),
    # chats
    (CHATML, {**CHAT, "messages": [m for m in MESSAGES if m["role"] != "tool"]}),
    (CHATML, {**CHAT, "messages": MESSAGES[:2], "add_generation_prompt": False}),
    (THINKING_TOOLS, CHAT),
    (THINKING_TOOLS, {**CHAT, "tools": TOOLS}),
    (THINKING_TOOLS, {**CHAT, "messages": MESSAGES[:6], "enable_thinking": False}),
    (THINKING_TOOLS, {**CHAT, "messages": MESSAGES[1:2]}),
    (MACRO_TOOLS, CHAT),
    (MACRO_TOOLS, {**CHAT, "tools": TOOLS}),
    (MACRO_TOOLS, {**CHAT, "tools": TOOLS, "messages": MESSAGES[:5], "thinking": False}),
    (TEXT_CALLS, {**CHAT, "messages": TEXT_CALL_MESSAGES, "bos_token": "<s>"}),
    # an object cannot be added to a text
    (TEXT_CALLS, {**CHAT, "messages": [{**m, "content": None} if "tool_calls" in m else m for m in MESSAGES], "bos_token": "<s>"}),
    (TAGGED_CALLS, CHAT),
    (FLAGS, CHAT),
    (FLAGS, {**CHAT, "messages": MESSAGES[:5]}),
    ("{% set date_string = strftime_now('%d %b %Y') %}Today: {{ date_string }}", CHAT),
]
