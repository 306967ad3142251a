#version 450
#extension GL_GOOGLE_include_directive : require
#include "prelude.glsl"
// gated_delta_rule, up to CHUNK rows of a sequence at a time (Yang et al. 2024, arXiv 2412.06464, section 3.3). G_i:
// the sum of the logarithms of decays up to row i of a chunk; S: the state before it.
//   L_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i;  M_ij = exp(G_i - G_j) q_i . k_j for j <= i
//   X = (1 + L)^-1 diag(beta) (V - diag(exp G) K S);  out = diag(exp G) Q S + M X
//   S = exp(G_last) S + K^T diag(exp(G_last - G)) X
// Exponents are never above 0. A chunk ends where the position is a multiple of CHUNK, so that the result does not
// depend on how a prompt was divided into steps at such positions. Buffers and shapes as in gated_delta_rule.comp.
// One workgroup for TILE_N columns of a head's state. An invocation holds EACH keys of one column in registers. Sums
// over keys are reduced in shared memory, PARTS rows at a time: as many as there are invocations per column.
layout(std430, binding = 0) readonly buffer Qkv { float qkv[]; };
layout(std430, binding = 1) readonly buffer Gates { float gates[]; };
layout(std430, binding = 2) readonly buffer Rate { float rate[]; };
layout(std430, binding = 3) readonly buffer Dt { float dt[]; };
layout(std430, binding = 4) readonly buffer Step { ivec4 step_[]; };
layout(std430, binding = 5) buffer State { float state[]; };
layout(std430, binding = 6) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Params { uint rows, n_heads, n_key_heads, key_dim, value_dim; float eps; } p;

const uint CHUNK = 16, PARTS = GROUP / TILE_N, QUADS = EACH / 4, KEY_QUADS = PARTS * QUADS;
const uint PITCH = KEY_QUADS + 1;  // against bank conflicts
const float LEAST_LOG = -100.0;    // e^-100 is below all normal numbers; sums of logarithms stay exact enough
shared vec4 q[CHUNK * PITCH];
shared vec4 k[CHUNK * PITCH];
shared float partial[PARTS * GROUP];
shared float l[CHUNK * CHUNK];
shared float m[CHUNK * CHUNK];
shared float x[CHUNK * TILE_N];
shared float logs[CHUNK], sums[CHUNK], betas[CHUNK], q_scales[CHUNK], k_scales[CHUNK];

#include "softplus.glsl"

vec4 s[QUADS];  // keys 4 i .. of the invocation's part of a column

// Rows t.. of the sequence at ascending positions, at most CHUNK.
uint chunk_rows(uint t) {
    ivec4 head = step_[t];
    uint most = min(p.rows - t, CHUNK - uint(head.y) % CHUNK), n = most;
    [[unroll]] for (uint i = 0; i < CHUNK; i++) {
        ivec4 row = step_[t + min(i, most - 1)];
        if (i < most && (row.w != head.w || row.y != head.y + int(i))) n = min(n, i);
    }
    return n;
}

void load_state(uint at, uint held) {
    [[unroll]] for (uint i = 0; i < EACH; i++) s[i / 4][i % 4] = i < held ? state[at + i * p.value_dim] : 0.0;
}

void store_state(uint at, uint held) {
    [[unroll]] for (uint i = 0; i < EACH; i++)
        if (i < held) state[at + i * p.value_dim] = s[i / 4][i % 4];
}

float total(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// Returns the sum over keys of row `first + LID / TILE_N` of K or Q times the invocation's column of the state.
float meet(bool of_q, uint first) {
    uint part = LID / TILE_N, column = LID % TILE_N;
    barrier();
    [[unroll]] for (uint r = 0; r < PARTS; r++) {
        uint at = (first + r) * PITCH + part * QUADS;
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint i = 0; i < QUADS; i++) sum += (of_q ? q[at + i] : k[at + i]) * s[i];
        partial[(r * PARTS + part) * TILE_N + column] = total(sum);
    }
    barrier();
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < PARTS; i++) sum += partial[(part * PARTS + i) * TILE_N + column];
    return sum;
}

// Loads queries, keys, logarithms of decays and betas of the chunk at row t into shared memory; zeros past the last
// row.
void load_chunk(uint t, uint count, uint head, uint keys, uint width) {
    for (uint i = LID; i < CHUNK * KEY_QUADS; i += GROUP) {
        uint row = i / KEY_QUADS, quad = i % KEY_QUADS, from = (t + row) * width + head % p.n_key_heads * p.key_dim;
        vec4 query = vec4(0.0), key = vec4(0.0);
        [[unroll]] for (uint j = 0; j < 4; j++) {
            uint element = 4 * quad + j;
            if (row >= count || element >= p.key_dim) continue;
            query[j] = qkv[from + element];
            key[j] = qkv[from + keys + element];
        }
        q[row * PITCH + quad] = query;
        k[row * PITCH + quad] = key;
    }
    if (LID < CHUNK) {
        uint gate = (t + min(LID, count - 1)) * 2 * p.n_heads + head;
        float decay = rate[head] * softplus(gates[gate] + dt[head]);
        logs[LID] = LID < count ? (decay < LEAST_LOG ? LEAST_LOG : decay) : 0.0;
        betas[LID] = LID < count ? 1.0 / (1.0 + exp(-gates[gate + p.n_heads])) : 0.0;
    }
}

// Computes L and M. Products of a row with itself give the lengths.
void pair() {
    if (LID < CHUNK) {
        float sum = 0.0;
        for (uint i = 0; i <= LID; i++) sum += logs[i];
        sums[LID] = sum;
    }
    for (uint i = LID; i < CHUNK * CHUNK; i += GROUP) {
        uint row = i / CHUNK, other = i % CHUNK;
        vec4 kk = vec4(0.0), qk = vec4(0.0), qq = vec4(0.0);
        for (uint j = 0; j < KEY_QUADS; j++) {
            vec4 a = k[row * PITCH + j], b = q[row * PITCH + j], c = k[other * PITCH + j];
            kk += a * c;
            qk += b * c;
            qq += b * b;
        }
        l[i] = total(kk);
        m[i] = total(qk);
        if (row == other) {
            k_scales[row] = 1.0 / sqrt(total(kk) + p.eps);
            q_scales[row] = 1.0 / sqrt(total(qq) + p.eps) / sqrt(float(p.key_dim));
        }
    }
    barrier();
    for (uint i = LID; i < CHUNK * CHUNK; i += GROUP) {
        uint row = i / CHUNK, other = i % CHUNK;
        float weight = exp(min(sums[row] - sums[other], 0.0)) * k_scales[other];
        l[i] = other < row ? l[i] * weight * k_scales[row] * betas[row] : 0.0;
        m[i] = other <= row ? m[i] * weight * q_scales[row] : 0.0;
    }
}

// x = (1 + L)^-1 x, one column per invocation.
void solve() {
    if (LID >= TILE_N) return;
    float solved[CHUNK];
    [[unroll]] for (uint i = 0; i < CHUNK; i++) {
        solved[i] = x[i * TILE_N + LID];
        [[unroll]] for (uint j = 0; j < i; j++) solved[i] -= l[i * CHUNK + j] * solved[j];
    }
    [[unroll]] for (uint i = 0; i < CHUNK; i++) x[i * TILE_N + LID] = solved[i];
}

// Updates the state after the chunk.
void advance() {
    uint part = LID / TILE_N, column = LID % TILE_N;
    float last = sums[CHUNK - 1], decay = exp(last);
    [[unroll]] for (uint j = 0; j < QUADS; j++) s[j] *= decay;
    [[unroll]] for (uint i = 0; i < CHUNK; i++) {
        float change = x[i * TILE_N + column] * k_scales[i] * exp(min(last - sums[i], 0.0));
        [[unroll]] for (uint j = 0; j < QUADS; j++) s[j] += k[i * PITCH + part * QUADS + j] * change;
    }
}

void main() {
    uint part = LID / TILE_N, column = LID % TILE_N, first = part * EACH, head = gl_WorkGroupID.x;
    uint n = gl_WorkGroupID.y * TILE_N + column, keys = p.n_key_heads * p.key_dim, width = 2 * keys + p.n_heads * p.value_dim;
    uint held = n < p.value_dim && first < p.key_dim ? min(EACH, p.key_dim - first) : 0, at = 0, count;
    int sequence = -1;
    for (uint t = 0; t < p.rows; t += count) {
        int position = step_[t].y, owner = step_[t].w;
        if (position < 0) {
            if (part == 0 && n < p.value_dim) result[(t * p.n_heads + head) * p.value_dim + n] = 0.0;
            count = 1;
            continue;
        }
        count = chunk_rows(t);
        if (owner != sequence) {
            if (sequence >= 0) store_state(at, held);
            at = ((uint(owner) * p.n_heads + head) * p.key_dim + first) * p.value_dim + n;
            load_state(at, position > 0 ? held : 0);
            sequence = owner;
        }
        barrier();
        load_chunk(t, count, head, keys, width);
        barrier();
        pair();
        for (uint r = 0; r < CHUNK; r += PARTS) {
            uint row = r + part;
            float given = meet(false, r) * k_scales[row] * exp(sums[row]);
            float v = row < count && n < p.value_dim ? qkv[(t + row) * width + 2 * keys + head * p.value_dim + n] : 0.0;
            x[row * TILE_N + column] = betas[row] * (v - given);
        }
        barrier();
        solve();
        for (uint r = 0; r < CHUNK; r += PARTS) {
            uint row = r + part;
            float made = meet(true, r) * q_scales[row] * exp(sums[row]);
            [[unroll]] for (uint i = 0; i < CHUNK; i++) made += m[row * CHUNK + i] * x[i * TILE_N + column];
            if (row < count && n < p.value_dim) result[((t + row) * p.n_heads + head) * p.value_dim + n] = made;
        }
        advance();
    }
    if (sequence >= 0) store_state(at, held);
}
