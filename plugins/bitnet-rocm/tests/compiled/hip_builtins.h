// What hipRTC knows by itself, for clang++ without ROCm's header files: only to see which instructions a kernel becomes.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
typedef unsigned long size_t;

#define AXIS(name, expression)                                               \
    struct name {                                                            \
        __attribute__((device)) operator unsigned() const { return expression; } \
    }
AXIS(ThreadX, __builtin_amdgcn_workitem_id_x());
AXIS(BlockX, __builtin_amdgcn_workgroup_id_x());
AXIS(BlockY, __builtin_amdgcn_workgroup_id_y());
AXIS(BlockZ, __builtin_amdgcn_workgroup_id_z());
AXIS(GridX, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
AXIS(GridY, __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y());
struct ThreadIndex {
    ThreadX x;
};
struct BlockIndex {
    BlockX x;
    BlockY y;
    BlockZ z;
};
struct GridSize {
    GridX x;
    GridY y;
};
#define threadIdx (ThreadIndex{})
#define blockIdx (BlockIndex{})
#define gridDim (GridSize{})

#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEVICE unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEVICE unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
DEVICE float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
DEVICE float sqrtf(float v) { return __builtin_sqrtf(v); }
DEVICE float rsqrtf(float v) { return 1.0f / __builtin_sqrtf(v); }
DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float expf(float v) { return __builtin_expf(v); }
DEVICE float logf(float v) { return __builtin_logf(v); }
DEVICE float log1pf(float v) { return logf(1.0f + v); }  // ROCm has one of its own
DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
DEVICE float fminf(float a, float b) { return __builtin_fminf(a, b); }
DEVICE float fabsf(float v) { return __builtin_fabsf(v); }
DEVICE float rintf(float v) { return __builtin_rintf(v); }
template <class T>
DEVICE T min(T a, T b) {
    return a < b ? a : b;
}
template <class T>
DEVICE T max(T a, T b) {
    return a > b ? a : b;
}
DEVICE unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
DEVICE unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
DEVICE unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
