// Whole frames over connected stream sockets, with deadlines. Sockets are the caller's; nothing here opens or closes one.

#pragma once

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "clock.h"

namespace {

enum FrameStatus : int32_t {
    FRAME_OK = 0,
    FRAME_LATE = 1,    // the peer did not take or give it until the deadline
    FRAME_OTHER = 2,   // what came is not the frame that was to come; `received` bytes of it were taken
    FRAME_ENDED = 3,   // the peer has closed the connection
    FRAME_FAILED = 4,  // the system says no
};

constexpr int64_t FIXED_BYTES = 16;  // of every frame: magic and both sizes

// Waits until the socket is ready; false at the deadline.
inline bool wait_for(int fd, short events, double deadline_s) {
    for (;;) {
        const double left_s = deadline_s - monotonic_s();
        pollfd one{fd, events, 0};
        const int64_t left_ns = left_s <= 0 ? 0 : static_cast<int64_t>(std::fmin(left_s, 1e3) * 1e9);
        const timespec left{static_cast<time_t>(left_ns / 1000000000), static_cast<long>(left_ns % 1000000000)};
        const int found = ppoll(&one, 1, &left, nullptr);
        if (found > 0) return true;
        if (found < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
        if (found == 0 && left_s <= 0) return false;
    }
}

inline double num_bytes(const iovec* parts, size_t num_parts) {
    double all = 0;
    for (size_t i = 0; i < num_parts; ++i) all += static_cast<double>(parts[i].iov_len);
    return all;
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

constexpr double LEAST_BYTES_PER_S = 4e6;  // a peer that takes less is late, or all of a batch would wait with it

// The peer may take `patience_s` longer than it takes at LEAST_BYTES_PER_S.
inline FrameStatus send_all(int fd, iovec* parts, size_t num_parts, double patience_s) {
    double deadline_s = 0;  // of who is waited for
    skip(parts, num_parts, 0);
    while (num_parts > 0) {
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = num_parts;
        const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            skip(parts, num_parts, static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            if (deadline_s == 0) deadline_s = monotonic_s() + patience_s + num_bytes(parts, num_parts) / LEAST_BYTES_PER_S;
            if (!wait_for(fd, POLLOUT, deadline_s)) return FRAME_LATE;
        } else if (errno != EINTR) {
            return errno == EPIPE || errno == ECONNRESET ? FRAME_ENDED : FRAME_FAILED;
        }
    }
    return FRAME_OK;
}

// When something is looked for that is else slept for.
struct Looks {
    double from_s = 0, until_s = 0;
};

// How long it took the last two times until something came. Who sleeps takes tens of microseconds to wake, and whoever
// wakes a core of a virtual machine as long; so what comes regularly is looked for from shortly before it is due. Who looks
// may keep the peer from a core that both are on: after each look in vain twice as many waits go without one.
struct Rhythm {
    double last_s, before_s;  // 0: not yet
    int32_t in_vain, waits_without;

    static constexpr double AROUND_S = 150e-6;  // a timer may be 50 µs late, and the core that it wakes as much
    static constexpr int32_t MOST_IN_VAIN = 6;

    // Of what is waited for since then.
    Looks looks(double since_s) {
        if (before_s == 0 || std::fabs(last_s - before_s) > AROUND_S) return {};
        if (waits_without > 0) {
            --waits_without;
            return {};
        }
        return {since_s + last_s - AROUND_S, since_s + last_s + AROUND_S};
    }

    // It came, and was looked for so.
    void took(double seconds, const Looks& looks) {
        if (looks.until_s > 0) {
            const bool is_in_vain = seconds > last_s + AROUND_S;
            waits_without = is_in_vain ? 1 << in_vain : 0;
            in_vain = is_in_vain ? std::min(in_vain + 1, MOST_IN_VAIN) : 0;
        }
        before_s = last_s;
        last_s = seconds;
    }
};

// A frame that begins with the `head_bytes` of `expected`: they go to `head`, its body to `body`. received: how many of
// its bytes are there, before and after. Never takes more than this one frame from a peer that waits for its answer.
inline FrameStatus receive_frame(int fd, const char* expected, int64_t head_bytes, char* head, char* body,
                                 int64_t body_bytes, double deadline_s, const Looks& looks, int64_t& received) {
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
            const double now_s = monotonic_s();
            if (now_s < std::min(looks.from_s, deadline_s)) {
                wait_for(fd, POLLIN, std::min(looks.from_s, deadline_s));
            } else if (now_s < std::min(looks.until_s, deadline_s)) {
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
