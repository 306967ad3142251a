// A CUDA block on one CPU thread: its threads are fibers; __syncthreads and warp operations are rendezvous points.
// A rendezvous that not every thread reaches ends the launch with an error instead of a wrong number.
#pragma once
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace simt {

struct Dim {
    unsigned x, y, z;
};
enum State { READY, AT_BARRIER, AT_WARP, AT_WAVE, AT_CLUSTER, AT_FAULT, DONE };  // at a fault for ever
struct Fiber {
    void* stack_pointer;
    char* stack;
    State state;
    unsigned warp_operations;
};

extern "C" void simt_switch(void** from, void* to);
__asm__(
    ".text\n.weak simt_switch\n.type simt_switch,@function\nsimt_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size simt_switch,.-simt_switch\n");

constexpr unsigned WARP = 32;
constexpr size_t STACK = 64 << 10;

// Blocks of a kernel that run together, and the memory of which each of them has its own.
struct Cluster {
    unsigned blocks;  // in z
    char *first, *end;
};
inline Cluster cluster = {1, nullptr, nullptr};

// A block, or a cluster: the threads of one block after those of the other.
struct Block {
    std::vector<Fiber> fibers;
    void* scheduler;
    unsigned current, present;  // present: whose memory is in its place
    Dim index, grid, threads;
    void (*kernel)(void**);
    void** arguments;
    std::vector<std::vector<char>> memories;
    uint64_t exchange[2][16 * 1024];  // values of a warp operation, two banks used in turn

    // Where `own` is in another block of the cluster.
    void* memory_of(unsigned rank, void* own) {
        return rank == present ? own : &memories[rank][(char*)own - cluster.first];
    }
    // Makes fiber i the present one.
    void turn_to(unsigned i) {
        current = i;
        unsigned rank = i / threads.x;
        if (rank == present) return;
        char *first = cluster.first, *end = cluster.end;
        memories[present].assign(first, end);
        memcpy(first, memories[rank].data(), end - first);
        index.z += rank - present, present = rank;
    }

    void yield(State state) {
        fibers[current].state = state;
        simt_switch(&fibers[current].stack_pointer, scheduler);
    }
};
inline Block* block = nullptr;

inline void fiber_main() {
    block->kernel(block->arguments);
    block->yield(DONE);
    abort();
}

// All values that the warp's threads brought to this operation; the caller's own lane is `lane()`.
inline unsigned lane() { return block->current % WARP; }
inline const uint64_t* meet(uint64_t value) {
    Fiber& self = block->fibers[block->current];
    uint64_t* bank = block->exchange[self.warp_operations++ & 1];
    bank[block->current] = value;
    block->yield(AT_WARP);
    return bank + block->current / WARP * WARP;
}

// The same among 64 threads, AMD's larger waves.
inline const uint64_t* meet_wave(uint64_t value) {
    Fiber& self = block->fibers[block->current];
    uint64_t* bank = block->exchange[self.warp_operations++ & 1];
    bank[block->current] = value;
    block->yield(AT_WAVE);
    return bank + block->current / (2 * WARP) * (2 * WARP);
}

// Ends the launch with an error.
inline void fail() {
    for (;;) block->yield(AT_FAULT);
}

inline bool wake(Block& b, unsigned first, unsigned count, State waiting) {
    for (unsigned i = first; i < first + count; i++)
        if (b.fibers[i].state != waiting) return false;
    for (unsigned i = first; i < first + count; i++) b.fibers[i].state = READY;
    return true;
}

// Runs one block, or cluster; false if its threads parted ways at a rendezvous. SIMT_REVERSE=1 runs threads in falling order: a
// missing barrier shows in one of the two orders. SIMT_FAR=1: a warp goes on alone as far as it can before the next one begins,
// so that what it writes in another one's place shows.
inline bool run_block(Block& b) {
    static const bool reverse = getenv("SIMT_REVERSE") != nullptr, far = getenv("SIMT_FAR") != nullptr;
    unsigned n = b.fibers.size(), left = n;
    block = &b;
    b.memories.assign(cluster.blocks, std::vector<char>(cluster.first, cluster.end));
    for (Fiber& fiber : b.fibers) {
        void** top = (void**)(fiber.stack + STACK) - 2;
        *top = (void*)fiber_main;
        top -= 6;
        memset(top, 0, 6 * sizeof(void*));
        fiber = {top, fiber.stack, READY, 0};
    }
    while (left) {
        for (unsigned k = 0; k < n; k++) {
            unsigned i = reverse ? n - 1 - k : k;
            if (b.fibers[i].state != READY) continue;
            b.turn_to(i);
            simt_switch(&b.scheduler, b.fibers[i].stack_pointer);
            if (b.fibers[i].state == DONE) left--;
            if (far && i % WARP == WARP - 1 && wake(b, i + 1 - WARP, WARP, AT_WARP)) k -= WARP;
        }
        if (!left) break;
        bool woke = wake(b, 0, n, AT_CLUSTER);
        for (unsigned first = 0; first < n; first += b.threads.x)
            if (wake(b, first, b.threads.x, AT_BARRIER)) woke = true;
        for (unsigned first = 0; first < n; first += WARP) {
            unsigned count = n - first < WARP ? n - first : WARP;
            if (wake(b, first, count, AT_WARP)) woke = true;
            if (first % (2 * WARP) == 0 && wake(b, first, n - first < 2 * WARP ? n - first : 2 * WARP, AT_WAVE)) woke = true;
        }
        for (unsigned i = 0; i < n && !woke; i++) woke = b.fibers[i].state == READY;  // it looks again at what it waits for
        if (!woke) return false;
    }
    return true;
}

inline bool launch(void (*kernel)(void**), void** arguments, Dim grid, Dim threads) {
    auto owned = std::make_unique<Block>();  // not in memory that blocks have copies of, and too large for a stack
    Block& b = *owned;
    b.grid = grid;
    b.threads = threads;
    b.kernel = kernel;
    b.arguments = arguments;
    size_t count = threads.x * cluster.blocks;
    b.fibers.resize(count);
    char* stacks = (char*)mmap(nullptr, STACK * count, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (unsigned i = 0; i < count; i++) b.fibers[i].stack = stacks + STACK * i;
    bool fine = true;
    for (unsigned z = 0; z < grid.z && fine; z += cluster.blocks)
        for (unsigned y = 0; y < grid.y && fine; y++)
            for (unsigned x = 0; x < grid.x && fine; x++) {
                b.index = {x, y, z}, b.present = 0;
                fine = run_block(b);
            }
    munmap(stacks, STACK * count);
    return fine;
}

}  // namespace simt
