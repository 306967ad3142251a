// ids[l, i], values[l, i] = the k largest logits of row l in descending order, equal ones by ascending token, NaN the
// largest, padded with -1 and -Inf; total[l] = (m, log(sum exp(logit - m))), m the largest allowed logit. One
// threadgroup of 256 per row.
// The k-th largest pair (key, ~token) is found byte by byte from the top with a histogram, then k pairs are ranked.
// logits f32[rows, stride]; mask i32[rows, ceil(vocab / 32)]; ids i32[rows, k]; values f32[rows, k]; total f32[rows,
// 2].
#include "numbers.h"
#include "reduce.h"
#include "logits.h"
inline bool above(uint2 a, uint2 b) { return a.x > b.x || (a.x == b.x && a.y > b.y); }
inline uint digit(uint2 pair, uint d) { return pair[d / 4] >> (24 - d % 4 * 8) & 255; }

// search: the bytes fixed so far (2), their mask (2), the number of pairs still wanted among those that share them,
// whether all are.
inline void narrow(threadgroup uint *search, threadgroup atomic_uint *histogram, uint d) {  // finds one more byte, in one thread
    uint left = search[4], byte = 255, here = atomic_load_explicit(&histogram[byte], memory_order_relaxed);
    while (here < left && byte > 0) {
        left -= here;
        byte -= 1;
        here = atomic_load_explicit(&histogram[byte], memory_order_relaxed);
    }
    uint shift = 24 - d % 4 * 8;
    search[d / 4] |= byte << shift;
    search[2 + d / 4] |= 255u << shift;
    search[4] = left;
    search[5] = here <= left ? 1 : 0;
}

inline void totals(Row row, uint vocab, device float *total, threadgroup uint *room, uint tid) {
    uint most = 0;
    for (uint i = tid; i < vocab; i += GROUP) most = max(most, row.key(i));
    most = group_max(most, room, tid);
    uint bits = most >= 0x80000000u ? most & 0x7fffffffu : ~most;
    float largest = as_type<float>(most == 0 ? 0xff800000u : bits);
    float sum = 0.0f;
    for (uint i = tid; i < vocab; i += GROUP) {
        if (row.allowed(i)) sum += exp(row.logits[i] - largest);
    }
    sum = group_sum(sum, room, tid);
    if (tid != 0) return;
    total[0] = or_nan(largest, most == 0xffffffffu);
    total[1] = or_nan(log(sum), is_bad(largest));
}

kernel void top_k(device const float *logits [[buffer(0)]], device const uint *mask [[buffer(1)]],
                  device int *ids [[buffer(2)]], device float *values [[buffer(3)]], device float *total [[buffer(4)]],
                  constant Params &p [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
                  uint tid [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint histogram[256];
    threadgroup atomic_uint count;
    threadgroup uint search[6];
    threadgroup uint2 found[256];
    threadgroup uint room[32];
    Row row = {logits + group.x * p.stride, mask + group.x * ((p.vocab + 31) / 32)};
    if (tid < 6) search[tid] = tid == 4 ? p.k : 0;
    if (tid == 0) atomic_store_explicit(&count, 0, memory_order_relaxed);
    for (uint d = 0; d < 8; d++) {
        atomic_store_explicit(&histogram[tid], 0, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        bool done = search[5] == 1;
        uint2 least = uint2(search[0], search[1]), known = uint2(search[2], search[3]);
        for (uint i = tid; i < p.vocab && !done; i += GROUP) {
            uint2 pair = uint2(row.key(i), ~i);
            if ((pair.x & known.x) == least.x && (pair.y & known.y) == least.y) {
                atomic_fetch_add_explicit(&histogram[digit(pair, d)], 1, memory_order_relaxed);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tid == 0 && !done) narrow(search, histogram, d);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    uint2 least = uint2(search[0], search[1]);
    for (uint i = tid; i < p.vocab; i += GROUP) {
        uint2 pair = uint2(row.key(i), ~i);
        if (pair.x == 0 || above(least, pair)) continue;
        uint slot = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
        if (slot < 256) found[slot] = pair;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint many = min(atomic_load_explicit(&count, memory_order_relaxed), p.k);
    if (tid < many) {
        uint rank = 0, token = ~found[tid].y;
        for (uint i = 0; i < many; i++) rank += above(found[i], found[tid]) ? 1 : 0;
        ids[group.x * p.k + rank] = int(token);
        values[group.x * p.k + rank] = row.logits[token];
    } else if (tid < p.k) {
        ids[group.x * p.k + tid] = -1;
        values[group.x * p.k + tid] = as_type<float>(0xff800000u);
    }
    totals(row, p.vocab, total + 2 * group.x, room, tid);
}
