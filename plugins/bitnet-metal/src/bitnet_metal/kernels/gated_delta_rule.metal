// For each row, in order, and head h with its query q and key k (divided by their lengths, q by sqrt(key_dim) too),
// value v, decay g = exp(rate * softplus(a + dt)) and beta = 1 / (1 + exp(-b)): S = g S; S += k (beta (v - S^T k))^T;
// out = S^T q. Rows with position < 0 produce zeros and leave all states unchanged.
// A threadgroup has 32 columns of a head's state. A simdgroup holds EACH keys of these in registers while rows belong
// to one sequence. Sums over keys use S from before the row: with u = S^T k, w = S^T q and e = beta (v - g u), out = g
// w + (k . q) e, so one reduction serves both. ROOM: maximum number of keys.
// qkv = [q | k | v] f32[rows, 2 n_key_heads key_dim + n_heads value_dim]; head h uses q and k of key head h %
// n_key_heads; gates = [a | b] f32[rows, 2 n_heads]; rate, dt f32[n_heads]; step i32[rows, 4]; state S f32[sequences,
// n_heads, key_dim, value_dim], zeros at position 0; out f32[rows, n_heads value_dim].
#include "softplus.h"
#define PARTS 8
#define EACH (ROOM / PARTS)

// Returns q . q, k . k and k . q from those of each part.
inline float total_of(threadgroup const float *lengths, uint which) {
    float total = 0.0f;
    for (uint i = 0; i < PARTS; i++) total += lengths[3 * i + which];
    return total;
}

inline void write_state(device float *to, thread const float *s, uint held, uint stride) {
    for (uint i = 0; i < EACH; i++)
        if (i < held) to[i * stride] = s[i];
}

kernel void gated_delta_rule(device const float *qkv [[buffer(0)]], device const float *gates [[buffer(1)]],
                             device const float *rate [[buffer(2)]], device const float *dt [[buffer(3)]],
                             device const int4 *step [[buffer(4)]], device float *state [[buffer(5)]],
                             device float *out [[buffer(6)]], constant Params &p [[buffer(7)]],
                             uint3 group [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
    threadgroup float q[ROOM];
    threadgroup float k[2 * ROOM];  // read after the row's last barrier, so the next row uses the other half
    threadgroup float2 sums[256];
    threadgroup float lengths[24];
    uint part = tid / 32, column = tid % 32, first = part * EACH, head = group.x, n = group.y * 32 + column;
    uint keys = p.n_key_heads * p.key_dim, width = 2 * keys + p.n_heads * p.value_dim;
    uint held = n < p.value_dim && first < p.key_dim ? min(uint(EACH), p.key_dim - first) : 0, at = 0;
    int sequence = -1;
    float s[EACH];
    for (uint i = 0; i < EACH; i++) s[i] = 0.0f;
    for (uint t = 0; t < p.rows; t++) {
        int position = step[t].y;
        bool used = position >= 0;
        if (used && step[t].w != sequence) {
            if (sequence >= 0) write_state(state + at, s, held, p.value_dim);
            sequence = step[t].w;
            at = ((uint(sequence) * p.n_heads + head) * p.key_dim + first) * p.value_dim + n;
            for (uint i = 0; i < EACH; i++) s[i] = position > 0 && i < held ? state[at + i * p.value_dim] : 0.0f;
        }
        uint mixed = t * width, query = mixed + head % p.n_key_heads * p.key_dim, key = t % 2 * ROOM;
        for (uint i = tid; i < ROOM; i += GROUP) {
            q[i] = used && i < p.key_dim ? qkv[query + i] : 0.0f;
            k[key + i] = used && i < p.key_dim ? qkv[query + keys + i] : 0.0f;
        }
        float v = n < p.value_dim ? qkv[mixed + 2 * keys + head * p.value_dim + n] : 0.0f;
        uint a = t * 2 * p.n_heads + head;
        float g = used ? exp(rate[head] * softplus(gates[a] + dt[head])) : 1.0f;
        float beta = 1.0f / (1.0f + exp(-gates[a + p.n_heads]));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float2 sum = float2(0.0f);
        float qq = 0.0f, kk = 0.0f, kq = 0.0f;
        for (uint i = 0; i < EACH; i++) {
            float qi = q[first + i], ki = k[key + first + i];
            sum += float2(ki, qi) * s[i];
            qq += qi * qi;
            kk += ki * ki;
            kq += ki * qi;
        }
        sums[tid] = sum;
        if (column == 0) {
            lengths[3 * part] = qq;
            lengths[3 * part + 1] = kk;
            lengths[3 * part + 2] = kq;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum = sums[column];
        for (uint i = 1; i < PARTS; i++) sum += sums[32 * i + column];
        float k_scale = 1.0f / sqrt(total_of(lengths, 1) + p.eps);
        float q_scale = 1.0f / sqrt(total_of(lengths, 0) + p.eps) / sqrt(float(p.key_dim));
        float error = used ? beta * (v - g * (sum.x * k_scale)) : 0.0f;
        for (uint i = 0; i < EACH; i++) s[i] = g * s[i] + k[key + first + i] * (error * k_scale);
        if (part == 0 && n < p.value_dim) {
            float made = g * (sum.y * q_scale) + total_of(lengths, 2) * k_scale * q_scale * error;
            out[(t * p.n_heads + head) * p.value_dim + n] = used ? made : 0.0f;
        }
    }
    if (sequence >= 0) write_state(state + at, s, held, p.value_dim);
}
