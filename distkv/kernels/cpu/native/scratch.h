// Memory of one thread that is used again from call to call.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

class Scratch {
  public:
    // `count` floats at a multiple of 64 bytes, until the next `begin`; what they hold is not defined.
    float* floats(size_t count) {
        const size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
        if (used_ + bytes > size_) throw std::bad_alloc();
        float* const found = reinterpret_cast<float*>(memory_ + used_);
        used_ += bytes;
        return found;
    }

    // Forget what was given out and make room for `count` floats in up to 16 pieces.
    void begin(size_t count) {
        const size_t bytes = count * sizeof(float) + 16 * 64;
        used_ = 0;
        if (bytes <= size_) return;
        std::free(memory_);
        size_ = (bytes + 4095) / 4096 * 4096;
        memory_ = static_cast<char*>(std::aligned_alloc(4096, size_));
        if (memory_ == nullptr) {
            size_ = 0;
            throw std::bad_alloc();
        }
    }

    ~Scratch() { std::free(memory_); }

  private:
    char* memory_ = nullptr;
    size_t size_ = 0, used_ = 0;
};

thread_local Scratch scratch;

}  // namespace
