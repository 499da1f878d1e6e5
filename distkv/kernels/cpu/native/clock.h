// The clock of all deadlines here.

#pragma once

#include <chrono>

// As Python's time.monotonic().
inline double monotonic_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
