// Sums and maxima over a threadgroup of GROUP threads, whole simdgroups of 32; every thread gets the result.
// room: 32 words of threadgroup memory, unused again when the function returns.
inline float group_sum(float value, threadgroup uint *room, uint tid) {
    float part = simd_sum(value);
    if (tid % 32 == 0) room[tid / 32] = as_type<uint>(part);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = simd_sum(tid % 32 < GROUP / 32 ? as_type<float>(room[tid % 32]) : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

inline int group_sum_exact(int value, threadgroup uint *room, uint tid) {
    int part = simd_sum(value);
    if (tid % 32 == 0) room[tid / 32] = uint(part);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    int total = simd_sum(tid % 32 < GROUP / 32 ? int(room[tid % 32]) : 0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return total;
}

inline uint group_max(uint value, threadgroup uint *room, uint tid) {
    uint part = simd_max(value);
    if (tid % 32 == 0) room[tid / 32] = part;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint most = simd_max(tid % 32 < GROUP / 32 ? room[tid % 32] : 0u);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return most;
}
