// Barriers in shared memory, and copies of the bulk engine that arrive at them (compute capability 9.0 and later). The
// emulator has a file of this name too.
typedef unsigned long long Barrier;

// Where boxes of a tensor lie in device memory; the host makes it (tensor_maps.py).
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// A phase ends when `count` threads have arrived and what they expect has come.
__device__ inline void barrier_init(Barrier* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and expects so many bytes more of copies in this phase.
__device__ inline void barrier_expect(Barrier* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Arrives once this thread's copies of single words (cp.async) have come.
__device__ inline void barrier_arrive_copied(Barrier* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Waits for phase 0, 1, 0, .. to end.
__device__ inline void barrier_wait(Barrier* barrier, u32 phase) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(shared_address(barrier)),
        "r"(phase)
        : "memory");
}
// Barriers that this thread made are there for the copies.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// The box of a matrix from byte x of row y on.
__device__ inline void copy_box(void* to, const TensorMap& map, u32 x, u32 y, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}
// The box from byte x of group z on, of a tensor of four dimensions.
__device__ inline void copy_groups(void* to, const TensorMap& map, u32 x, u32 z, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(0), "r"(z), "r"(shared_address(barrier))
        : "memory");
}
// A multiple of 16 bytes, from and to multiples of 16.
__device__ inline void copy_bulk(void* to, const void* from, u32 bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
