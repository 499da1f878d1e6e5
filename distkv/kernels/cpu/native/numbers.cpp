// What is asked of the numbers of many blocks before they are copied, without a number of Python for each.

#include <algorithm>
#include <cstdint>

#include "abi.h"

// The least and the largest of `count` ≥ 1 numbers.
DISTKV_EXPORT void distkv_bounds(const int64_t* numbers, int64_t count, int64_t* least_and_largest) {
    int64_t least = numbers[0], largest = numbers[0];
    for (int64_t i = 1; i < count; ++i) {
        least = std::min(least, numbers[i]);
        largest = std::max(largest, numbers[i]);
    }
    least_and_largest[0] = least;
    least_and_largest[1] = largest;
}

// Where blocks of `block_bytes` each begin, counted from `base`.
DISTKV_EXPORT void distkv_places(const int64_t* numbers, int64_t count, int64_t base, int64_t block_bytes, int64_t* places) {
    for (int64_t i = 0; i < count; ++i) places[i] = base + numbers[i] * block_bytes;
}
