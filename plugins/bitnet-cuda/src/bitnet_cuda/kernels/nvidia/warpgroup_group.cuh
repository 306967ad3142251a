// Groups of warpgroup products (compute capability 9.0 alone): their start, their end, and what they may read.
// Registers of c and a are written: the products that follow see them.
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes the group of the products before it.
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` of the newest groups are still under way.
template <int pending>
__device__ inline void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Registers of this warpgroup's threads from here on: fewer or more than the kernel began with.
template <int registers>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
// Shared memory that this thread wrote can be read by the tensor cores, after the next barrier.
__device__ inline void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// v, in its register before what follows: else the compiler may put it there after warpgroup_arrive, and then waits for each product
// alone (C7520).
__device__ inline u32 settled(u32 v) {
    asm volatile("" : "+r"(v)::"memory");
    return v;
}
