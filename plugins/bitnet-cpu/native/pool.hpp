// The thread pool: runs a list of launches in order, each spread over all threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "launch.hpp"

namespace bitnet {

struct AlignedFree {
  void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }
};

class Pool {
 public:
  explicit Pool(uint32_t threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  uint32_t threads() const { return uint32_t(workers_.size()) + 1; }

  // Enlarges every thread's scratch to at least `bytes`. Throws std::bad_alloc if there is no memory.
  void reserve(size_t bytes);

  // Runs all launches; each starts when the one before it has finished. One caller at a time; others wait.
  void run(const Launch* launches, size_t count);

 private:
  struct Scratch {
    std::unique_ptr<uint8_t, AlignedFree> data;
    size_t size = 0;
  };

  // Launches first..last, which run side by side.
  struct Stage {
    uint32_t first, last;
    uint64_t workgroups;
  };

  void work(uint32_t thread);
  bool take(uint32_t thread);
  void start(uint32_t launch, uint32_t thread);
  Stage stage_at(uint32_t launch) const;
  uint32_t parts_of(const Stage& stage) const;
  void run_part(const Stage& stage, uint64_t begin, uint64_t end, uint32_t thread);

  // The pending work in one word: first launch of a stage (32 bits), next part (16), parts (16); parts 0 means idle. A
  // thread claims parts by counting up; whoever finishes the last one starts the next stage. So nobody waits for a
  // descheduled thread unless it holds a part. Words that threads write have their own cache lines.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<uint32_t> finished_{0};
  alignas(64) std::atomic<bool> done_{true};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  const Launch* launches_ = nullptr;
  uint32_t count_ = 0;
  std::vector<Scratch> scratch_;
  std::mutex callers_, sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace bitnet
