// Small operations of a decoder layer, each in one pass. They round to the storage type where transformers does.

#pragma once

#include <cstdint>

#include "abi.h"
#include "dtypes.h"
#include "simd.h"
#include "threads.h"

namespace {

constexpr int TILE = 256;             // numbers that are floats at a time
constexpr int PIECE_NUMBERS = 32768;  // that are worth a thread

// work(row) for all rows, in pieces for the threads.
template <class F>
void for_rows(int rows, int width, const F& work) {
    const int some = width >= PIECE_NUMBERS ? 1 : PIECE_NUMBERS / width;
    parallel((rows + some - 1) / some, false, [&](int piece) {
        const int end = piece * some + some < rows ? piece * some + some : rows;
        for (int row = piece * some; row < end; ++row) work(row);
    });
}

// Up to TILE stored numbers as floats, zeros behind them up to a whole vector.
template <class S>
DISTKV_INLINE void read_tile(const typename S::Stored* from, int count, float* to) {
    for (int i = 0; i < count; ++i) to[i] = S::one(from[i]);
    for (int i = count; i % W != 0; ++i) to[i] = 0;
}

template <class S>
DISTKV_INLINE float rounded(float x) {
    return S::one(S::stored(x));
}

template <class S>
float sum_of_squares(const typename S::Stored* x, int width) {
    alignas(64) float tile[TILE];
    Vec sums[2] = {};
    for (int start = 0; start < width; start += TILE) {
        const int count = width - start < TILE ? width - start : TILE;
        read_tile<S>(x + start, count, tile);
        for (int i = 0; i < count; i += W) sums[i / W % 2] = fma(load(tile + i), load(tile + i), sums[i / W % 2]);
    }
    return sum_of(sums[0] + sums[1]);
}

template <class S>
void norm_row(const typename S::Stored* x, const typename S::Stored* weight, int width, float eps,
              typename S::Stored* out) {
    const float factor = 1.0f / std::sqrt(sum_of_squares<S>(x, width) / static_cast<float>(width) + eps);
    for (int i = 0; i < width; ++i) out[i] = S::stored(S::one(weight[i]) * rounded<S>(S::one(x[i]) * factor));
}

template <class S>
void silu_mul_row(const typename S::Stored* gate, const typename S::Stored* up, int width, typename S::Stored* out) {
    alignas(64) float tile[TILE];
    for (int start = 0; start < width; start += TILE) {
        const int count = width - start < TILE ? width - start : TILE;
        read_tile<S>(gate + start, count, tile);
        for (int i = 0; i < count; i += W) {
            const Vec x = load(tile + i);
            const Vec e = exp_of(x < Vec{} ? x : -x);
            store(tile + i, x * (x < Vec{} ? e : splat(1.0f)) / (splat(1.0f) + e));
        }
        for (int i = 0; i < count; ++i) {
            out[start + i] = S::stored(rounded<S>(tile[i]) * S::one(up[start + i]));
        }
    }
}

// sum = x + y and its norm. Rows of x, y and sum lie their strides apart, those of out follow each other; sum may be x.
template <class S>
void add_norm_rows(const typename S::Stored* x, int64_t x_stride, const typename S::Stored* y, int64_t y_stride, int rows,
                   int width, const typename S::Stored* weight, float eps, typename S::Stored* sum, int64_t sum_stride,
                   typename S::Stored* out) {
    for_rows(rows, width, [&](int row) {
        const typename S::Stored *const a = x + row * x_stride, *const b = y + row * y_stride;
        typename S::Stored* const to = sum + row * sum_stride;
        for (int i = 0; i < width; ++i) to[i] = S::stored(S::one(a[i]) + S::one(b[i]));
        norm_row<S>(to, weight, width, eps, out + static_cast<int64_t>(row) * width);
    });
}

template <class S>
void silu_mul_rows(const typename S::Stored* gate_up, int64_t stride, int rows, int width, typename S::Stored* out) {
    for_rows(rows, 2 * width, [&](int row) {
        const typename S::Stored* const gate = gate_up + row * stride;
        silu_mul_row<S>(gate, gate + width, width, out + static_cast<int64_t>(row) * width);
    });
}

}  // namespace

// RMS norm of x [rows, width], rows `stride` numbers apart; out without gaps.
DISTKV_API(void, rms_norm)(int dtype, const void* x, int64_t stride, int rows, int width, const void* weight, float eps,
                           void* out) {
    of_dtype(dtype, [&](auto storage) {
        typedef decltype(storage) S;
        typedef typename S::Stored Stored;
        for_rows(rows, width, [&](int row) {
            norm_row<S>(static_cast<const Stored*>(x) + row * stride, static_cast<const Stored*>(weight), width, eps,
                        static_cast<Stored*>(out) + static_cast<int64_t>(row) * width);
        });
    });
}

// sum = x + y and the RMS norm of sum, all [rows, width]; x and y with a stride between rows.
DISTKV_API(void, add_rms_norm)(int dtype, const void* x, int64_t x_stride, const void* y, int64_t y_stride, int rows,
                               int width, const void* weight, float eps, void* sum, void* out) {
    of_dtype(dtype, [&](auto storage) {
        typedef decltype(storage) S;
        typedef typename S::Stored Stored;
        add_norm_rows<S>(static_cast<const Stored*>(x), x_stride, static_cast<const Stored*>(y), y_stride, rows, width,
                         static_cast<const Stored*>(weight), eps, static_cast<Stored*>(sum), width,
                         static_cast<Stored*>(out));
    });
}

// silu(gate) · up of gate_up [rows, 2 · width], the gates first; out [rows, width].
DISTKV_API(void, silu_mul)(int dtype, const void* gate_up, int64_t stride, int rows, int width, void* out) {
    of_dtype(dtype, [&](auto storage) {
        typedef typename decltype(storage)::Stored Stored;
        silu_mul_rows<decltype(storage)>(static_cast<const Stored*>(gate_up), stride, rows, width,
                                         static_cast<Stored*>(out));
    });
}
