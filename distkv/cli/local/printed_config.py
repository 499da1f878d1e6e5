"""All effective settings of a cluster on this machine, as a file that `--config` takes."""

from __future__ import annotations

from collections.abc import Iterator

from distkv.cli.local.wanted import CHOSEN, Wanted
from distkv.cli.options import setting_line
from distkv.client.local.cluster_settings import ClusterSettings
from distkv.config import SECTIONS, build, settings_of, values_of

BY_UP = "chosen by distkv up"
BY_INSTANCES = frozenset(
    {("instance", "cpu_affinity"), ("instance", "device"), ("instance", "threads"), ("gateway", "wait_for")}
)
"""Tables and settings that `up` chooses by how many instances there are, and so chooses again."""


def config_lines(wanted: Wanted) -> Iterator[str]:
    """A table for each program, and for each setting where it came from; secrets are masked. Raises ConfigError."""
    settings = ClusterSettings.of(**wanted.arguments())
    yield "[up]"
    for name, value in values_of(wanted.up).items():
        yield setting_line(name, value, wanted.origins.get(("up", name), "default"))
    of_sections = {"gmanager": settings.gmanager, "instance": settings.instances[0], "gateway": settings.gateway}
    for section, given in of_sections.items():
        if given is None:
            continue
        schema, left_out = SECTIONS[section], CHOSEN | {"kv_tokens"} if section == "instance" else {"gmanager"}
        yield f"\n[{section}]"
        for name, chosen in values_of(build(schema, given)).items():
            if name not in left_out:
                value = wanted.given[section].get(name) if (section, name) in BY_INSTANCES else chosen
                setting = settings_of(schema)[name]
                usual = "default" if setting.required or value == setting.default else BY_UP
                yield setting_line(name, value, wanted.origins.get((section, name), usual))
