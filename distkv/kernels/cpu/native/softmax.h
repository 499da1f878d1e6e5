// The online softmax of one query row: 000 §4.2 with a running maximum.

#pragma once

#include "simd.h"

namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

struct RowState {
    float peak = NOTHING;  // the largest score so far
    float total = 0;       // Σ exp(score − peak)
};

// scores [n], n a multiple of W, become exp(score − peak); out [dim], the sum so far, is scaled to the new peak.
DISTKV_INLINE void add_scores(float* scores, int n, RowState& row, float* out, int dim) {
    Vec highest = load(scores);
    for (int i = W; i < n; i += W) highest = max(highest, load(scores + i));
    const float peak = std::fmax(row.peak, max_of(highest));
    if (peak == NOTHING) {
        for (int i = 0; i < n; i += W) store(scores + i, Vec{});
        return;
    }
    if (peak > row.peak) {
        const float shrink = exp_of(row.peak - peak);
        row.peak = peak;
        row.total *= shrink;
        for (int d = 0; d < dim; d += W) store(out + d, load(out + d) * shrink);
    }
    const Vec level = splat(peak);
    Vec sum{};
    for (int i = 0; i < n; i += W) {
        const Vec weight = exp_of(load(scores + i) - level);
        store(scores + i, weight);
        sum += weight;
    }
    row.total += sum_of(sum);
}

// Scores of keys [first, end) of n are kept, all others become −∞.
DISTKV_INLINE void keep_only(float* scores, int n, int first, int end) {
    for (int i = 0; i < (first < n ? first : n); ++i) scores[i] = NOTHING;
    for (int i = end > 0 ? end : 0; i < n; ++i) scores[i] = NOTHING;
}

// A row's partial: out = Σ / total, lse = peak + ln total; (0, −∞) without keys.
DISTKV_INLINE void finish_row(const RowState& row, const float* sum, int dim, float* out, float* lse) {
    const float share = row.total > 0 ? 1.0f / row.total : 0.0f;
    for (int d = 0; d < dim; ++d) out[d] = row.total > 0 ? sum[d] * share : 0.0f;
    *lse = row.total > 0 ? row.peak + std::log(row.total) : NOTHING;
}

}  // namespace
