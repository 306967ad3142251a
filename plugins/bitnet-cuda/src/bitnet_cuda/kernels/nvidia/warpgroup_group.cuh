// Groups of warpgroup products (compute capability 9.0 alone): start, end, and visibility of operands.
// Makes earlier writes to registers of c and a visible to the products that follow.
__device__ inline void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes the group of the products before it.
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` of the newest groups are in flight.
template <int pending>
__device__ inline void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Changes the number of registers of this warpgroup's threads from the kernel's initial number.
template <int registers>
__device__ inline void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
// Makes shared memory that this thread wrote readable by the tensor cores after the next barrier.
__device__ inline void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Keeps v in its register before the following code: otherwise the compiler may load it after warpgroup_arrive, and
// then waits for each product separately (C7520).
__device__ inline u32 settled(u32 v) {
    asm volatile("" : "+r"(v)::"memory");
    return v;
}
