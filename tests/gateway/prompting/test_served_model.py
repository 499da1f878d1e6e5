from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distkv.config import GatewayConfig, build
from distkv.errors import CheckpointError, ConfigError, DistKVError
from distkv.gateway.prompting.served_model import ServedModel
from distkv.gateway.schema.errors import ApiError


def load(path: Path, **settings: Any) -> ServedModel:
    return ServedModel.load(build(GatewayConfig, {"model": str(path), **settings}))


def test_what_is_read(checkpoint: Path, bare: Path) -> None:
    model = load(checkpoint)
    assert model.names == (str(checkpoint),)
    assert model.tokenizer is not None and model.template is not None and model.defaults == {}
    model = load(bare, served_model_name="a,b")
    assert model.names == ("a", "b") and model.tokenizer is None and model.template is None


def test_names(bare: Path) -> None:
    model = load(bare, served_model_name="a,b")
    for known in ("a", "b", None):
        model.check_name(known)
    with pytest.raises(ApiError) as missing:
        model.check_name(str(bare))
    assert missing.value.status == 404 and "a, b" in missing.value.body.error.message


@pytest.mark.parametrize(
    ("file", "content", "kind", "says"),
    [
        ("tokenizer.json", "{}", CheckpointError, "tokenizer.json"),
        ("tokenizer_config.json", "{", ConfigError, "tokenizer_config.json"),
        ("generation_config.json", '{"top_k": -3}', ConfigError, "top_k"),
        ("chat_template.jinja", "{% if %}", ConfigError, "chat_template.jinja"),
        ("chat_template.jinja", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", ConfigError, "is no Jinja template"),
    ],
)
def test_files_that_are_broken(
    tmp_path: Path, bare: Path, file: str, content: str, kind: type[DistKVError], says: str
) -> None:
    for known in bare.glob("*.json"):
        (tmp_path / known.name).write_bytes(known.read_bytes())
    (tmp_path / file).write_text(content)
    with pytest.raises(kind, match=says):
        load(tmp_path)
