// Barriers in shared memory, and bulk copies that arrive at them (compute capability 9.0 and later). The emulator has a
// file of the same name.
typedef unsigned long long Barrier;

// A tensor map: the boxes of a tensor in device memory; the host encodes it (tensor_maps.py).
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// Starts a barrier. A phase ends when `count` threads have arrived and the expected bytes have been copied.
__device__ inline void barrier_init(Barrier* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ inline void barrier_arrive(Barrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and expects `bytes` more bytes of copies in this phase.
__device__ inline void barrier_expect(Barrier* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Arrives once this thread's copies of single words (cp.async) are complete.
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
// Makes the barriers that this thread initialized visible to copies.
__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Copies the box of a matrix from byte x of row y on.
__device__ inline void copy_box(void* to, const TensorMap& map, u32 x, u32 y, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            shared_address(to)),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}
// Copies the box from byte x of group z on, of a tensor of four dimensions.
__device__ inline void copy_groups(void* to, const TensorMap& map, u32 x, u32 z, Barrier* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(shared_address(to)),
        "l"(&map), "r"(x), "r"(0), "r"(z), "r"(shared_address(barrier))
        : "memory");
}
// Copies a multiple of 16 bytes; both addresses are multiples of 16.
__device__ inline void copy_bulk(void* to, const void* from, u32 bytes, Barrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
