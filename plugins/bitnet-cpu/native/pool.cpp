#include "pool.hpp"

#include <algorithm>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitnet {

namespace {

constexpr uint32_t PARTS_PER_THREAD = 16;  // many, so that a thread that lost its core for a while delays little
constexpr uint32_t MAX_PARTS = 0x7fff;
constexpr uint32_t SPINS = 20000;  // about 0.2 to 0.5 ms: longer than the host needs between two tokens

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

Pool::Stage Pool::stage_at(uint32_t launch) const {
  Stage stage{launch, launch + 1, launches_[launch].workgroups};
  for (; stage.last < count_ && launches_[stage.last].beside; ++stage.last) stage.workgroups += launches_[stage.last].workgroups;
  return stage;
}

uint32_t Pool::parts_of(const Stage& stage) const {
  return uint32_t(std::min<uint64_t>({stage.workgroups, threads() * PARTS_PER_THREAD, MAX_PARTS}));
}

void Pool::run_part(const Stage& stage, uint64_t begin, uint64_t end, uint32_t thread) {
  uint64_t before = 0;
  for (uint32_t i = stage.first; i < stage.last && before < end; ++i) {
    const Launch& launch = launches_[i];
    const uint64_t first = std::max(begin, before), last = std::min(end, before + launch.workgroups);
    if (first < last) launch.run(launch, uint32_t(first - before), uint32_t(last - before), scratch_[thread].data.get());
    before += launch.workgroups;
  }
}

// Offers the stage at `launch` to all threads. A stage with a single part runs here, since nobody could help.
void Pool::start(uint32_t launch, uint32_t thread) {
  while (launch < count_) {
    const Stage stage = stage_at(launch);
    const uint32_t parts = parts_of(stage);
    if (parts > 1) {
      state_.store(pack(launch, 0, parts));
      return;
    }
    run_part(stage, 0, stage.workgroups, thread);
    launch = stage.last;
  }
  state_.store(0, std::memory_order_relaxed);
  done_.store(true, std::memory_order_release);
}

bool Pool::take(uint32_t thread) {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = uint32_t(state >> 16 & 0xffff), parts = uint32_t(state & 0xffff);
    if (next >= parts) return false;
    // Claims many parts while many are left, which saves atomic operations, and single ones at the end, so that all end
    // together.
    const uint32_t count = std::max(1u, (parts - next) / (2 * threads()));
    if (state_.compare_exchange_weak(state, state + (uint64_t(count) << 16), std::memory_order_acq_rel, std::memory_order_acquire)) {
      // The claimed parts keep the run alive, so launches_ and count_ are this run's.
      const Stage stage = stage_at(uint32_t(state >> 32));
      run_part(stage, stage.workgroups * next / parts, stage.workgroups * (next + count) / parts, thread);
      if (finished_.fetch_add(count, std::memory_order_acq_rel) + count == parts) {
        finished_.store(0, std::memory_order_relaxed);
        start(stage.last, thread);
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
  start(0, 0);
  if (sleepers_.load() > 0) {  // after the store of start: either this thread sees the sleeper, or the sleeper sees the work
    { const std::lock_guard<std::mutex> lock(sleep_); }  // a worker is either before its check or asleep
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
