#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// For each row, in order, and head h with its query q and key k (divided by their lengths, q by sqrt(key_dim) too),
// value v, decay g = exp(rate * softplus(a + dt)) and beta = 1 / (1 + exp(-b)): S = g S; S += k (beta (v - S^T k))^T;
// out = S^T q. Rows with position < 0 produce zeros and leave all states unchanged.
// qkv = [q | k | v] f32[rows, 2 n_key_heads key_dim + n_heads value_dim]; head h uses q and k of key head h %
// n_key_heads; gates = [a | b] f32[rows, 2 n_heads]; rate, dt f32[n_heads]; state S f32[sequences, n_heads, key_dim,
// value_dim], zeros at position 0; out f32[rows, n_heads value_dim].
// One workgroup for TILE_N columns of a head's state. An invocation holds EACH keys of one column in registers while
// rows belong to one sequence. Sums over keys use S from before the row: with u = S^T k, w = S^T q and e = beta (v - g
// u), out = g w + (k . q) e, so one reduction serves both.
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Gates { float gates[]; };
layout(std430, binding = 2) readonly buffer Rate { float rate[]; };
layout(std430, binding = 3) readonly buffer Dt { float dt[]; };
layout(std430, binding = 4) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 5) buffer State { float state[]; };
layout(std430, binding = 6) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Params { uint rows, n_heads, n_key_heads, key_dim, value_dim; float eps; } p;

const uint PARTS = GROUP / TILE_N, LOADS = (PARTS * EACH + GROUP - 1) / GROUP;
shared float q[PARTS * EACH];
shared float k[2 * PARTS * EACH];  // read after the row's last barrier, so the next row uses the other half
shared vec2 sums[GROUP];
shared vec3 lengths[PARTS];

#include "softplus.glsl"

// The queries, keys, a value and gates of a row, loaded while the row before is computed.
float next_q[LOADS], next_k[LOADS], next_v, next_a, next_b;
void read_ahead(uint t, uint head, uint keys, uint width, uint n) {
    uint mixed = t * width, query = mixed + head % p.n_key_heads * p.key_dim;
    [[unroll]] for (uint j = 0; j < LOADS; j++) {
        uint i = min(LID + j * GROUP, p.key_dim - 1);
        next_q[j] = qkv[query + i];
        next_k[j] = qkv[query + keys + i];
    }
    next_v = qkv[mixed + 2 * keys + head * p.value_dim + min(n, p.value_dim - 1)];
    next_a = gates[t * 2 * p.n_heads + head];
    next_b = gates[(t * 2 + 1) * p.n_heads + head];
}

void main() {
    uint part = LID / TILE_N, column = LID % TILE_N, first = part * EACH, head = gl_WorkGroupID.x;
    uint n = gl_WorkGroupID.y * TILE_N + column, keys = p.n_key_heads * p.key_dim, width = 2 * keys + p.n_heads * p.value_dim;
    uint held = n < p.value_dim && first < p.key_dim ? min(EACH, p.key_dim - first) : 0, at = 0;
    int sequence = -1;
    float s[EACH];
    [[unroll]] for (uint i = 0; i < EACH; i++) s[i] = 0.0;
    read_ahead(0, head, keys, width, n);
    for (uint t = 0; t < p.rows; t++) {
        int position = step_[t].y, owner = step_[t].w;
        bool used = position >= 0;
        if (used && owner != sequence) {
            [[unroll]] for (uint i = 0; i < EACH; i++)
                if (sequence >= 0 && i < held) state[at + i * p.value_dim] = s[i];
            at = ((uint(owner) * p.n_heads + head) * p.key_dim + first) * p.value_dim + n;
            [[unroll]] for (uint i = 0; i < EACH; i++) s[i] = position > 0 && i < held ? state[at + i * p.value_dim] : 0.0;
            sequence = owner;
        }
        uint key = t % 2 * PARTS * EACH;
        [[unroll]] for (uint j = 0; j < LOADS; j++) {
            uint i = LID + j * GROUP;
            if (i >= PARTS * EACH) break;
            q[i] = used && i < p.key_dim ? next_q[j] : 0.0;
            k[key + i] = used && i < p.key_dim ? next_k[j] : 0.0;
        }
        float v = next_v, beta = 1.0 / (1.0 + exp(-next_b));
        float g = used ? exp(rate[head] * softplus(next_a + dt[head])) : 1.0;
        barrier();
        if (t + 1 < p.rows) read_ahead(t + 1, head, keys, width, n);
        vec2 sum = vec2(0.0);
        vec3 products = vec3(0.0);  // q . q, k . k, k . q
        [[unroll]] for (uint i = 0; i < EACH; i++) {
            float qi = q[first + i], ki = k[key + first + i];
            sum += vec2(ki, qi) * s[i];
            products += vec3(qi, ki, ki) * vec3(qi, ki, qi);
        }
        sums[LID] = sum;
        if (column == 0) lengths[part] = products;
        barrier();
        sum = sums[column];
        products = lengths[0];
        [[unroll]] for (uint i = 1; i < PARTS; i++) {
            sum += sums[i * TILE_N + column];
            products += lengths[i];
        }
        float k_scale = 1.0 / sqrt(products.y + p.eps);
        float q_scale = 1.0 / sqrt(products.x + p.eps) / sqrt(float(p.key_dim));
        float error = used ? beta * (v - g * (sum.x * k_scale)) : 0.0;
        [[unroll]] for (uint i = 0; i < EACH; i++) s[i] = g * s[i] + k[key + first + i] * (error * k_scale);
        if (part == 0 && n < p.value_dim) {
            float made = g * (sum.y * q_scale) + products.z * k_scale * q_scale * error;
            result[(t * p.n_heads + head) * p.value_dim + n] = used ? made : 0.0;
        }
    }
    [[unroll]] for (uint i = 0; i < EACH; i++)
        if (sequence >= 0 && i < held) state[at + i * p.value_dim] = s[i];
}
