// Blocks between a stream socket and where they lie: the lists of parts that the system takes are made here, a batch at a
// time. What comes is checksummed batch by batch, while the caches hold it and the sender works on the next one.

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include "abi.h"
#include "frames.h"
#include "xxh3.h"

namespace {

constexpr int64_t kMostParts = 1024;  // that the system takes at once
// A call of the system holds the socket: what comes meanwhile waits, and so does word of what was taken.
constexpr int64_t kBatchBytes = 1 << 18;
constexpr int kEnded = -1;

// Blocks one behind the other, as they are on the wire: block i lies at base + indices[i] * stride.
struct Blocks {
    intptr_t base;
    const int64_t* indices;
    int64_t stride, count, block_bytes;

    char* at(int64_t block) const { return reinterpret_cast<char*>(base + indices[block] * stride); }
    int64_t num_bytes() const { return count * block_bytes; }
};

// Parts of at least a byte, from byte `from` of the blocks on; neighbours are one. Returns how many.
int64_t parts_of(const Blocks& blocks, int64_t from, int64_t most_bytes, iovec* parts, int64_t most_parts) {
    int64_t num_parts = 0;
    char* end = nullptr;
    for (int64_t left = std::min(most_bytes, blocks.num_bytes() - from); left > 0;) {
        const int64_t block = from / blocks.block_bytes, offset = from % blocks.block_bytes;
        const int64_t size = std::min(left, blocks.block_bytes - offset);
        char* const start = blocks.at(block) + offset;
        if (start == end) {
            parts[num_parts - 1].iov_len += size;
        } else if (num_parts == most_parts) {
            break;
        } else {
            parts[num_parts++] = {start, static_cast<size_t>(size)};
        }
        end = start + size;
        from += size;
        left -= size;
    }
    return num_parts;
}

void wait_at_most(int fd, double seconds) {
    timeval limit;
    limit.tv_sec = static_cast<time_t>(seconds);
    limit.tv_usec = std::max<suseconds_t>(1, static_cast<suseconds_t>((seconds - limit.tv_sec) * 1e6));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

}  // namespace

// What comes of blocks that are received. received: bytes that are there. checked: blocks whose checksum is.
struct Arrived {
    int64_t received, checked;
};

// Receives what is left of `count` blocks to the addresses places[i]. checksums: of each, null where none are wanted.
// Waits by the socket's own timeout, which is another one afterwards. Returns 0, -1 when the peer has ended, or an errno:
// EAGAIN at the deadline.
DISTKV_EXPORT int distkv_receive_blocks(int fd, const int64_t* places, uint64_t* checksums, int64_t count,
                                        int64_t block_bytes, double deadline_s, Arrived* arrived) {
    const Blocks blocks = {0, places, 1, count, block_bytes};
    iovec parts[kMostParts];
    for (;;) {
        for (; checksums && (arrived->checked + 1) * block_bytes <= arrived->received; ++arrived->checked) {
            const char* const block = blocks.at(arrived->checked);
            checksums[arrived->checked] = checksum_of<Write::NOWHERE>(nullptr, block, block_bytes, block);
        }
        if (arrived->received == blocks.num_bytes()) return 0;
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = parts_of(blocks, arrived->received, kBatchBytes, parts, kMostParts);
        const double left_s = deadline_s - monotonic_s();
        if (left_s > 0) wait_at_most(fd, left_s);
        const ssize_t count_now = recvmsg(fd, &message, left_s > 0 ? MSG_WAITALL : MSG_DONTWAIT);
        if (count_now > 0) {
            arrived->received += count_now;
        } else if (count_now == 0) {
            return kEnded;
        } else if (errno != EINTR) {
            return errno;
        }
    }
}

// Sends `head`, then `count` blocks slots[i] of `block_bytes` each, counted from `base`. Returns 0 or an errno: EAGAIN when
// the peer took nothing for as long as the socket's own timeout, or not all of it by the deadline.
DISTKV_EXPORT int distkv_send_blocks(int fd, char* head, int64_t head_bytes, intptr_t base, const int64_t* slots,
                                     int64_t count, int64_t block_bytes, double deadline_s) {
    const Blocks blocks = {base, slots, block_bytes, count, block_bytes};
    iovec parts[kMostParts];
    for (int64_t sent = -head_bytes; sent < blocks.num_bytes();) {
        const int64_t first = sent < 0 ? 1 : 0;
        if (first) parts[0] = {head + head_bytes + sent, static_cast<size_t>(-sent)};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen =
            first + parts_of(blocks, std::max<int64_t>(sent, 0), kBatchBytes, parts + first, kMostParts - first);
        if (monotonic_s() > deadline_s) return EAGAIN;
        const ssize_t count_now = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (count_now >= 0) {
            sent += count_now;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}
