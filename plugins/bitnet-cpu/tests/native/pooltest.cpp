// The thread pool alone, for the thread sanitizer: chains of links that each need the one before, a link being two launches
// side by side or one of a single workgroup, on pools of several sizes, from two callers at once, with pauses in which the
// workers go to sleep. Exit status 1 on a wrong count.
#include <chrono>
#include <cstdio>
#include <vector>

#include "pool.hpp"

namespace {

using namespace bitnet;

constexpr uint32_t CELLS = 300, SPLIT = 110, CHAIN = 21;

// Link i of a chain moves cell c from i to i + 1, through a neighbour's old value: out of order, the count goes wrong.
// params: the first cell, and the cells of a workgroup.
void increment(const Launch& launch, uint32_t begin, uint32_t end, uint8_t* scratch) {
  const uint32_t* from = view<uint32_t>(launch, 0);
  uint32_t* to = view<uint32_t>(launch, 1);
  const uint32_t first = launch.params[0], each = launch.params[1];
  scratch[0] = 1;
  for (uint32_t i = first + begin * each; i < first + end * each; ++i) to[i] = from[(i + 7) % CELLS] + 1;
}

Launch part(std::vector<uint32_t>& from, std::vector<uint32_t>& to, uint32_t first, uint32_t workgroups, uint32_t each) {
  Launch launch{};
  launch.run = increment;
  launch.views[0] = {reinterpret_cast<uint8_t*>(from.data()), CELLS * 4};
  launch.views[1] = {reinterpret_cast<uint8_t*>(to.data()), CELLS * 4};
  launch.params[0] = first;
  launch.params[1] = each;
  launch.workgroups = workgroups;
  launch.beside = first != 0;
  return launch;
}

bool counts(Pool& pool, uint32_t rounds, bool pause) {
  std::vector<uint32_t> a(CELLS, 0), b(CELLS, 0);
  std::vector<Launch> chain;
  for (uint32_t i = 0; i < 2 * CHAIN; ++i) {
    auto &from = i % 2 ? b : a, &to = i % 2 ? a : b;
    if (i % 3 == 2) {
      chain.push_back(part(from, to, 0, 1, CELLS));
    } else {
      chain.push_back(part(from, to, 0, SPLIT, 1));
      chain.push_back(part(from, to, SPLIT, CELLS - SPLIT, 1));
    }
  }
  pool.reserve(64);
  for (uint32_t r = 0; r < rounds; ++r) {
    pool.run(chain.data(), chain.size());
    if (pause) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (uint32_t cell : a)
    if (cell != 2 * CHAIN * rounds) return false;
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
