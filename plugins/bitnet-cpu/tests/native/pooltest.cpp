// The thread pool alone, for the thread sanitizer: chains of launches that each need the one before, on pools of several
// sizes, from two callers at once, with pauses in which the workers go to sleep. Exit status 1 on a wrong count.
#include <chrono>
#include <cstdio>
#include <vector>

#include "pool.hpp"

namespace {

using namespace bitnet;

constexpr uint32_t CELLS = 300, CHAIN = 20;

// Launch i of a chain moves cell c from i to i + 1, through a neighbour's old value: out of order, the count goes wrong.
void increment(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const uint32_t* from = view<uint32_t>(launch, 0);
  uint32_t* to = view<uint32_t>(launch, 1);
  scratch[0] = 1;
  for (uint32_t i = begin; i < end; ++i) to[i] = from[(i + 7) % CELLS] + 1;
}

bool counts(Pool& pool, uint32_t rounds, bool pause) {
  std::vector<uint32_t> a(CELLS, 0), b(CELLS, 0);
  std::vector<Launch> chain(CHAIN);
  for (uint32_t i = 0; i < CHAIN; ++i) {
    auto &from = i % 2 ? b : a, &to = i % 2 ? a : b;
    chain[i].run = increment;
    chain[i].views[0] = {reinterpret_cast<uint8_t*>(from.data()), CELLS * 4};
    chain[i].views[1] = {reinterpret_cast<uint8_t*>(to.data()), CELLS * 4};
    chain[i].workgroups = CELLS;
  }
  pool.reserve(64);
  for (uint32_t r = 0; r < rounds; ++r) {
    pool.run(chain.data(), chain.size());
    if (pause) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (uint32_t cell : a)
    if (cell != CHAIN * rounds) return false;
  return true;
}

}  // namespace

int main() {
  for (uint32_t threads : {1u, 2u, 5u}) {
    Pool pool(threads);
    bool other_counts = false;
    std::thread other([&] { other_counts = counts(pool, 40, true); });
    const bool own_counts = counts(pool, 200, false);
    other.join();
    if (!own_counts || !other_counts) {
      std::printf("pool of %u threads counted wrong\n", threads);
      return 1;
    }
  }
  std::printf("all equal\n");
  return 0;
}
