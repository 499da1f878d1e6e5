// The online softmax of one query row: 000 §4.2 with a running maximum.

#pragma once

#include "simd.h"

namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

struct RowState {
    float peak = NOTHING;  // the largest score so far
    float total = 0;       // Σ exp(score − peak)
};

// Weights to bfloat16 need no more than 2^-17 of themselves: exp(score · factor − level), where both have log2(e) in them.
#if defined(__AVX512BF16__)
DISTKV_INLINE Vec rough_weight(Vec score, Vec factor, Vec level) {
    const __m512 x = _mm512_fmsub_ps((__m512)score, (__m512)factor, (__m512)level);
    // What is no number stays that; the least weights are 0, for processors are slow with what is less.
    const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec r = (Vec)_mm512_sub_ps(x, n);
    Vec p = splat(9.57006888e-3f);
    p = fma(p, r, splat(5.59178085e-2f));
    p = fma(p, r, splat(2.40247451e-1f));
    p = fma(p, r, splat(6.93121821e-1f));
    p = fma(p, r, splat(9.99999262e-1f));
    return (Vec)_mm512_maskz_scalef_ps(counts, (__m512)p, n);
}
#endif

// 0 for −∞, and what is no number stays that.
DISTKV_INLINE Vec no_weights(Vec score) { return score == score ? Vec{} : score; }

// scores [n] · scale, n a multiple of W, become exp(score − peak), in pairs of bfloat16 if S is a dot; out [dim], the sum so
// far, is scaled to the new peak. A score that is no number makes the row's total none.
template <class S>
DISTKV_INLINE void add_scores(float* scores, int n, float scale, RowState& row, float* out, int dim) {
    Vec highest = load(scores);
    for (int i = W; i < n; i += W) highest = max(highest, load(scores + i));
    const float peak = std::fmax(row.peak, max_of(highest) * scale);
    if (peak == NOTHING) {  // no keys, or scores that are no numbers, which no maximum has
        for (int i = 0; i < n; i += W) row.total += sum_of(no_weights(load(scores + i)));
        std::memset(scores, 0, sizeof(float) * n);
        return;
    }
    if (peak > row.peak) {
        const float shrink = exp_of(row.peak - peak);
        row.peak = peak;
        row.total *= shrink;
        for (int d = 0; d < dim; d += W) store(out + d, load(out + d) * shrink);
    }
    Vec sum{};
#if defined(__AVX512BF16__)
    if constexpr (is_dot<S>) {
        constexpr float LOG2_E = 1.44269504f;
        const Vec factor = splat(scale * LOG2_E), level = splat(peak * LOG2_E);
        int i = 0;
        for (; i + W < n; i += 2 * W) {
            const Vec first = rough_weight(load(scores + i), factor, level);
            const Vec second = rough_weight(load(scores + i + W), factor, level);
            sum += first;
            sum += second;
            const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
            std::memcpy(scores + i / 2, &pairs, sizeof pairs);
        }
        if (i < n) {
            const Vec last = rough_weight(load(scores + i), factor, level);
            sum += last;
            const __m256bh pairs = _mm512_cvtneps_pbh((__m512)last);
            std::memcpy(scores + i / 2, &pairs, sizeof pairs);
        }
        row.total += sum_of(sum);
        return;
    }
#endif
    const Vec level = splat(peak);
    for (int i = 0; i < n; i += W) {
        const Vec weight = exp_of(fma(load(scores + i), splat(scale), -level));
        store(scores + i, weight);
        sum += weight;
    }
    row.total += sum_of(sum);
    if (is_dot<S>) to_pairs(scores, n);
}

// Scores of keys [first, end) of n are kept, all others become −∞.
DISTKV_INLINE void keep_only(float* scores, int n, int first, int end) {
    for (int i = 0; i < (first < n ? first : n); ++i) scores[i] = NOTHING;
    for (int i = end > 0 ? end : 0; i < n; ++i) scores[i] = NOTHING;
}

// A row's partial: out = Σ / total, lse = peak + ln total; (0, −∞) without keys.
DISTKV_INLINE void finish_row(const RowState& row, const float* sum, int dim, float* out, float* lse) {
    const bool is_any = row.total != 0;  // sums without keys may be no numbers
    const float share = 1.0f / row.total;
    for (int d = 0; d < dim; ++d) out[d] = is_any ? sum[d] * share : 0.0f;
    *lse = is_any ? row.peak + std::log(row.total) : NOTHING;
}

}  // namespace
