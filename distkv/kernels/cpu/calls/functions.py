"""The C functions of the native library: (result type, argument types) by name."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_double, c_float, c_int, c_int32, c_int64, c_uint, c_void_p
from typing import Any

import torch

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""As in native/attend.h."""

Signature = tuple[Any, tuple[Any, ...]]


class AttendSeq(Structure):
    """As in native/attend.h."""

    _fields_ = [
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("num_blocks", c_int64),
        ("num_keys", c_int64),
        ("first_row", c_int64),
        ("num_rows", c_int64),
        ("out_row", c_int64),
    ]


class AttendCall(Structure):
    """As in native/attend.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("q", "q_positions", "k", "v", "alibi", "out", "lse", "seqs")),
        *((name, c_int64) for name in ("q_stride", "slot_bytes", "window", "num_seqs")),
        *((name, c_int32) for name in ("q_type", "kv_type", "pair", "heads", "kv_heads", "dim", "block_tokens")),
        ("serving", c_int32),
        ("scale", c_float),
    ]


class StoreCall(Structure):
    """As in native/store.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("rows", "cos", "sin", "q_norm", "k_norm", "q", "k", "v", "slots", "offsets")),
        *((name, c_int64) for name in ("num_rows", "row_stride", "slot_bytes")),
        *((name, c_int32) for name in ("type", "pair", "heads", "kv_heads", "dim", "block_tokens")),
        ("eps", c_float),
    ]


class LinearPart(Structure):
    """As in native/layer_tail.h."""

    _fields_ = [("packed", c_void_p), ("bias", c_void_p), ("k", c_int32), ("n", c_int32)]


class LayerTailCall(Structure):
    """As in native/layer_tail.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("attended", "x", "out", "mlp_norm", "next_norm")),
        *((name, LinearPart) for name in ("o", "gate_up", "down", "next")),
        ("rows", c_int64),
        ("dtype", c_int32),
        ("eps", c_float),
    ]


class LayerParts(Structure):
    """As in native/layers.h."""

    _fields_ = [
        *((name, LinearPart) for name in ("o", "gate_up", "down", "next")),
        *((name, c_void_p) for name in ("mlp_norm", "next_norm", "q_norm", "k_norm", "k", "v")),
        ("window", c_int64),
    ]


class LayersCall(Structure):
    """As in native/layers.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("layers", "x", "found", "out", "cos", "sin")),
        *((name, c_void_p) for name in ("positions", "slots", "offsets", "wanted", "seqs")),
        *((name, c_void_p) for name in ("exchange", "exchange_call", "local", "local_lse", "merged")),
        *((name, c_int64) for name in ("num_layers", "num_rows", "num_wanted", "num_seqs", "slot_bytes")),
        ("stopped_at", c_int64),
        *((name, c_int32) for name in ("type", "pair", "heads", "kv_heads", "dim", "block_tokens")),
        ("scale", c_float),
        ("eps", c_float),
    ]


class PeerTimes(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [(name, c_double) for name in ("asked_s", "sent_s", "waits_s", "answered_s")]


class Rhythm(Structure):
    """As in native/frames.h."""

    _fields_ = [
        *((name, c_double) for name in ("last_s", "before_s")),
        *((name, c_int32) for name in ("in_vain", "waits_without")),
    ]


class Peer(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [
        *((name, c_int32) for name in ("fd", "status")),
        *((name, c_void_p) for name in ("frames", "expected", "times", "rows", "picked", "head", "partials", "wide")),
        *((name, c_int64) for name in ("first_row", "num_rows", "partial_bytes", "received", "num_halves")),
        ("patience_s", c_double),
        ("waits", Rhythm),
    ]


class MergeRun(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [
        *((name, c_int64) for name in ("first", "count", "rows")),
        *((name, c_void_p) for name in ("out", "lse")),
    ]


class LayerTimes(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [(name, c_double) for name in ("sent_s", "attended_s", "collected_s", "merged_s")]


class ExchangeCall(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in ("attend", "merge", "runs", "outs", "lses", "peers", "times")),
        *((name, c_int64) for name in ("num_runs", "num_peers", "row_bytes")),
        ("dim", c_int32),
        ("turn_s", c_double),
    ]


class ServeLayer(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in ("expected", "answer")),
        *((name, c_int64) for name in ("expected_bytes", "answer_bytes")),
        ("attend_call", c_void_p),
        *((name, c_double) for name in ("received_s", "attended_s")),
    ]


class ServeCall(Structure):
    """As in native/exchange.cpp."""

    _fields_ = [
        *((name, c_void_p) for name in ("attend", "layers", "gate", "time", "head", "queries", "partials", "wide")),
        *((name, c_int64) for name in ("num_layers", "next", "query_bytes", "partial_bytes", "received", "num_halves")),
        *((name, c_double) for name in ("idle_s", "send_s")),
        ("pauses", Rhythm),
        ("fd", c_int32),
    ]


SHARED: dict[str, Signature] = {
    "machine_levels": (c_uint, ()),
    "machine_has_slow_pairs": (c_int, ()),
    "set_threads": (c_int, (c_int, POINTER(c_int), c_int)),
}
"""There once, as `distkv_<name>`."""

EXCHANGE: dict[str, Signature] = {
    "exchange": (c_int, (POINTER(ExchangeCall), c_int64, c_void_p, c_void_p)),
    "serve": (c_int, (POINTER(ServeCall),)),
    "gate_shut": (c_int, (c_void_p,)),
    "serve_time_new": (c_void_p, ()),
    "serve_time_free": (None, (c_void_p,)),
    "serve_time_begin": (None, (c_void_p,)),
    "serve_time_end": (None, (c_void_p,)),
    "serve_time_total": (c_double, (c_void_p,)),
}
"""There once, as `distkv_<name>`; a library without them computes, and layers with keys elsewhere go frame by frame."""

OF_LEVEL: dict[str, Signature] = {
    "abi": (c_int, ()),
    "attend": (c_int, (POINTER(AttendCall),)),
    "store": (c_int, (POINTER(StoreCall),)),
    "layer_tail": (c_int, (POINTER(LayerTailCall),)),
    "layers": (c_int, (POINTER(LayersCall),)),
    "stream": (c_float, (c_void_p, c_int64)),
    "merge": (None, (c_void_p, c_void_p, c_int, c_int64, c_int, c_void_p, c_void_p)),
    "linear_pack": (None, (c_int, c_void_p, c_int64, c_int, c_int, c_void_p)),
    "linear": (
        c_int,
        (c_int, c_void_p, c_int64, c_int, c_int, c_void_p, c_void_p, c_int, c_void_p, c_int64),
    ),
    "rms_norm": (None, (c_int, c_void_p, c_int64, c_int, c_int, c_void_p, c_float, c_void_p)),
    "add_rms_norm": (
        None,
        (c_int, c_void_p, c_int64, c_void_p, c_int64, c_int, c_int, c_void_p, c_float, c_void_p, c_void_p),
    ),
    "silu_mul": (None, (c_int, c_void_p, c_int64, c_int, c_int, c_void_p)),
}
"""There for every level, as `distkv_<name>_<level>`."""
