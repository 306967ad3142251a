#include "prelude.glsl"
// attention for few rows: out[t,h] = sum_p softmax_p(scale * q[t,h] . k[p]) v[p], p = 0..position[t]. SPLITS workgroups
// share the positions of a row; each has a subgroup for every query head of a key/value head. LANES neighbours share a
// position, 8 elements of it at a time, and each such slot keeps its own running maximum. The last workgroup to finish
// combines the partial results.
// FUSED: rope_attention; the newest key and value come from qkv, and one workgroup stores them.
#ifdef FUSED
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 2) readonly buffer Rope { vec2 rope[]; };
layout(std430, binding = 3) readonly buffer QGamma { float q_gamma[]; };
layout(std430, binding = 4) readonly buffer KGamma { float k_gamma[]; };
#define AT(unfused, fused) fused
#else
layout(std430, binding = 0) readonly buffer Q { float q[]; };
layout(std430, binding = 3) readonly buffer Step { ivec4 step_[]; };
#define AT(unfused, fused) unfused
#endif
layout(std430, binding = AT(1, 5)) buffer K { uint k_cache[]; };
layout(std430, binding = AT(1, 5)) readonly buffer K4 { uvec4 k_cache4[]; };
layout(std430, binding = AT(2, 6)) buffer V { uint v_cache[]; };
layout(std430, binding = AT(2, 6)) readonly buffer V4 { uvec4 v_cache4[]; };
layout(std430, binding = AT(4, 7)) readonly buffer Tables { int tables[]; };
layout(std430, binding = AT(5, 8)) writeonly buffer Out { float out_[]; };
// The workspace: the number of finished workgroups per row and key/value head, then their partial results.
layout(std430, binding = AT(6, 9)) coherent buffer Finished { uint finished[]; };
layout(std430, binding = AT(6, 9)) coherent buffer Partial { float partial[]; };
layout(std430, binding = AT(6, 9)) buffer Found { float found_[]; };  // the same, not coherent: read after a barrier with overlapping loads
layout(push_constant) uniform Params {
    uint rows, n_heads, n_kv_heads, head_dim, row_bytes, max_blocks;
    float scale;
#ifdef FUSED
    float eps;
#endif
} p;

const uint OCTETS = DIM / 8 / LANES;  // of a lane
const uint SLOTS = WAVE / LANES;      // of a subgroup
const uint OUTS = (DIM + WAVE - 1) / WAVE;         // of a lane, when the parts are combined
const float LOWEST = -3.0e38;
shared uint last_one;

#include "kv_octet.glsl"

#ifdef FUSED
#include "rope.glsl"
// Returns the factor of a head's norm; its elements are spread over LANES neighbours.
float norm_of(uint base, uint lane) {
    if (QKNORM == 0) return 1.0;
    float squares = 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            float v = qkv[base + 8 * (lane + o * LANES) + i];
            squares += v * v;
        }
    [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) squares += subgroupShuffleXor(squares, d);
    return inverse_of(squares);
}

void newest_of(uint base, uint position, uint kind, uint lane, out Octet made[OCTETS]) {
    float inverse = kind == KEY ? norm_of(base, lane) : 1.0;
    float v[OCTETS][8], largest = 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            v[o][i] = element(base, position, kind, 8 * (lane + o * LANES) + i, inverse);
            largest = max(largest, abs(v[o][i]));
        }
    if (KV == 2)
        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1) largest = max(largest, subgroupShuffleXor(largest, d));
    float factor = largest > 0.0 ? 127.0 / largest : 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++) made[o] = encode(v[o], factor, largest / 127.0);
}
#endif

void main() {
    uint kv_head = gl_WorkGroupID.x, row = gl_WorkGroupID.y, split = gl_WorkGroupID.z;
    uint head = kv_head * HEADS + gl_SubgroupID, lane = gl_SubgroupInvocationID % LANES;
    uint slot = gl_SubgroupInvocationID / LANES, outs = (row * p.n_heads + head) * DIM;
    ivec4 step = step_[row];
    int last = step.y;
#ifdef FUSED
    uint row_base = row * (p.n_heads + 2 * p.n_kv_heads) * DIM, query_position = uint(max(last, 0));
    float query_norm = norm_of(row_base + head * DIM, lane);
    if (step.z < 0) last = -1;
#endif
    float query[OCTETS][8], acc[OCTETS][8], largest = LOWEST, total = 0.0;
    [[unroll]] for (uint o = 0; o < OCTETS; o++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            uint d = 8 * (lane + o * LANES) + i;
#ifdef FUSED
            query[o][i] = element(row_base + head * DIM, query_position, QUERY, d, query_norm) * p.scale;
#else
            query[o][i] = q[outs + d] * p.scale;
#endif
            acc[o][i] = 0.0;
        }
    if (last < 0) {
        if (split == 0)
            for (uint i = gl_SubgroupInvocationID; i < DIM; i += WAVE) out_[outs + i] = 0.0;
        return;
    }
    uint count = uint(last) + 1, chunk = ((count + SPLITS - 1) / SPLITS + 7) / 8 * 8, parts = (count + chunk - 1) / chunk;
    if (split >= parts) return;
    uint first = split * chunk, end = min(first + chunk, count);
    uint table = uint(step.w) * p.max_blocks, row_words = p.row_bytes / 4;

#ifdef FUSED
    Octet newest_k[OCTETS], newest_v[OCTETS];
    bool fresh = false;
    if (end == count) {
        uint k_base = row_base + (p.n_heads + kv_head) * DIM, v_base = k_base + p.n_kv_heads * DIM;
        newest_of(k_base, query_position, KEY, lane, newest_k);
        newest_of(v_base, query_position, VALUE, lane, newest_v);
        int at = step.z;
        fresh = at >= 0 && at == tables[table + uint(last) / KV_BLOCK] * int(KV_BLOCK) + last % int(KV_BLOCK);
        if (at >= 0 && gl_SubgroupID == 0 && slot == 0) {
            uint cache_row = (uint(at) / KV_BLOCK * p.n_kv_heads + kv_head) * KV_BLOCK + uint(at) % KV_BLOCK;
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                store_k(cache_row * row_words, lane + o * LANES, newest_k[o]);
                store_v(cache_row * row_words, lane + o * LANES, newest_v[o]);
            }
        }
    }
#endif
    for (uint start = first; start < end; start += SLOTS * BATCH) {
        Octet keys[BATCH][OCTETS], values[BATCH][OCTETS];
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            uint position = min(start + b * SLOTS + slot, end - 1);
            uint block = uint(tables[table + position / KV_BLOCK]);
            uint word0 = ((block * p.n_kv_heads + kv_head) * KV_BLOCK + position % KV_BLOCK) * row_words;
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                keys[b][o] = load_k(word0, lane + o * LANES);
                values[b][o] = load_v(word0, lane + o * LANES);
            }
        }
#ifdef FUSED
        if (end == count && fresh && count - 1 < start + SLOTS * BATCH) {  // the newest position is among them
            [[unroll]] for (uint b = 0; b < BATCH; b++) {
                if (start + b * SLOTS + slot < count - 1) continue;
                [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                    keys[b][o] = newest_k[o];  // also past the end, where the position has no weight
                    values[b][o] = newest_v[o];
                }
            }
        }
#endif
        float score[BATCH], now = largest;
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            score[b] = 0.0;
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                Octets k = decode(keys[b][o]);
                [[unroll]] for (uint i = 0; i < 8; i++) score[b] += query[o][i] * k.v[i];
            }
        }
        [[unroll]] for (uint d = LANES / 2; d > 0; d >>= 1)
            [[unroll]] for (uint b = 0; b < BATCH; b++) score[b] += subgroupShuffleXor(score[b], d);
        [[unroll]] for (uint b = 0; b < BATCH; b++)
            if (start + b * SLOTS + slot < end) now = max(now, score[b]);
        float rescale = exp(largest - now);
        total *= rescale;
        [[unroll]] for (uint o = 0; o < OCTETS; o++)
            [[unroll]] for (uint i = 0; i < 8; i++) acc[o][i] *= rescale;
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            float weight = start + b * SLOTS + slot < end ? exp(score[b] - now) : 0.0;
            total += weight;
            [[unroll]] for (uint o = 0; o < OCTETS; o++) {
                Octets v = decode(values[b][o]);
                [[unroll]] for (uint i = 0; i < 8; i++) acc[o][i] += weight * v.v[i];
            }
        }
        largest = now;
    }

    // Combine the slots of this subgroup, then the workgroups of this row and head.
    float now = largest;
    [[unroll]] for (uint d = LANES; d < WAVE; d <<= 1) now = max(now, subgroupShuffleXor(now, d));
    float weight = exp(largest - now);
    total *= weight;
    [[unroll]] for (uint d = LANES; d < WAVE; d <<= 1) total += subgroupShuffleXor(total, d);
    [[unroll]] for (uint o = 0; o < OCTETS; o++)
        [[unroll]] for (uint i = 0; i < 8; i++) {
            acc[o][i] *= weight;
            [[unroll]] for (uint d = LANES; d < WAVE; d <<= 1) acc[o][i] += subgroupShuffleXor(acc[o][i], d);
        }
    const uint PART = DIM + 2;
    uint part0 = ROOM * p.n_kv_heads + (row * p.n_heads + head) * SPLITS * PART;
    if (slot == 0) {
        [[unroll]] for (uint o = 0; o < OCTETS; o++)
            [[unroll]] for (uint i = 0; i < 8; i++) {
                uint d = 8 * (lane + o * LANES) + i;
                if (parts == 1) out_[outs + d] = acc[o][i] / total;
                else partial[part0 + split * PART + d] = acc[o][i];
            }
        if (parts > 1 && lane == 0) {
            partial[part0 + split * PART + DIM] = now;
            partial[part0 + split * PART + DIM + 1] = total;
        }
    }
    if (parts == 1) return;
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationIndex == 0) last_one = atomicAdd(finished[row * p.n_kv_heads + kv_head], 1);
    barrier();
    if (last_one != parts - 1) return;
    memoryBarrierBuffer();
    if (gl_LocalInvocationIndex == 0) finished[row * p.n_kv_heads + kv_head] = 0;
    float found[SPLITS][OUTS], most[SPLITS], sums[SPLITS];
    [[unroll]] for (uint s = 0; s < SPLITS; s++) {
        uint part = part0 + min(s, parts - 1) * PART;
        most[s] = found_[part + DIM];
        sums[s] = found_[part + DIM + 1];
        [[unroll]] for (uint i = 0; i < OUTS; i++)
            found[s][i] = found_[part + min(gl_SubgroupInvocationID + i * WAVE, DIM - 1)];
    }
    now = LOWEST;
    [[unroll]] for (uint s = 0; s < SPLITS; s++) now = max(now, most[s]);
    total = 0.0;
    [[unroll]] for (uint s = 0; s < SPLITS; s++) {
        most[s] = s < parts ? exp(most[s] - now) : 0.0;
        total += most[s] * sums[s];
    }
    [[unroll]] for (uint i = 0; i < OUTS; i++) {
        float sum = 0.0;
        [[unroll]] for (uint s = 0; s < SPLITS; s++) sum += s < parts ? most[s] * found[s][i] : 0.0;
        if (gl_SubgroupInvocationID + i * WAVE < DIM) out_[outs + gl_SubgroupInvocationID + i * WAVE] = sum / total;
    }
}
