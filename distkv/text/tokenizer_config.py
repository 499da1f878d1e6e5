"""What a tokenizer says of itself to clients that want to write prompts as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from distkv.errors import ConfigError

_PATHS = ("vocab_file", "merges_file", "tokenizer_file", "name_or_path")


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is none. Raises ConfigError."""
    if not file.exists():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError("model", f"{file} is no JSON object: {error}") from None


def tokenizer_info(model_dir: Path, chat_template: str | None) -> dict[str, Any]:
    """tokenizer_config.json with special tokens as texts, without paths of this machine, with the chat template in use.

    Raises ConfigError.
    """
    config = read_object(model_dir / "special_tokens_map.json") | read_object(model_dir / "tokenizer_config.json")
    info: dict[str, Any] = {name: _plain(value) for name, value in config.items() if name not in _PATHS}
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    if chat_template is not None:
        info["chat_template"] = chat_template
    return info


def _plain(value: Any) -> Any:
    """A token may be written as an object that has its text and how it is found."""
    if isinstance(value, dict):
        if isinstance(value.get("content"), str):
            return value["content"]
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
