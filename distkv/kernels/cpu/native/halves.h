// bfloat16 from and to float32 on any machine: what partials travel in.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline void widen(const char* from, float* to, int64_t count) {
    const auto* halves = reinterpret_cast<const uint16_t*>(from);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(halves[i]) << 16;
        std::memcpy(to + i, &bits, sizeof bits);
    }
}

// To the nearest, to even where two are as near. What is no number stays none.
inline void narrow(const float* from, char* to, int64_t count) {
    auto* halves = reinterpret_cast<uint16_t*>(to);
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits;
        std::memcpy(&bits, from + i, sizeof bits);
        const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, quiet = (bits >> 16) | 0x40;
        halves[i] = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
    }
}

}  // namespace
