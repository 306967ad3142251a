// Clusters (compute capability 9.0 and later): neighbouring blocks in z that run at the same time and may write to each
// other's shared memory. The emulator has a file of the same name.
#define KERNEL_CLUSTER(blocks) extern "C" __global__ void __cluster_dims__(1, 1, blocks) __launch_bounds__(GROUP)
// The same, with one block per multiprocessor.
#define KERNEL_CLUSTER_ALONE(blocks) extern "C" __global__ void __cluster_dims__(1, 1, blocks) __launch_bounds__(GROUP, 1)

// A barrier of all threads of the cluster; writes before it are visible after cluster_wait. A write to another block's
// memory before the first barrier may precede that block's start.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_meet() {
    cluster_arrive();
    cluster_wait();
}

// *own = v, four bytes, in the shared memory of block `rank` of the cluster.
template <class T>
__device__ inline void cluster_put(T* own, u32 rank, T v) {
    asm volatile("{.reg .b32 to;\nmapa.shared::cluster.u32 to, %0, %1;\nst.shared::cluster.u32 [to], %2;}" ::"r"(shared_address(own)),
                 "r"(rank), "r"(*(const u32*)&v)
                 : "memory");
}
