// Whole frames over connected stream sockets, with deadlines. Sockets are the caller's; nothing here opens or closes one.

#pragma once

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace {

enum FrameStatus : int32_t {
    FRAME_OK = 0,
    FRAME_LATE = 1,    // the peer took or gave nothing until the deadline
    FRAME_OTHER = 2,   // what came is not the frame that was to come; `received` bytes of it were taken
    FRAME_ENDED = 3,   // the peer has closed the connection
    FRAME_FAILED = 4,  // the system says no
};

constexpr int64_t FIXED_BYTES = 16;  // of every frame: magic and both sizes

// As Python's time.monotonic().
inline double monotonic_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Waits until the socket is ready; false at the deadline.
inline bool wait_for(int fd, short events, double deadline_s) {
    for (;;) {
        const double left_s = deadline_s - monotonic_s();
        pollfd one{fd, events, 0};
        const int left_ms = left_s <= 0 ? 0 : static_cast<int>(std::fmin(std::ceil(left_s * 1e3), 1e6));
        const int found = poll(&one, 1, left_ms);
        if (found > 0) return true;
        if (found < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
        if (found == 0 && left_s <= 0) return false;
    }
}

// The first `count` bytes of the parts are done.
inline void skip(iovec*& parts, size_t& num_parts, size_t count) {
    while (num_parts > 0 && count >= parts->iov_len) {
        count -= parts->iov_len;
        ++parts;
        --num_parts;
    }
    if (num_parts > 0) {
        parts->iov_base = static_cast<char*>(parts->iov_base) + count;
        parts->iov_len -= count;
    }
}

// The peer may take nothing for `patience_s` at a time.
inline FrameStatus send_all(int fd, iovec* parts, size_t num_parts, double patience_s) {
    skip(parts, num_parts, 0);
    while (num_parts > 0) {
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = num_parts;
        const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            skip(parts, num_parts, static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT, monotonic_s() + patience_s)) return FRAME_LATE;
        } else if (errno != EINTR) {
            return errno == EPIPE || errno == ECONNRESET ? FRAME_ENDED : FRAME_FAILED;
        }
    }
    return FRAME_OK;
}

// A frame that begins with the `head_bytes` of `expected`: they go to `head`, its body to `body`. received: how many of
// its bytes are there, before and after. looks_until_s: it is looked for until then, and slept for after that. Never
// takes more than this one frame from a peer that waits for its answer.
inline FrameStatus receive_frame(int fd, const char* expected, int64_t head_bytes, char* head, char* body,
                                 int64_t body_bytes, double deadline_s, double looks_until_s, int64_t& received) {
    iovec all[2] = {{head, static_cast<size_t>(head_bytes)}, {body, static_cast<size_t>(body_bytes)}};
    iovec* parts = all;
    size_t num_parts = 2;
    skip(parts, num_parts, static_cast<size_t>(received));
    for (;;) {
        // Another frame may be shorter: nothing is waited for that does not belong to it.
        const int64_t known = received < head_bytes ? (received < FIXED_BYTES ? 0 : FIXED_BYTES) : head_bytes;
        if (std::memcmp(head, expected, known) != 0) return FRAME_OTHER;
        if (received == head_bytes + body_bytes) return FRAME_OK;
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = num_parts;
        const ssize_t count = recvmsg(fd, &message, MSG_DONTWAIT);
        if (count > 0) {
            received += count;
            skip(parts, num_parts, static_cast<size_t>(count));
        } else if (count == 0) {
            return FRAME_ENDED;
        } else if (errno == EAGAIN) {
            if (monotonic_s() < looks_until_s) {
                sched_yield();  // the peer may be on this core
            } else if (!wait_for(fd, POLLIN, deadline_s)) {
                return FRAME_LATE;
            }
        } else if (errno != EINTR) {
            return errno == ECONNRESET ? FRAME_ENDED : FRAME_FAILED;
        }
    }
}

}  // namespace
