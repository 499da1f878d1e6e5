"""Which format a checkpoint writes, by its chat template."""

from __future__ import annotations

import pytest

from distkv.text.tool_calls.formats import FORMATS, detected

# As their families begin to speak of tools, or write calls.
QWEN = (
    '{%- if tools %}{{- "return a json object within <tool_call></tool_call> XML tags:" }}'
    '{{- "<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}" }}{%- endif %}'
)
LLAMA_31 = (
    "{%- if tools is not none %}{{- 'Environment: ipython' }}{%- endif %}{{- '<|python_tag|>' + name + '.call(' }}"
)
LLAMA_32 = (
    '{%- if not tools is none %}{{- \'Respond in the format {"name": function name, "parameters": dictionary of '
    "argument name and its value}.' }}{%- endif %}"
)
MISTRAL = "{%- if tools is not none %}{{ '[AVAILABLE_TOOLS]' }}{%- endif %}{{- '[TOOL_CALLS] [' }}"
QWEN_CODER = "{%- if tools %}{{- '<tool_call>\\n<function=example_function_name>' }}{%- endif %}"
GLM = "{%- if tools %}{{- '<tool_call>{function-name}\\n<arg_key>' }}{%- endif %}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (QWEN, "hermes"),
        (LLAMA_31, "llama3_json"),
        (LLAMA_32, "llama3_json"),
        (MISTRAL, "mistral"),
        (QWEN_CODER, None),
        (GLM, None),
        ("{{ messages[0].content }}", None),
        ("{% for tool in tools %}{{ tool }}{% endfor %}", None),
        ("{{ '<tool_call>' }}", None),
    ],
)
def test_what_is_detected(template: str, name: str | None) -> None:
    assert detected(template) == name
    assert name is None or name in FORMATS
