// The tail of a layer in one call: everything from its attention to the projections of the next layer.

#pragma once

#include <cstdint>
#include <new>

#include "abi.h"
#include "dtypes.h"
#include "linear.h"
#include "ops.h"
#include "scratch.h"
#include "threads.h"

namespace {

// A packed linear layer, [n, k]; bias may be null.
struct LinearPart {
    const void *packed, *bias;
    int32_t k, n;
};

// attended: [rows, o.k], float32. x: [rows, o.n], the residual stream, to which both halves of the layer are added.
// out: [rows, next.n], the next layer's projections; [rows, o.n], the norm alone, where next has no weights.
struct LayerTailCall {
    const float* attended;
    void *x, *out;
    const void *mlp_norm, *next_norm;
    LinearPart o, gate_up, down, next;
    int64_t rows;
    int32_t dtype;
    float eps;
};

thread_local Scratch activations;  // of who calls

template <class S>
struct LayerTail {
    typedef typename S::Stored Stored;

    const LayerTailCall& call;

    // Rows of activations stay in the nearer caches if not too many go through at once.
    void run() const {
        const int hidden = call.o.n, inner = call.down.k;
        const size_t numbers = static_cast<size_t>(smaller(call.rows, ROW_BLOCK)) * (call.o.k + 2 * hidden + 3 * inner);
        activations.begin(numbers);
        for (int64_t first = 0; first < call.rows; first += ROW_BLOCK) {
            block(first, smaller(ROW_BLOCK, call.rows - first));
            activations.begin(0);
        }
    }

    void block(int64_t first, int rows) const {
        const int hidden = call.o.n, inner = call.down.k, width = call.o.k;
        Stored* const x = static_cast<Stored*>(call.x) + first * hidden;
        Stored *const attended = some(rows * width), *const projected = some(rows * hidden);
        Stored *const normal = some(rows * hidden), *const gate_up = some(rows * 2 * inner);
        Stored* const product = some(rows * inner);
        for_rows(rows, width, [&](int row) {
            const float* const from = call.attended + (first + row) * width;
            for (int i = 0; i < width; ++i) attended[static_cast<int64_t>(row) * width + i] = S::stored(from[i]);
        });
        multiply(call.o, attended, rows, projected);
        add_norm(x, projected, rows, call.mlp_norm, normal);
        multiply(call.gate_up, normal, rows, gate_up);
        silu_mul_rows<S>(gate_up, 2 * inner, rows, inner, product);
        multiply(call.down, product, rows, projected);
        const bool is_last = call.next.packed == nullptr;
        Stored* const out = static_cast<Stored*>(call.out) + first * (is_last ? hidden : call.next.n);
        add_norm(x, projected, rows, call.next_norm, is_last ? out : normal);
        if (!is_last) multiply(call.next, normal, rows, out);
    }

    Stored* some(int64_t count) const {
        return reinterpret_cast<Stored*>(activations.floats((count * sizeof(Stored) + 3) / 4));
    }

    void multiply(const LinearPart& part, const Stored* x, int rows, Stored* y) const {
        Linear<S>{x, static_cast<size_t>(part.k), rows, part.k, static_cast<const char*>(part.packed),
                  static_cast<const Stored*>(part.bias), part.n, y, static_cast<size_t>(part.n)}
            .run();
    }

    void add_norm(Stored* x, const Stored* y, int rows, const void* weight, Stored* out) const {
        const int hidden = call.o.n;
        add_norm_rows<S>(x, hidden, y, hidden, rows, hidden, static_cast<const Stored*>(weight), call.eps, x, hidden, out);
    }
};

}  // namespace

// Returns 0, or 1 when there was no memory.
DISTKV_API(int, layer_tail)(const LayerTailCall* call) {
    try {
        of_dtype(call->dtype, [&](auto storage) { LayerTail<decltype(storage)>{*call}.run(); });
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
