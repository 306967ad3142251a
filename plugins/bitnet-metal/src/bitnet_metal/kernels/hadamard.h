// The Walsh-Hadamard transform of `block` columns in threadgroup memory, H[i, j] = (-1)^popcount(i & j), without its
// factor 1 / sqrt(block): each step adds and subtracts elements `distance` apart, then doubles the distance. Starts and
// ends with a barrier.
inline void hadamard(threadgroup float *v, uint block, uint tid) {
    uint distance = 1;
    for (; 4 * distance <= block; distance *= 4) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < block / 4; i += GROUP) {
            uint at = 3 * (i & ~(distance - 1)) + i;
            float a = v[at] + v[at + distance], b = v[at] - v[at + distance];
            float c = v[at + 2 * distance] + v[at + 3 * distance], d = v[at + 2 * distance] - v[at + 3 * distance];
            v[at] = a + c;
            v[at + distance] = b + d;
            v[at + 2 * distance] = a - c;
            v[at + 3 * distance] = b - d;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; distance < block && i < block / 2; i += GROUP) {  // the last distance alone
        float a = v[i], b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
