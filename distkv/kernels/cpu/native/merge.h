// ScaleReduce (000 §4.2).

#pragma once

#include <algorithm>
#include <cstdint>

#include "abi.h"
#include "softmax.h"
#include "threads.h"

namespace {

// A row and head of `count` partials: outs `out_step` numbers apart, lses `lse_step`.
inline void merge_row(const float* const* outs, const float* const* lses, int count, size_t row, int dim, float* out,
                      float* lse) {
    float peak = NOTHING;
    bool is_any = false;
    for (int i = 0; i < count; ++i) {
        peak = std::fmax(peak, lses[i][row]);
        is_any |= lses[i][row] != NOTHING;  // or no number, which no maximum has
    }
    float* const to = out + row * dim;
    if (!is_any) {
        std::fill(to, to + dim, 0.0f);
        lse[row] = NOTHING;
        return;
    }
    float total = 0;
    for (int i = 0; i < count; ++i) total += exp_of(lses[i][row] - peak);
    for (int i = 0; i < count; ++i) {
        const float weight = exp_of(lses[i][row] - peak) / total;
        const float* const part = outs[i] + row * dim;
        int d = 0;
        for (; d + W <= dim; d += W) {
            const Vec before = i == 0 ? Vec{} : load(to + d);
            store(to + d, fma(load(part + d), splat(weight), before));
        }
        for (; d < dim; ++d) to[d] = (i == 0 ? 0.0f : to[d]) + part[d] * weight;
    }
    lse[row] = peak + std::log(total);
}

constexpr int MERGE_ROWS = 64;  // rows × heads of an item

inline void merge_rows(const float* const* outs, const float* const* lses, int count, int64_t rows, int dim, float* out,
                       float* lse, bool serving) {
    parallel(static_cast<int>((rows + MERGE_ROWS - 1) / MERGE_ROWS), serving, [&](int item) {
        const int64_t end = std::min<int64_t>(rows, int64_t(item + 1) * MERGE_ROWS);
        for (int64_t row = int64_t(item) * MERGE_ROWS; row < end; ++row) {
            merge_row(outs, lses, count, static_cast<size_t>(row), dim, out, lse);
        }
    });
}

}  // namespace

// Combine `count` partials, each out [rows, dim] and lse [rows], in the order given. out, lse: none of the inputs.
DISTKV_API(void, merge)(const float* const* outs, const float* const* lses, int count, int64_t rows, int dim, float* out,
                        float* lse) {
    merge_rows(outs, lses, count, rows, dim, out, lse, false);
}
