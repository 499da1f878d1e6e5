"""The documents say what the code does: messages, settings, log events, limits, snippets, commands and links."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
from msgspec import inspect

import distkv
from distkv.cli import main
from distkv.cli.commands import bench
from distkv.cli.daemons import gateway, gmanager, instance
from distkv.config import SECTIONS, Setting, UpConfig, load_file, settings_of
from distkv.events import ClusterEvent
from distkv.wire.messages.common import PROTOCOL_VERSION
from distkv.wire.messages.counters import COUNTERS
from distkv.wire.messages.envelope import Envelope
from distkv.wire.messages.to_client import (
    ClusterState,
    DebtEdge,
    DgfmRunStatus,
    InstanceStatus,
    PlanStatus,
    RequestStatus,
    SlotCounts,
    SpanStatus,
)
from tests.wire.golden.field_tables import TABLE, meanings, message_types, table_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "distkv").rglob("*.md")),
]
PROGRAMS = {
    "distkv": main.command,
    "distkv-gmanager": gmanager.command,
    "distkv-instance": instance.command,
    "distkv-gateway": gateway.command,
}
TYPES = message_types()
LOGGERS = {"info", "warning", "error", "log_line"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows, head and rule lines included."""
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert found is not None, f"there is no heading {heading!r}"
    return found[1]


# --- the protocol


def section_of(name: str) -> str:
    return section(text_of("docs/protocol.md"), f"`{name}`")


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_every_message_and_field_is_documented(kind: type[msgspec.Struct]) -> None:
    name = kind.__name__
    table = rows(section_of(name))
    assert [cells[0].strip("`") for cells in table[2:]] == list(kind.__struct_encode_fields__)
    assert ("On the wire an array" in section_of(name)) == bool(kind.__struct_config__.array_like)
    assert [found["name"] for found in TABLE.finditer(section_of(name))] == [name]
    assert table_of(kind) in section_of(name), "the table is stale; remake it: python -m tests.wire.golden --write"


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_every_field_says_what_it_means(kind: type[msgspec.Struct]) -> None:
    left = [name for name in kind.__struct_fields__ if not meanings(kind).get(name)]
    assert not left, f"give them a `#: meaning` beside the field, in {kind.__module__}"


def test_documented_messages_exist() -> None:
    named = re.findall(r"^#### `(\w+)`$", text_of("docs/protocol.md"), re.M)
    assert sorted(named) == sorted(TYPES)


def test_literal_fields_name_all_their_values() -> None:
    for kind in TYPES.values():
        table = {cells[0].strip("`"): cells[1] for cells in rows(section_of(kind.__name__))}
        for field in inspect.type_info(kind).fields:  # type: ignore[attr-defined]
            parts = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
            for part in parts:
                if isinstance(part, inspect.LiteralType):
                    assert all(f"`{value}`" in table[field.encode_name] for value in part.values), (kind, field.name)


def test_message_examples_can_be_read() -> None:
    examples = blocks(ROOT / "docs/protocol.md", "json")
    assert examples
    for example in examples:
        msgspec.json.decode(example, type=Envelope)


def test_protocol_version_is_that_of_the_code() -> None:
    assert f"Protocol version: {PROTOCOL_VERSION}." in text_of("docs/protocol.md")


def limits() -> list[tuple[str, str]]:
    table = rows(section(text_of("docs/protocol.md"), "Limits"))
    return [(cells[0].strip("`"), cells[1]) for cells in table[2:]]


@pytest.mark.parametrize(("name", "value"), limits())
def test_limits_are_those_of_the_code(name: str, value: str) -> None:
    module, _, constant = name.rpartition(".")
    number, _, unit = value.partition(" ")
    factor = {"": 1, "s": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert getattr(importlib.import_module(module), constant) == float(number) * factor


# --- operations


def setting_row(setting: Setting) -> list[str]:
    if setting.required:
        default = "required"
    elif setting.default in (None, "", ()):
        default = "not set"
    elif isinstance(setting.default, bool):
        default = f"`{str(setting.default).lower()}`"
    elif isinstance(setting.default, tuple):
        default = f"`{','.join(setting.default)}`"
    else:
        default = f"`{setting.default}`"
    return [f"`{setting.name}`", f"`{setting.flag}`", default, setting.help]


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("Of `distkv up`", UpConfig), *((f"Of `distkv-{section}`", schema) for section, schema in SECTIONS.items())],
)
def test_settings_table(heading: str, schema: type[msgspec.Struct]) -> None:
    expected = [setting_row(setting) for setting in settings_of(schema).values()]
    shown = "\n".join("| " + " | ".join(row) + " |" for row in expected)
    assert rows(section(text_of("docs/configuration.md"), heading))[2:] == expected, f"the table should be\n{shown}"


def test_status_example_has_every_field() -> None:
    (example,) = (json.loads(block) for block in blocks(ROOT / "docs/operations.md", "json"))
    for status in example["instances"]:
        assert set(status) == set(InstanceStatus.__struct_fields__)
        assert set(status["blocks"]) == set(SlotCounts.__struct_fields__)
        assert list(status["counters"]) == [one.name for one in COUNTERS if one.in_status]
    for request in example["requests"]:
        assert set(request) == {*RequestStatus.__struct_fields__, "remote_share"}
        assert all(set(span) == set(SpanStatus.__struct_fields__) for span in request["spans"])


def test_status_example_has_the_whole_cluster() -> None:
    (example,) = (json.loads(block) for block in blocks(ROOT / "docs/operations.md", "json"))
    assert set(example["cluster"]) == set(ClusterState.__struct_fields__) - {"retry_after_s"}
    assert all(set(plan) == set(PlanStatus.__struct_fields__) for plan in example["cluster"]["plans"])
    assert all(set(run) == set(DgfmRunStatus.__struct_fields__) for run in example["cluster"]["runs"])
    assert all(set(debt) == set(DebtEdge.__struct_fields__) for debt in example["cluster"]["debts"])


def logged_events() -> Iterator[tuple[str, str]]:
    """(event, where) of every line that the processes of a cluster log."""
    for kind in ClusterEvent.__subclasses__():
        yield str(kind.__struct_config__.tag), f"events.{kind.__name__}"
    package = Path(distkv.__file__).parent
    for path in sorted(set(package.rglob("*.py")) - set((package / "demo").rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) in LOGGERS
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                yield node.args[0].value, f"{path.name}:{node.lineno}"


def test_every_log_event_is_explained() -> None:
    table = rows(section(text_of("docs/operations.md"), "Log events"))
    explained = {name for cells in table[2:] for name in re.findall(r"`([^`]+)`", cells[0])}
    logged = dict(logged_events())
    assert explained == set(logged), {event: where for event, where in logged.items() if event not in explained}


# --- the glossary


def glossary_words() -> list[str]:
    table = [
        cells[0] for cells in rows(text_of("docs/glossary.md")) if cells[0] != "word" and set(cells[0]) != set("-")
    ]
    return [word for cell in table for word in re.split(", | → ", cell)]


def test_words_of_the_glossary_are_those_of_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "distkv").rglob("*.py"))).lower()
    spellings = {word: {word.lower().replace(" ", between) for between in (" ", "_", "")} for word in glossary_words()}
    unused = [word for word, spelled in spellings.items() if not any(one in code for one in spelled)]
    assert not unused, f"nothing in distkv/ says {unused}"
    assert len(spellings) == len(glossary_words()), "a word has two rows"


# --- all pages


def ids(items: list[tuple[Path, str]]) -> list[str]:
    return [f"{page.name}-{index}" for index, (page, _) in enumerate(items)]


PYTHON = [(page, block) for page in PAGES for block in blocks(page, "python")]
COMMANDS = [
    (page, line)
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
TOML = [(page, block) for page in PAGES for block in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "snippet"), PYTHON, ids=ids(PYTHON))
def test_python_snippets_compile_and_name_what_exists(page: Path, snippet: str) -> None:
    tree = compile(snippet, str(page), "exec", ast.PyCF_ONLY_AST)
    assert isinstance(tree, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "distkv":
            assert node.attr in distkv.__all__
        if isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=ids(COMMANDS))
def test_commands_and_flags_exist(page: Path, line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    name = program.removeprefix("bin/")
    if program.startswith("bin/"):
        assert (ROOT / program).stat().st_mode & 0o111, f"{program} is no program"
    if name not in PROGRAMS:
        return
    command: click.Command = PROGRAMS[name]
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, f"there is no command {arguments[0]}"
        command, arguments = found, arguments[1:]
        if found is bench.command:
            assert arguments[0] in bench.modules(), f"there is no benchmark {arguments[0]}"
    context = click.Context(command, info_name=name, **command.context_settings)
    # Unknown flags raise; values are not converted, for the files they name are examples.
    command.make_parser(context).parse_args(list(arguments))


@pytest.mark.parametrize(("page", "block"), TOML, ids=ids(TOML))
def test_toml_examples_are_accepted(page: Path, block: str, tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(block, encoding="utf-8")
    assert all([load_file(path, section) is not None for section in SECTIONS])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_a_page_names_each_kept_result() -> None:
    named = set(re.findall(r"[\w-]+\.(?:json|png)", "".join(page.read_text(encoding="utf-8") for page in PAGES)))
    assert {path.name for path in (ROOT / "docs/benchmarks").iterdir()} - named <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = r"(?:[\w.]+/)*[\w.]+\.py|(?:bin|configs|docs|distkv|tests)/[\w./-]*|(?:\w+/)+"
    named = set(re.findall(rf"`({files})`", text)) | set(re.findall(r"(?<![\w/])bin/[\w-]+", text))
    places = [ROOT, ROOT / "distkv", ROOT / "distkv/control"]
    if page.is_relative_to(ROOT / "distkv"):
        places += [page.parent, *(place for place in page.parent.iterdir() if place.is_dir())]
    missing = sorted(name for name in named if not any((place / name).exists() for place in places))
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w./-])((?:distkv|tests)(?:\.\w+)+)\b(?!@|/)", text))
    missing = sorted(name for name in named if not is_importable(name))
    assert not missing, f"{page.name} names {missing}"


def is_importable(dotted: str) -> bool:
    """Whether this is a module, or something in one."""
    module, _, attributes = dotted, "", []
    while module:
        try:
            found: object = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
            continue
        for attribute in attributes:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False
