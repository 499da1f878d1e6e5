// The storage type that a number from Python stands for.

#pragma once

#include "simd.h"

namespace {

// f(storage type) for a dtype: 0 float32, 1 bfloat16, 2 float16.
template <class F>
DISTKV_INLINE void of_dtype(int dtype, const F& f) {
    dtype == 0 ? f(F32{}) : dtype == 1 ? f(BF16{}) : f(F16{});
}

}  // namespace
