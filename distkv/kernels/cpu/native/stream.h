// Reading memory once, as fast as this level's loads and the library's threads can: what kernels are measured against.

#pragma once

#include <atomic>

#include "abi.h"
#include "panel.h"
#include "threads.h"

namespace {

constexpr int64_t STREAM_FLOATS = 1 << 18;  // of an item: 1 MiB

}  // namespace

// The sum of `count` floats, a multiple of 2^18.
DISTKV_API(float, stream)(const float* data, int64_t count) {
    std::atomic<float> total{0};
    parallel(static_cast<int>(count / STREAM_FLOATS), false, [&](int item) {
        const float* const from = data + item * STREAM_FLOATS;
        constexpr int LOADS = 8;
        Vec sums[LOADS] = {};
        for (int64_t i = 0; i < STREAM_FLOATS; i += LOADS * W) {
            DISTKV_UNROLL for (int j = 0; j < LOADS; ++j) sums[j] += load(from + i + j * W);
            prefetch(from + i + 16 * LOADS * W);
        }
        float sum = 0;
        for (const Vec& part : sums) sum += sum_of(part);
        for (float seen = total.load(); !total.compare_exchange_weak(seen, seen + sum);) {
        }
    });
    return total.load();
}
