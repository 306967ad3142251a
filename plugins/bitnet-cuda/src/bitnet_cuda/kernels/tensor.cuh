// Tensor-core building blocks: warp-wide mma and ldmatrix, asynchronous copies into shared memory, dynamic shared memory.
// Fragment layouts are those of the PTX ISA manual (mma.m16n8k32 for 8-bit types, ldmatrix). The CPU emulation
// supplies functions of the same names.
#ifndef CPU_EMULATION
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]

__device__ inline u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// c[16x8] += a[16x32] (u8) * b[32x8] (s8), 32-bit integers
__device__ inline void mma(int* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8, and gets word l % 4 of row l / 4 of each.
__device__ inline void load_matrices(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
// 16 bytes from global to shared memory; copies belong to the group that the next copy_group() closes.
__device__ inline void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's newest groups are still under way.
template <int pending>
__device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
#endif
