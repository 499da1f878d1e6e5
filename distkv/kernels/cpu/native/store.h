// What follows the projection of a layer, in one pass: norm of query and key heads, rotary embedding, and the tokens'
// keys and values to their places in the pool, in its layout.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "abi.h"
#include "dtypes.h"
#include "scratch.h"
#include "threads.h"

namespace {

// heads: N rows of heads + 2·kv_heads heads of dim numbers (queries, keys, values), rows row_stride numbers apart.
// cos, sin: [N, dim]. q_norm, k_norm: [dim] or null. q: [N, heads, dim], the result. slots, offsets: [N]. k, v and
// pair: as in AttendCall. type: see of_dtype. All numbers are of `type`, and are rounded where torch would, operation by operation.
struct StoreCall {
    const void* rows;
    const void* cos;
    const void* sin;
    const void* q_norm;
    const void* k_norm;
    void* q;
    char* k;
    char* v;
    const int64_t* slots;
    const int64_t* offsets;
    int64_t num_rows;
    int64_t row_stride;
    int64_t slot_bytes;
    int32_t type;
    int32_t pair;
    int32_t heads;
    int32_t kv_heads;
    int32_t dim;
    int32_t block_tokens;
    float eps;
};

constexpr int64_t STORE_ROWS = 32;  // of an item

template <class S>
class Store {
    using T = typename S::Stored;

  public:
    explicit Store(const StoreCall& call) : call_(call) {}

    void row(int64_t n, float* head) const {
        const int dim = call_.dim;
        const T* from = static_cast<const T*>(call_.rows) + n * call_.row_stride;
        const T* const cos = static_cast<const T*>(call_.cos) + n * dim;
        const T* const sin = static_cast<const T*>(call_.sin) + n * dim;
        T* q = static_cast<T*>(call_.q) + n * call_.heads * dim;
        for (int h = 0; h < call_.heads; ++h, from += dim, q += dim) {
            turn(from, static_cast<const T*>(call_.q_norm), cos, sin, head);
            for (int d = 0; d < dim; ++d) q[d] = S::stored(head[d]);
        }
        const size_t panel = size_t(call_.block_tokens) * dim * sizeof(T);
        const int64_t offset = call_.offsets[n];
        const int pair = call_.pair;
        char* const k = call_.k + call_.slots[n] * call_.slot_bytes;
        for (int h = 0; h < call_.kv_heads; ++h, from += dim) {
            turn(from, static_cast<const T*>(call_.k_norm), cos, sin, head);
            T* const to = reinterpret_cast<T*>(k + h * panel) + offset * pair;
            for (int d = 0; d < dim; ++d) {
                to[size_t(d / pair) * call_.block_tokens * pair + d % pair] = S::stored(head[d]);
            }
        }
        char* const v = call_.v + call_.slots[n] * call_.slot_bytes;
        for (int h = 0; h < call_.kv_heads; ++h, from += dim) {
            T* const to = reinterpret_cast<T*>(v + h * panel) + size_t(offset / pair) * dim * pair + offset % pair;
            for (int d = 0; d < dim; ++d) to[d * pair] = from[d];
        }
    }

  private:
    static float rounded(float x) { return S::one(S::stored(x)); }

    // head becomes the normed and rotated `from`.
    void turn(const T* from, const T* norm, const T* cos, const T* sin, float* head) const {
        const int dim = call_.dim, half = dim / 2;
        for (int d = 0; d < dim; ++d) head[d] = S::one(from[d]);
        if (norm != nullptr) {
            float sum = 0;
            for (int d = 0; d < dim; ++d) sum += head[d] * head[d];
            const float scale = 1.0f / std::sqrt(sum / dim + call_.eps);
            for (int d = 0; d < dim; ++d) head[d] = rounded(S::one(norm[d]) * rounded(head[d] * scale));
        }
        for (int d = 0; d < half; ++d) {
            const float first = head[d], second = head[half + d];
            head[d] = rounded(first * S::one(cos[d])) + rounded(-second * S::one(sin[d]));
            head[half + d] = rounded(second * S::one(cos[half + d])) + rounded(first * S::one(sin[half + d]));
        }
    }

    const StoreCall& call_;
};

template <class S>
void store_rows(const StoreCall& call) {
    const Store<S> store(call);
    parallel(static_cast<int>((call.num_rows + STORE_ROWS - 1) / STORE_ROWS), false, [&](int item) {
        scratch.begin(call.dim);
        float* const head = scratch.floats(call.dim);
        const int64_t end = std::min(call.num_rows, (item + 1) * STORE_ROWS);
        for (int64_t n = item * STORE_ROWS; n < end; ++n) store.row(n, head);
    });
}

}  // namespace

// Returns 0, or 1 when there was no memory.
DISTKV_API(int, store)(const StoreCall* call) {
    try {
        of_dtype(call->type, [&](auto stored) { store_rows<decltype(stored)>(*call); });
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
