// Clusters (compute capability 9.0 and later): so many blocks that stand next to each other in z run at the same time, and may write into
// each other's shared memory. The emulator has a file of this name too.
#define KERNEL_CLUSTER(blocks) extern "C" __global__ void __cluster_dims__(1, 1, blocks) __launch_bounds__(GROUP)
// The same, of blocks that have a multiprocessor each.
#define KERNEL_CLUSTER_ALONE(blocks) extern "C" __global__ void __cluster_dims__(1, 1, blocks) __launch_bounds__(GROUP, 1)

// A point that all threads of the cluster reach before any goes on from cluster_wait, with what they wrote visible. What is written
// into a block's memory before its first one may come before the block.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_meet() {
    cluster_arrive();
    cluster_wait();
}

// *own = v in the shared memory of block `rank` of the cluster, four bytes.
template <class T>
__device__ inline void cluster_put(T* own, u32 rank, T v) {
    asm volatile("{.reg .b32 to;\nmapa.shared::cluster.u32 to, %0, %1;\nst.shared::cluster.u32 [to], %2;}" ::"r"(shared_address(own)),
                 "r"(rank), "r"(*(const u32*)&v)
                 : "memory");
}
