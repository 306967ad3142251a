#include "pool.hpp"

#include <algorithm>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitnet {

namespace {

constexpr uint32_t PARTS_PER_THREAD = 16;  // so that a thread that lost its core for a while costs little
constexpr uint32_t MAX_PARTS = 0x7fff;
constexpr uint32_t SPINS = 20000;  // about 0.2 to 0.5 ms: longer than the host takes between two tokens

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint64_t pack(uint32_t launch, uint32_t next, uint32_t parts) {
  return uint64_t(launch) << 32 | uint64_t(next) << 16 | parts;
}

}  // namespace

Pool::Pool(uint32_t threads) : scratch_(std::max(1u, threads)) {
  for (uint32_t i = 1; i < threads; ++i) workers_.emplace_back(&Pool::work, this, i);
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::reserve(size_t bytes) {
  const std::lock_guard<std::mutex> one(callers_);
  for (auto& scratch : scratch_)
    if (scratch.size < bytes) {
      scratch.data.reset(static_cast<uint8_t*>(::operator new(bytes, std::align_val_t(64))));
      scratch.size = bytes;
    }
}

uint32_t Pool::parts_of(uint32_t launch) const {
  return std::min({launches_[launch].workgroups, threads() * PARTS_PER_THREAD, MAX_PARTS});
}

void Pool::start(uint32_t launch) {
  if (launch == count_) {
    state_.store(0, std::memory_order_relaxed);
    done_.store(true, std::memory_order_release);
    return;
  }
  state_.store(pack(launch, 0, parts_of(launch)));
}

bool Pool::take(uint32_t thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = uint32_t(state >> 16 & 0xffff), parts = uint32_t(state & 0xffff);
    if (next >= parts) return false;
    if (state_.compare_exchange_weak(state, state + (1u << 16), std::memory_order_acq_rel, std::memory_order_acquire)) {
      // The claimed part keeps the run alive, so launches_ and count_ are this run's.
      const Launch& launch = launches_[state >> 32];
      const uint64_t groups = launch.workgroups;
      launch.run(launch, uint32_t(groups * next / parts), uint32_t(groups * (next + 1) / parts), scratch_[thread].data.get());
      if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) {
        finished_.store(0, std::memory_order_relaxed);
        start(uint32_t(state >> 32) + 1);
      }
      return true;
    }
  }
}

void Pool::work(uint32_t thread) {
  for (uint32_t idle = 0; !stop_.load(std::memory_order_relaxed);) {
    if (take(thread)) {
      idle = 0;
    } else if (++idle < SPINS) {
      relax();
    } else {
      std::unique_lock<std::mutex> lock(sleep_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return stop_ || (state_.load() & 0xffff) != 0; });
      sleepers_.fetch_sub(1);
      idle = 0;
    }
  }
}

void Pool::run(const Launch* launches, size_t count) {
  if (count == 0) return;
  const std::lock_guard<std::mutex> one(callers_);
  launches_ = launches;
  count_ = uint32_t(count);
  done_.store(false, std::memory_order_relaxed);
  start(0);
  if (sleepers_.load() > 0) {  // after the store of start: either this sees the sleeper or the sleeper sees the work
    { const std::lock_guard<std::mutex> lock(sleep_); }  // a worker is either before its check or truly asleep
    wake_.notify_all();
  }
  for (uint32_t idle = 0; !done_.load(std::memory_order_acquire);) {
    if (take(0)) {
      idle = 0;
    } else if (++idle < SPINS) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace bitnet
