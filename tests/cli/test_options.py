from __future__ import annotations

import tomllib
from pathlib import Path

import click
import pytest

from distkv.cli.exit_codes import run
from distkv.cli.options import resolve, setting_option, setting_options
from distkv.config import GatewayConfig, GManagerConfig, InstanceConfig, Settings, UpConfig, settings_of


class Captured:
    """A command that keeps the config it was given."""

    def __init__(self, schema: type[Settings]) -> None:
        self.config: Settings | None = None

        @click.pass_context
        def callback(ctx: click.Context, /, **params: object) -> None:
            self.config = resolve(ctx, schema, params)

        self.command = click.Command("it", callback=callback, params=setting_options(schema))

    def __call__(self, *args: str) -> int:
        return run(self.command, args)


@pytest.fixture
def instance() -> Captured:
    return Captured(InstanceConfig)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text('model = "from-file"\nmax_num_seqs = 3\nblock_size = 8\ninsecure = true\n')
    return path


def test_the_command_line_wins_over_environment_over_file_over_default(instance, file, monkeypatch):
    monkeypatch.setenv("DISTKV_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("DISTKV_BLOCK_SIZE", "32")
    assert instance("--config", str(file), "--block-size", "64", "--max-model-len=32K") == 0
    config = instance.config
    assert (config.engine.model, config.control.max_num_seqs, config.engine.block_size) == ("from-file", 4, 64)
    assert (config.control.max_model_len, config.insecure, config.port) == (32 * 1024, True, 0)


def test_the_file_may_come_from_the_environment_and_flags_turn_things_off(instance, file, monkeypatch):
    monkeypatch.setenv("DISTKV_CONFIG", str(file))
    assert instance("--no-insecure", "--shutdown-timeout", "1.5") == 0
    assert (instance.config.control.max_num_seqs, instance.config.insecure) == (3, False)
    assert instance.config.shutdown_timeout_s == 1.5


def test_print_config_is_toml_with_origins_and_starts_nothing(instance, file, monkeypatch, capsys):
    monkeypatch.setenv("DISTKV_DTYPE", "float32")
    assert instance("--config", str(file), "--threads", "2", "--print-config") == 0
    assert instance.config is None
    out = capsys.readouterr().out
    values = tomllib.loads(out)
    assert (values["model"], values["dtype"], values["threads"]) == ("from-file", "float32", 2)
    assert values["gmanager"] == ["tcp://127.0.0.1:7070"]
    origin = {line.split()[0]: line.partition("  # ")[2] for line in out.splitlines() if not line.startswith("#")}
    assert origin["threads"] == "command line (--threads)"
    assert origin["dtype"] == "environment (DISTKV_DTYPE)"
    assert origin["model"] == f"file {file}"
    assert origin["lease_s"] == "default"
    assert "# kv_tokens is not set" in out
    comments = {line.split()[1]: line.rpartition("  # ")[2] for line in out.splitlines() if line.startswith("# ")}
    assert (comments["kv_tokens"], comments["trace_file"]) == ("default, automatic", "default")


def test_what_print_config_prints_is_a_config_file(instance, file, tmp_path, capsys):
    assert instance("--config", str(file), "--print-config") == 0
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert instance("--config", str(again)) == 0
    assert instance.config.control.max_num_seqs == 3


def test_print_config_fails_as_the_start_would(instance, capsys):
    assert instance("--model", "m", "--host", "127.0.0.1:80", "--print-config") == 2
    shown = capsys.readouterr()
    assert 'host = "127.0.0.1:80"' in shown.out and "command line (--host)" in shown.out
    assert "host: expected a name or an address without a port" in shown.err
    assert instance("--lease-s", "0.5", "--print-config") == 0, "what is not set yet is no mistake"
    assert instance("--model", "m", "--lease-s", "0.5", "--print-config") == 2
    assert instance.config is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--max-num-seqs", "many"], "max_num_seqs: expected an integer ≥ 1, got 'many' from command line (--max-num"),
        (["--max-num-seqs", "0"], "expected an integer ≥ 1, got 0"),
        (["--kv-tokens", "4X"], "kv_tokens: expected an integer ≥ 1, such as 4096, 32K or 4G"),
        (["--dtype", "int8"], "dtype: expected one of"),
        (["--lease-s", "soon"], "lease_s: expected a number > 0"),
        (["--max-num-seq", "4"], "--max-num-seq"),
        (["--modle", "m"], "--model"),
        (["--config", "nowhere.toml"], "config: cannot read nowhere.toml"),
        ([], "model: is not set (give --model, DISTKV_MODEL or a config file)"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(instance, args, told, capsys):
    assert instance(*args) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.startswith("error: ") and "Traceback" not in err and len(err.splitlines()) <= 2


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_setting(instance, monkeypatch, capsys):
    monkeypatch.setenv("DISTKV_PORT", "tcp://10.0.0.1:7070")
    assert instance("--model", "m") == 2, "somebody set that, and it is no port"
    assert "got 'tcp://10.0.0.1:7070' from environment (DISTKV_PORT)" in capsys.readouterr().err
    monkeypatch.setenv("DISTKV_SERVICE_HOST", "10.0.0.1")
    assert instance("--model", "m") == 0
    assert instance.config.port == 0
    monkeypatch.setenv("DISTKV_PORT", "7171")
    assert instance("--model", "m") == 0
    assert instance.config.port == 7171


def test_mistakes_in_the_environment_name_the_variable(instance, monkeypatch, capsys):
    monkeypatch.setenv("DISTKV_THREADS", "x")
    assert instance("--model", "m") == 2
    assert "threads: expected an integer from 1 to 4096 (or auto), got 'x' from environment (DISTKV_THREADS)" in (
        capsys.readouterr().err
    )
    monkeypatch.delenv("DISTKV_THREADS")
    monkeypatch.setenv("DISTKV_MAX_NUM_SEQ", "4")
    assert instance("--model", "m") == 2
    assert "did you mean DISTKV_MAX_NUM_SEQS?" in capsys.readouterr().err


def test_unknown_keys_of_a_file_name_the_nearest(instance, tmp_path, capsys):
    path = tmp_path / "c.toml"
    path.write_text("max_num_sequences = 4\n")
    assert instance("--config", str(path)) == 2
    assert "did you mean max_num_seqs?" in capsys.readouterr().err


def test_auto_unsets(instance, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('model = "m"\nthreads = 3\n')
    assert instance("--config", str(path), "--threads", "auto") == 0
    assert instance.config.engine.threads is None


def test_the_gmanager_has_its_own_settings(capsys):
    gmanager = Captured(GManagerConfig)
    assert gmanager("--port", "0", "--dead-after-s", "9", "--log-json") == 0
    assert (gmanager.config.port, gmanager.config.membership.dead_after_s, gmanager.config.logging.log_json) == (
        0,
        9.0,
        True,
    )
    assert gmanager("--model", "m") == 2
    assert gmanager("--host", "0.0.0.0") == 2
    assert "--insecure" in capsys.readouterr().err


def test_help_names_defaults_and_units(instance, capsys):
    assert instance("--help") == 0
    out = capsys.readouterr().out
    assert "--kv-cache-memory-bytes BYTES" in out and "default: 2048" in out and "--lease-s SECONDS" in out
    assert "--gpu-memory-utilization NUMBER" in out and "--staging-blocks BLOCKS" in out


def test_help_says_auto_only_where_something_is_chosen():
    settings = [one for schema in (InstanceConfig, GatewayConfig, UpConfig) for one in settings_of(schema).values()]
    flags = [setting_option(one) for one in settings if one.default is None and one.name != "log_json"]
    automatic = {str(flag.name): flag.show_default == "auto" for flag in flags}
    assert all(automatic[name] for name in ("threads", "kv_cache_memory_bytes", "max_model_len", "microbatches"))
    unset = ("ssl_certfile", "ssl_keyfile", "chat_template", "log_dir", "trace_file", "cpu_affinity", "max_tpot_s")
    assert not any(automatic[name] for name in unset)


def test_checked_in_config_file():
    path = Path(__file__).parents[2] / "configs" / "local.toml"
    assert Captured(GManagerConfig)("--config", str(path)) == 0
    assert Captured(InstanceConfig)("--config", str(path), "--model", "m") == 0
