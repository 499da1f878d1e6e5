"""Templates render as transformers renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distkv.demo.random_checkpoint import make_checkpoint
from distkv.errors import ConfigError
from distkv.text.chat_template import ChatTemplate, TemplateFailed
from tests.checkpoints import TEXT

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are  terse.\n"},
    {"role": "user", "content": "Füße & <b>東京</b> 'quoted'"},
    {"role": "assistant", "content": " yes "},
    {"role": "user", "content": "more?"},
]
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\n"
        "{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama2": (
        "{{ bos_token }}{% set ns = namespace(s='') %}"
        "{% for m in messages %}{% if m['role'] == 'system' %}{% set ns.s = m['content']|trim %}"
        "{% continue %}{% endif %}{% if loop.index0 > 9 %}{% break %}{% endif %}"
        "[{{ m['role']|upper }}] {{ m['content'].strip() }}{{ eos_token }}{% endfor %}{{ ns.s }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "json": "{{ messages | tojson(indent=1) }}{{ {'b': 1, 'a': '<é>'} | tojson }}{{ strftime_now('%Y') }}{{ more }}",
    "tools": "{% if tools is none %}no tools{% endif %}{{ unknown }}{{ messages[0]['nothing'] }}{{ documents }}",
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    checkpoint = make_checkpoint(tmp_path_factory.mktemp("template") / "model", vocab=320, text_for_tokenizer=TEXT)
    return AutoTokenizer.from_pretrained(checkpoint, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_renders_as_transformers_does(reference: Any, name: str, opens: bool) -> None:
    source = TEMPLATES[name]
    wanted = reference.apply_chat_template(
        TALK, chat_template=source, add_generation_prompt=opens, tokenize=False, more="given"
    )
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert ChatTemplate(source, tokens).render(TALK, add_generation_prompt=opens, more={"more": "given"}) == wanted


@pytest.mark.parametrize("content", ["I think ", "I think", "  so\n"])
@pytest.mark.parametrize("name", ["chatml", "llama2"])
def test_goes_on_as_transformers_does(reference: Any, name: str, content: str) -> None:
    talk = [*TALK, {"role": "assistant", "content": content}]
    wanted = reference.apply_chat_template(
        talk, chat_template=TEMPLATES[name], continue_final_message=True, tokenize=False
    )
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>", "eos_token": "</s>"})
    assert template.render(talk, add_generation_prompt=False, continue_final_message=True) == wanted


def test_a_final_message_that_is_not_in_the_prompt_cannot_be_continued() -> None:
    with pytest.raises(TemplateFailed, match="cannot be continued"):
        ChatTemplate("{{ messages[0].content }}").render(TALK, continue_final_message=True)


@pytest.mark.parametrize("source", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.join(1) }}"])
def test_templates_stay_in_their_sandbox(source: str) -> None:
    with pytest.raises(TemplateFailed):
        ChatTemplate(source).render(TALK)


def test_what_is_no_template() -> None:
    with pytest.raises(ConfigError, match=r"chat_template: .*no Jinja template"):
        ChatTemplate("{% for %}")


def write(path: Path, **files: Any) -> Path:
    for name, content in files.items():
        file = path / name.replace("_json", ".json").replace("_jinja", ".jinja")
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


NAMED = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "named"}]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"tokenizer_config_json": {"chat_template": "config"}}, "config"),
        ({"tokenizer_config_json": {"chat_template": NAMED}}, "named"),
        (
            {"tokenizer_config_json": {"chat_template": "config"}, "chat_template_json": {"chat_template": "json"}},
            "json",
        ),
        ({"chat_template_json": {"chat_template": "json"}, "chat_template_jinja": "jinja"}, "jinja"),
        ({"tokenizer_config_json": {"chat_template": NAMED[:1]}}, None),
        ({"tokenizer_config_json": {"chat_template": [5, {}, {"name": 1}, {"name": []}]}}, None),
        ({}, None),
    ],
)
def test_where_templates_lie(tmp_path: Path, files: dict[str, Any], text: str | None) -> None:
    found = ChatTemplate.of_model(write(tmp_path, **files))
    assert (None if found is None else found.render(TALK)) == text


def test_a_template_for_tools(tmp_path: Path) -> None:
    def rendered() -> str | None:
        found = ChatTemplate.for_tools(tmp_path)
        return None if found is None else found.render(TALK)

    assert rendered() is None
    write(tmp_path, tokenizer_config_json={"chat_template": "config", "bos_token": "<s>"})
    assert rendered() is None
    write(tmp_path, tokenizer_config_json={"chat_template": NAMED})
    assert rendered() == "tools"
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates", tool_use_jinja="own")
    assert rendered() == "own"


def test_special_tokens_of_all_spellings(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    write(tmp_path, special_tokens_map_json={"unk_token": "<u>", "eos_token": "old"}, tokenizer_config_json=settings)
    write(tmp_path, chat_template_jinja="{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ pad_token }}")
    found = ChatTemplate.of_model(tmp_path)
    assert found is not None and found.render(TALK) == "<s></s><u>"


def test_a_file_wins_and_must_be_there(tmp_path: Path) -> None:
    write(tmp_path, chat_template_jinja="model", own_jinja="own")
    found = ChatTemplate.of_model(tmp_path, str(tmp_path / "own.jinja"))
    assert found is not None and found.render(TALK) == "own"
    with pytest.raises(ConfigError, match=r"none\.jinja"):
        ChatTemplate.of_model(tmp_path, str(tmp_path / "none.jinja"))
    write(tmp_path, tokenizer_config_json="[]")
    with pytest.raises(ConfigError, match="no JSON object"):
        ChatTemplate.of_model(tmp_path)
