// Attention of TILE_N query heads that share a key/value head, in queries[head][pair]: each simdgroup of the
// threadgroup takes every (GROUP / 32)-th block of 32 positions, with its own running maximum and sum. TILE_N *
// PAIRS_HERE <= 16.
constant constexpr uint HEADS = 8;
constant constexpr uint VALUES = 16;
constant constexpr uint QUERIES = 512;  // maximum TILE_N * PAIRS, in float2s
constant constexpr uint WEIGHTS = 256;  // maximum TILE_N * 32 floats of a simdgroup
constant constexpr uint GROUPS = 4;  // maximum number of simdgroups
constant constexpr float LOW = -3.0e38f;

struct Attended {  // the result of one simdgroup; a lane has pairs lane, lane + 32, ... of the weighted values
    float most[HEADS];
    float total[HEADS];
    float2 values[VALUES];
};

inline void begin(thread Attended &state) {
    for (uint h = 0; h < TILE_N; h++) {
        state.most[h] = LOW;
        state.total[h] = 0.0f;
    }
    for (uint i = 0; i < TILE_N * PAIRS_HERE; i++) state.values[i] = float2(0.0f);
}

// The rows of a sequence in the cache.
struct Cached {
    device const uint *keys;
    device const uint *values;
    device const int *table;  // of the sequence
    uint head, heads;
    ulong at(uint position) const {
        return cache_row(uint(table[position / 64]) * 64 + position % 64, head, heads);
    }
    device const uint *key(uint position) const { return keys + at(position); }
    device const uint *value(uint position) const { return values + at(position); }
};

// The row's own key and value, which the cache may not have yet.
struct Own {
    threadgroup const uint *keys;
    threadgroup const uint *values;
    threadgroup const uint *key(uint) const { return keys; }
    threadgroup const uint *value(uint) const { return values; }
};

// Eight lanes compute a position's products; lane i keeps the score of position first + i.
template <class Rows>
inline void score(Rows rows, uint first, uint count, threadgroup const float2 *queries, float scale, uint lane,
                  thread float *scores) {
    for (uint round = 0; round < 8 && round * 4 < count; round++) {
        uint i = round * 4 + lane / 8;
        float sums[HEADS] = {};
        if (i < count) {
            auto key = rows.key(first + i);
            for (uint j = lane % 8; j < PAIRS; j += 8) {
                float2 k = pair_of(key, j);
                for (uint h = 0; h < TILE_N; h++) sums[h] += dot(k, queries[h * PAIRS + j]);
            }
        }
        for (uint h = 0; h < TILE_N; h++) {
            float sum = sums[h] + simd_shuffle_xor(sums[h], ushort(1));
            sum += simd_shuffle_xor(sum, ushort(2));
            sum += simd_shuffle_xor(sum, ushort(4));
            float mine = simd_shuffle(sum, ushort(lane % 4 * 8));
            if (lane / 4 == round) scores[h] = mine * scale;
        }
    }
}

// Processes positions first .. first + count - 1, at most 32. weights: WEIGHTS floats of this simdgroup.
template <class Rows>
inline void attend(thread Attended &state, Rows rows, uint first, uint count, threadgroup const float2 *queries,
                   threadgroup float *weights, float scale, uint lane) {
    float scores[HEADS] = {};
    score(rows, first, count, queries, scale, lane, scores);
    for (uint h = 0; h < TILE_N; h++) {
        float most = max(state.most[h], simd_max(lane < count ? scores[h] : LOW));
        float weight = lane < count ? exp(scores[h] - most) : 0.0f;
        float before = exp(state.most[h] - most);
        state.total[h] = state.total[h] * before + simd_sum(weight);
        state.most[h] = most;
        weights[h * 32 + lane] = weight;
        for (uint i = 0; i < PAIRS_HERE; i++) state.values[h * PAIRS_HERE + i] *= before;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = 0; n < count; n++) {
        auto value = rows.value(first + n);
        for (uint i = 0; i < PAIRS_HERE; i++) {
            uint j = lane + 32 * i;
            if (j >= PAIRS) continue;
            float2 v = pair_of(value, j);
            for (uint h = 0; h < TILE_N; h++) state.values[h * PAIRS_HERE + i] += weights[h * 32 + n] * v;
        }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

inline void attend_cache(thread Attended &state, Cached rows, uint begin, uint end, threadgroup const float2 *queries,
                         threadgroup float *weights, float scale, uint tid) {
    for (uint first = begin + tid / 32 * 32; first < end; first += GROUP) {
        attend(state, rows, first, min(end - first, 32u), queries, weights, scale, tid % 32);
    }
}

// Combines all simdgroups into sums[head][pair] (which may be the queries), most and total; found: 2 * HEADS * GROUPS
// floats.
inline void gather(thread Attended &state, threadgroup float2 *sums, threadgroup float *found, uint tid) {
    uint lane = tid % 32, simd = tid / 32;
    if (lane == 0) {
        for (uint h = 0; h < TILE_N; h++) {
            found[simd * 2 * HEADS + h] = state.most[h];
            found[simd * 2 * HEADS + HEADS + h] = state.total[h];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float most[HEADS], total[HEADS];
    for (uint h = 0; h < TILE_N; h++) {
        most[h] = LOW;
        for (uint s = 0; s < GROUP / 32; s++) most[h] = max(most[h], found[s * 2 * HEADS + h]);
        total[h] = 0.0f;
        for (uint s = 0; s < GROUP / 32; s++) {
            total[h] += found[s * 2 * HEADS + HEADS + h] * exp(found[s * 2 * HEADS + h] - most[h]);
        }
    }
    for (uint s = 0; s < GROUP / 32; s++) {
        for (uint h = 0; h < TILE_N && simd == s; h++) {
            float factor = exp(state.most[h] - most[h]);
            for (uint i = 0; i < PAIRS_HERE; i++) {
                uint j = lane + 32 * i;
                if (j >= PAIRS) continue;
                float2 sum = s == 0 ? float2(0.0f) : sums[h * PAIRS + j];
                sums[h * PAIRS + j] = sum + state.values[h * PAIRS_HERE + i] * factor;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint h = 0; h < TILE_N; h++) {  // now known to every thread
        state.most[h] = most[h];
        state.total[h] = total[h];
    }
}
