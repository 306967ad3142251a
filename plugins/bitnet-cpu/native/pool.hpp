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

  // Every thread's scratch holds at least `bytes` from now on. std::bad_alloc if there is no memory.
  void reserve(size_t bytes);

  // Runs all launches; each starts when the one before it has finished. One caller at a time; others wait.
  void run(const Launch* launches, size_t count);

 private:
  struct Scratch {
    std::unique_ptr<uint8_t, AlignedFree> data;
    size_t size = 0;
  };

  void work(uint32_t thread);
  bool take(uint32_t thread);
  void start(uint32_t launch);
  uint32_t parts_of(uint32_t launch) const;

  // What is to be done, in one word: launch (32 bits), next part (16), parts (16). A thread claims a part by counting
  // up; whoever finishes the last part starts the next launch. So nobody waits for a thread that the system has put
  // aside, unless it holds a part. Parts 0 = idle.
  std::atomic<uint64_t> state_{0};
  std::atomic<uint32_t> finished_{0};
  std::atomic<bool> done_{true};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  const Launch* launches_ = nullptr;
  uint32_t count_ = 0;
  std::vector<Scratch> scratch_;
  std::mutex callers_, sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace bitnet
