// The emulator's clusters: its blocks take turns in the module's memory, of which each has a copy.
#define KERNEL_CLUSTER(blocks)                                                         \
    static const bool clustered = (simt::cluster = {blocks, __bss_start, _end}, true); \
    KERNEL
#define KERNEL_CLUSTER_ALONE(blocks) KERNEL_CLUSTER(blocks)
extern "C" char __bss_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));

inline void cluster_arrive() {}
inline void cluster_wait() { simt::block->yield(simt::AT_CLUSTER); }
inline void cluster_meet() { cluster_wait(); }
template <class T>
void cluster_put(T* own, unsigned rank, T v) {
    memcpy(simt::block->memory_of(rank, own), &v, sizeof v);
}
