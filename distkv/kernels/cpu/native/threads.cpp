// A pool of threads for short pieces of work: microseconds to start, asleep soon after there is none.

#include "threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "clock.h"

namespace {

thread_local volatile bool has_begun = false;

constexpr auto AWAKE = std::chrono::microseconds(50);  // a step calls every few microseconds

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// The items that one thread begins with. What is left of them when another has none of its own goes to that one.
struct alignas(64) Lane {
    std::atomic<int> next{0};
    std::atomic<int> end{0};
};

// One call of distkv_parallel. Only who holds `owner` changes it, and only while nobody is inside.
struct Job {
    std::mutex owner;
    std::atomic<bool> open{false};
    std::atomic<int> inside{0};
    std::atomic<bool> has_failed{false};  // some item found no memory
    std::vector<Lane> lanes;
    void (*work)(void*, int) = nullptr;
    void* context = nullptr;

    // Neighbouring items go to one thread, in order: what follows in memory is often fetched ahead.
    void deal(int items) {
        const int64_t count = lanes.size();
        for (int64_t i = 0; i < count; ++i) {
            lanes[i].next.store(items * i / count);
            lanes[i].end.store(items * (i + 1) / count);
        }
    }

    bool has_work() const {
        if (!open.load()) return false;
        for (const Lane& lane : lanes) {
            if (lane.next.load() < lane.end.load()) return true;
        }
        return false;
    }

    // It throws nothing: threads of the pool have nobody to tell, and the caller waits for them first.
    void take_all(size_t first) {
        try {
            take(first);
        } catch (const std::bad_alloc&) {
            has_failed.store(true);
        }
    }

    void take(size_t first) {
        for (size_t i = 0; i < lanes.size(); ++i) {
            Lane& lane = lanes[(first + i) % lanes.size()];
            const int end = lane.end.load();
            while (lane.next.load() < end) {
                const int item = lane.next.fetch_add(1);
                if (item < end) work(context, item);
            }
        }
    }

    // From a thread of the pool: an open job stays as it is until everyone who came in has left.
    bool help(size_t lane) {
        if (!open.load()) return false;
        inside.fetch_add(1);
        const bool found = has_work();
        if (found) take_all(lane);
        inside.fetch_sub(1);
        return found;
    }
};

class Pool {
  public:
    // Throws what the system says when it gives no more threads or no memory for them; then there are none. All have
    // begun when it returns: what they need to begin with is not asked for later, when there may be no memory.
    void resize(int threads, const std::vector<int>& cores) {
        end_all();
        try {
            for (Job& job : jobs_) job.lanes = std::vector<Lane>(threads + 1);
            threads_.reserve(threads);
            for (int i = 0; i < threads; ++i) begin(i, cores);
            while (begun_.load() < threads) std::this_thread::yield();
        } catch (const std::exception&) {
            end_all();
            throw;
        }
    }

    int size() const { return static_cast<int>(threads_.size()); }

    void call(int items, bool serving, void (*work)(void*, int), void* context) {
        Job& job = jobs_[serving ? 0 : 1];
        // Peers served at the same time do not wait for each other: the second one computes alone.
        std::unique_lock<std::mutex> owner(job.owner, std::try_to_lock);
        if (!owner.owns_lock() || threads_.empty() || items <= 1) {
            for (int item = 0; item < items; ++item) work(context, item);
            return;
        }
        job.deal(items);
        job.work = work;
        job.context = context;
        job.has_failed.store(false);
        job.open.store(true);
        if (sleeping_.load() > 0) {
            const std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        job.take_all(0);
        job.open.store(false);
        for (int spins = 0; job.inside.load() > 0; ++spins) {
            if (spins < 2000) {
                relax();
            } else {
                std::this_thread::yield();  // whoever is inside may have lost its core
            }
        }
        if (job.has_failed.load()) throw std::bad_alloc();
    }

  private:
    void begin(int index, const std::vector<int>& cores) {
        threads_.emplace_back([this, index] {
            has_begun = true;  // the first of this library's thread_locals brings all; without memory the process ends
            begun_.fetch_add(1);
            run(index + 1);
        });
#if defined(__linux__)
        if (!cores.empty()) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(cores[index % cores.size()], &set);
            pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set);
        }
#endif
    }

    void end_all() {
        {
            const std::lock_guard<std::mutex> lock(sleep_);
            stop_ = true;
        }
        wake_.notify_all();
        for (auto& thread : threads_) thread.join();
        threads_.clear();
        stop_ = false;
        begun_.store(0);
    }

    bool has_work() const { return jobs_[0].has_work() || jobs_[1].has_work(); }

    // lane: 0 is who calls.
    void run(size_t lane) {
        auto idle_since = std::chrono::steady_clock::now();
        while (!stop_.load(std::memory_order_relaxed)) {
            if (jobs_[0].help(lane) || jobs_[1].help(lane)) {
                idle_since = std::chrono::steady_clock::now();
                continue;
            }
            relax();
            if (std::chrono::steady_clock::now() - idle_since < AWAKE) continue;
            std::unique_lock<std::mutex> lock(sleep_);
            sleeping_.fetch_add(1);
            wake_.wait(lock, [this] { return stop_.load() || has_work(); });
            sleeping_.fetch_sub(1);
            idle_since = std::chrono::steady_clock::now();
        }
    }

    Job jobs_[2];
    std::vector<std::thread> threads_;
    std::mutex sleep_;
    std::condition_variable wake_;
    std::atomic<int> begun_{0};
    std::atomic<int> sleeping_{0};
    std::atomic<bool> stop_{false};
};

// Work that is not for peers, while it goes on.
struct OwnWork {
    static std::atomic<int> running;
    static std::atomic<double> ended_s;

    OwnWork() { running.fetch_add(1); }
    ~OwnWork() {
        ended_s.store(monotonic_s());
        running.fetch_sub(1);
    }
};

std::atomic<int> OwnWork::running{0};
std::atomic<double> OwnWork::ended_s{0};

// Never destroyed: threads may be in the middle of something when the process ends.
Pool& pool() {
    static Pool* const the_pool = new Pool;
    return *the_pool;
}

}  // namespace

void distkv_parallel(int items, bool serving, void (*work)(void*, int), void* context) {
    if (serving) return pool().call(items, serving, work, context);
    const OwnWork own;
    pool().call(items, serving, work, context);
}

double distkv_own_work_s() { return OwnWork::running.load() > 0 ? monotonic_s() : OwnWork::ended_s.load(); }

int distkv_num_threads() { return pool().size() + 1; }

// Compute with `threads` threads from now on, the caller's among them; nobody may be computing meanwhile. cores: where
// they run, the first one being the caller's own, which is left to the caller; none: anywhere. Returns 0, or 1 when the
// system does not give three times as many: then the caller computes alone. torch makes as many for each of two threads
// that call it, later, and ends the process if it cannot.
extern "C" __attribute__((visibility("default"))) int distkv_set_threads(int threads, const int* cores, int num_cores) {
    try {
        const std::vector<int> others(cores + (num_cores > 0), cores + num_cores);
        const int helpers = threads > 1 ? threads - 1 : 0;
        pool().resize(3 * helpers, {});
        pool().resize(helpers, others);
        return 0;
    } catch (const std::exception&) {
        return 1;
    }
}
