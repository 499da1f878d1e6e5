from __future__ import annotations

from pathlib import Path

import pytest

from distkv.config import (
    SECTIONS,
    GatewayConfig,
    GManagerConfig,
    InstanceConfig,
    build,
    check_environment,
    load_file,
    model_dir,
    parse_address,
    parse_cores,
    parse_count,
    read_file,
    resolve_auto,
    settings_of,
    values_of,
)
from distkv.config import values as values_module
from distkv.config.table import groups_of
from distkv.config.values import check_bind, is_loopback
from distkv.errors import ConfigError
from tests.project.test_layering import FORBIDDEN, imports_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1_000", 1000),
        ("32K", 32 * 1024),
        ("32k", 32_000),
        ("1.5K", 1536),
        ("1M", 2**20),
        ("4G", 4 * 2**30),
        ("4g", 4 * 10**9),
        ("1T", 2**40),
        ("16.1k", 16_100),
        ("2.01k", 2_010),
    ],
)
def test_suffixes(text, value):
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "K", "4GB", "-1", "1.0001", "0x10", "4 4"])
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match="not a"):
        parse_count(text)


def test_lists_of_cores():
    assert parse_cores("3", key="k") == (3,)
    assert parse_cores("6, 0-2,4", key="k") == (6, 0, 1, 2, 4)
    for wrong in ("", "a", "3-1", "-1", "1,", "0-99999", "1.5"):
        with pytest.raises(ConfigError, match="k: expected cores such as 0-3,6, got"):
            parse_cores(wrong, key="k")
    with pytest.raises(ConfigError, match="k: 0-2,1 names a core twice"):
        parse_cores("0-2,1", key="k")


def test_addresses():
    assert parse_address("localhost:7070") == "tcp://localhost:7070"
    assert parse_address("tcp://[::1]:7070") == "tcp://[::1]:7070"
    assert parse_address("[fe80::1%eth0]:7070") == "tcp://[fe80::1%eth0]:7070"
    for wrong in ("7070", "tcp://host", "host:0", "host:70000", "http://host:1", "[fe80::1%]:1", "[fe80::1%a b]:1", ""):
        with pytest.raises(ConfigError, match="address"):
            parse_address(wrong)


def test_loopback():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "*", "10.0.0.1", "example.org", "")))


def test_defaults_are_valid_and_described():
    build(GManagerConfig, {})
    build(InstanceConfig, {"model": "m"})
    build(GatewayConfig, {"model": "m"})
    for schema in SECTIONS.values():
        for setting in settings_of(schema).values():
            assert setting.help.endswith("."), setting.name
            if not setting.required:
                assert setting.convert(setting.default, "default") == setting.default


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_in_one_place_whatever_group_it_is_in(section):
    config = build(SECTIONS[section], {"model": "m"} if section != "gmanager" else {})
    values = values_of(config)
    assert list(values) == list(settings_of(SECTIONS[section]))
    assert build(SECTIONS[section], values) == config
    names = [name for kind in [type(config), *groups_of(type(config)).values()] for name in kind.__struct_fields__]
    assert len(set(names)) == len(names), "declared twice"
    assert set(names) == {*values, *groups_of(type(config))}


@pytest.mark.parametrize("module", ["groups", "schema", "table"])
def test_control_may_import_what_declares_settings(module):
    path = Path(values_module.__file__).with_name(f"{module}.py")
    found = {imported.partition(".")[0] for _, imported in imports_of(path)}
    assert not found & FORBIDDEN["control"], "what looks at the machine is in resolving.py"


def test_configs_are_frozen():
    config = build(GManagerConfig, {})
    with pytest.raises(AttributeError):
        config.port = 1


def test_a_file_sets_what_it_says(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('model = "m"\nmax-num-seqs = 8\nkv_tokens = "4K"\nlease_s = 3\ngmanager = ["a:1", "b:2"]\n')
    values = load_file(path, "instance")
    assert values == {"model": "m", "max_num_seqs": 8, "kv_tokens": 4096, "lease_s": 3.0, "gmanager": ("a:1", "b:2")}


def test_one_file_for_both(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('heartbeat_s = 0.2\n[gmanager]\nport = 7171\n[instance]\nmodel = "m"\nshutdown-timeout = 1\n')
    assert load_file(path, "gmanager") == {"heartbeat_s": 0.2, "port": 7171}
    assert load_file(path, "instance") == {"heartbeat_s": 0.2, "model": "m", "shutdown_timeout_s": 1.0}
    assert read_file(path).table("gmanager") == {"port": 7171}


def test_outside_tables_a_setting_is_for_every_program_that_has_it(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('heartbeat_s = 0.2\nmodel = "m"\ndead-after-s = 3\nhost = "::1"\nshutdown-timeout = 1\n')
    assert load_file(path, "gmanager") == {"heartbeat_s": 0.2, "dead_after_s": 3.0, "host": "::1"}
    ours = {"model": "m", "host": "::1", "shutdown_timeout_s": 1.0}
    assert load_file(path, "instance") == {"heartbeat_s": 0.2, **ours}
    assert load_file(path, "gateway") == ours


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_num_seq = 8", "max_num_seq: unknown setting .*max_num_seqs"),
        ("[instance]\nmodle = 'm'", "modle: .*did you mean model"),
        ("[gmanagr]\nport = 1", "gmanagr: unknown .*did you mean gmanager"),
        ("[instance]\ndead_after_s = 3", "dead_after_s: unknown .*put it under .gmanager"),
        ("dead_after_s = 'never'", "dead_after_s: expected a number"),
        ("max_num_seqs = 'many'", "max_num_seqs: expected an integer ≥ 1, got 'many' from .*c.toml"),
        ("max_num_seqs = 0", "max_num_seqs: expected an integer ≥ 1"),
        ("max_num_seqs = 1.5", "max_num_seqs: expected an integer"),
        ("max_num_seqs = true", "max_num_seqs: expected an integer"),
        ("port = 70000", "port: expected an integer from 0 to 65535"),
        ("insecure = 'yes'", "insecure: expected true or false"),
        ("dtype = 'int8'", "dtype: expected one of .*float16"),
        ("dtype = 'bfloat'", "dtype: expected one of .*did you mean bfloat16"),
        ("log_dirs = 'x'", "log_dirs: unknown setting .*did you mean log_dir"),
        ("dead-after = 3", "dead-after: unknown setting .*did you mean dead_after_s"),
        ("lease_s = 0", "lease_s: expected a number > 0"),
        ("lease_s = nan", "lease_s: expected a number"),
        ("model = 3", "model: expected a text"),
        ("kv_tokens = '4X'", "kv_tokens: expected an integer ≥ 1, such as"),
        ("max_num_seqs = 9223372036854775808", "max_num_seqs: expected 9223372036854775807 at most"),
        ("max_body_bytes = '100000000T'", "max_body_bytes: expected 9223372036854775807 at most, got '100000000T'"),
        ("[up]\nkv_tokens = [1, '100000000T']", "kv_tokens: expected 9223372036854775807 at most"),
        ("lease_s = 3\nlease-s = 2", "lease-s: is set in another spelling too in .*c.toml"),
        ("shutdown_timeout_s = 3\nshutdown-timeout = 2", "shutdown-timeout: is set in another spelling too"),
        ("api-key = 'a'\napi_key = 'b'", "api_key: is set in another spelling too"),
        ("[gateway]\napi-key = 'a'\napi_key = 'b'", "api_key: is set in another spelling too in .*c.toml .gateway."),
        ("= 3", "is not TOML"),
    ],
)
def test_what_a_file_must_not_hold(tmp_path, text, told):
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_file(path, "instance")


def test_a_file_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text("port = 7\n[instance]\nmax_num_seqs = 3", encoding="utf-8-sig")
    assert load_file(path, "instance") == {"port": 7, "max_num_seqs": 3}


@pytest.mark.parametrize("insecure", [False, True])
def test_a_host_has_no_port(insecure):
    for host in ("127.0.0.1:80", "localhost:80"):
        with pytest.raises(ConfigError, match="without a port"):
            check_bind(host, insecure)
    for host in ("::1", "[::1]", "127.0.0.1", "localhost"):
        check_bind(host, insecure)


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64])
def test_what_is_no_name_of_a_host(host):
    """The gateway ended with a traceback."""
    with pytest.raises(ConfigError, match="host: expected a name or an address, got"):
        check_bind(host, True, key="host")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        load_file(tmp_path / "none.toml", "instance")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "model: is not set"),
        ({"model": "m", "nodel": 1}, "nodel: unknown"),
        ({"model": "m", "kv_tokens": 64, "kv_cache_memory_bytes": "1M"}, "both set"),
        ({"model": "m", "kv_tokens": 8}, "less than one rBlock"),
        ({"model": "m", "lease_s": 0.5}, "lease_margin_s: must be under"),
        ({"model": "m", "max_num_seqs": 64, "max_num_batched_tokens": 71}, "leave no room for 8 tokens of a prompt"),
        ({"model": "m", "host": "0.0.0.0"}, "host: .*--insecure"),
        ({"model": "m", "data_host": "10.1.1.1"}, "data_host: .*--insecure"),
        ({"model": "m", "gmanager": "nowhere"}, "gmanager: expected an address"),
    ],
)
def test_contradictions(values, told):
    with pytest.raises(ConfigError, match=told):
        build(InstanceConfig, values)


def test_insecure_allows_other_hosts():
    assert build(InstanceConfig, {"model": "m", "host": "10.0.0.1", "insecure": True}).host == "10.0.0.1"
    assert build(GManagerConfig, {"host": "0.0.0.0", "insecure": True}).host == "0.0.0.0"


@pytest.mark.parametrize("key", ["host", "data_host"])
@pytest.mark.parametrize("host", ["0.0.0.0", "fe80::1%eth0"])
def test_an_instance_needs_an_address_that_peers_can_reach(key: str, host: str) -> None:
    with pytest.raises(ConfigError, match=f"peers cannot connect to {host}"):
        build(InstanceConfig, {"model": "m", key: host, "insecure": True})


def test_auto_becomes_something_in_a_new_config():
    config = build(InstanceConfig, {"model": "demo", "gmanager": "localhost:1,localhost:2"})
    resolved = resolve_auto(config)
    assert Path(resolved.engine.model) == model_dir("demo") and (model_dir("demo") / "config.json").is_file()
    assert config.instance_id == "" and resolved.instance_id
    assert resolved.data.data_host == "127.0.0.1"
    assert resolved.engine.threads is not None and resolved.engine.threads >= 1
    assert resolved.gmanager == ("tcp://localhost:1", "tcp://localhost:2")
    assert resolve_auto(resolved) == resolved
    named = resolve_auto(build(InstanceConfig, {"model": "demo", "instance_id": "mine", "threads": 3}))
    assert (named.instance_id, named.engine.threads) == ("mine", 3)


def test_threads_follow_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 6})
    assert build(InstanceConfig, {"model": "m"}).engine.cores == ()
    assert resolve_auto(build(InstanceConfig, {"model": "demo", "cpu_affinity": "auto"})).engine.threads == 4
    assert resolve_auto(build(InstanceConfig, {"model": "demo", "cpu_affinity": "6,0-1"})).engine.threads == 3
    assert (
        resolve_auto(build(InstanceConfig, {"model": "demo", "cpu_affinity": "0-1", "threads": 1})).engine.threads == 1
    )
    with pytest.raises(ConfigError, match="threads: 3 are more than the 2 cores of cpu_affinity"):
        build(InstanceConfig, {"model": "demo", "cpu_affinity": "0-1", "threads": 3})
    with pytest.raises(ConfigError, match=r"this process may not use cores 3, 7-9 .it may use 0-2, 6"):
        resolve_auto(build(InstanceConfig, {"model": "demo", "cpu_affinity": "2-3,7-9"}))
    with pytest.raises(ConfigError, match=r"this process may not use core 3 .it may use 0-2, 6"):
        resolve_auto(build(InstanceConfig, {"model": "demo", "cpu_affinity": "2-3"}))


def test_a_model_is_a_directory_or_the_one_that_comes_with_us(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").touch()
    assert model_dir("./demo") == Path("demo")
    assert model_dir("demo") != Path("demo")
    with pytest.raises(ConfigError, match="or demo for the one that comes with distkv"):
        model_dir("dem")


def test_a_model_must_have_a_name_that_can_be_sent(tmp_path: Path) -> None:
    """An instance ended for it in the middle of its start, with a traceback."""
    (tmp_path / "bytes\udcff").mkdir()
    with pytest.raises(ConfigError, match=r"model: the name .*udcff' is no text in UTF-8"):
        model_dir(str(tmp_path / "bytes\udcff"))


def test_near_misses_in_the_environment_are_refused_and_others_are_not():
    check_environment({"DISTKV_MODEL": "m", "DISTKV_PORT": "1", "PATH": "x", "DISTKV_SERVICE_HOST": "10.0.0.1"})
    ours = ("CONFIG", "ADDRESS", "HTTP_PORT", "HTTP_REQUEST_TIMEOUT_S", "MODELS", "RUN_DIR")
    check_environment({f"DISTKV_{name}": "x" for name in ours})
    with pytest.raises(ConfigError, match="DISTKV_MAX_NUM_SEQS"):
        check_environment({"DISTKV_MAX_NUM_SEQ": "3"})


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices(tmp_path, device):
    assert build(InstanceConfig, {"model": "m", "device": device}).engine.device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "CUDA", "cuda:0,1"])
def test_what_is_no_device(device):
    with pytest.raises(ConfigError, match="device: expected auto, cpu, cuda or a GPU's number such as cuda:1, got"):
        build(InstanceConfig, {"model": "m", "device": device})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("gpu_memory_utilization", 0.0, "a number > 0 and ≤ 1"),
        ("gpu_memory_utilization", 1.1, "a number > 0 and ≤ 1"),
        ("microbatches", 3, "an integer from 1 to 2 (or auto)"),
        ("kv_cache_dtype", "int4", "one of auto, fp8"),
    ],
)
def test_bounds_of_what_gpus_need(key, value, expected):
    with pytest.raises(ConfigError) as caught:
        build(InstanceConfig, {"model": "m", key: value})
    assert str(caught.value).startswith(f"{key}: expected {expected}, got {value!r}")


@pytest.mark.parametrize("keys", ["", ",", " , ", [""], ["good", ""], ["a b"], ["schlüssel"], ["a\n"]])
def test_keys_that_no_request_can_bear_are_refused(keys):
    with pytest.raises(ConfigError, match="api_key: expected keys of printable ASCII without spaces"):
        build(GatewayConfig, {"model": "m", "api_key": keys})
    assert build(GatewayConfig, {"model": "m"}).api_key == ()
    assert build(GatewayConfig, {"model": "m", "api_key": "one, two"}).api_key == ("one", "two")


@pytest.mark.parametrize(
    "text",
    [
        "api_key = 1234567890123",
        "api_key = ['sk-1234567890123', 5]",
        "[gateway]\napi_key = {a = 'sk-1234567890123'}",
        "[[gateway]]\napi_key = 'sk-1234567890123'",
        "gateway = [[{api_key = 'sk-1234567890123'}]]",
    ],
)
def test_no_key_is_in_an_error(tmp_path, text):
    """It comes from a file whose owner forgot the quotes, and goes to a terminal or a log."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_file(path, "gateway")
    assert "1234567890123" not in str(caught.value) and "expected" in str(caught.value)


def test_a_name_is_printable():
    with pytest.raises(ConfigError, match=r"instance_id: expected printable characters, got 'a\\x1b'"):
        build(InstanceConfig, {"model": "m", "instance_id": "a\x1b"})
