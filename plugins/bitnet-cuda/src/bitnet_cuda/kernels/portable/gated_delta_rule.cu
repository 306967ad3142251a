// For each row in sequence and each head h with its q, k, v, decay g and beta (see the catalogue): S = g S; S += k
// (beta (v - S^T k))^T; out = S^T q.
// A block computes COLUMNS columns of a head's state S[key_dim, value_dim] for every SHARES-th run of rows: SHARES =
// COLUMNS / TILE_N blocks share the runs. A thread holds EACH key elements of one column in registers during a run. Sums
// over keys use S from before the row: with u = S^T k, w = S^T q and e = beta (v - g u), out = g w + (k . q) e, so one
// block-wide reduction serves both.
#include "prelude.cuh"
#include "delta_gates.cuh"
#include "runs.cuh"

#define PARTS (GROUP / COLUMNS)
#define KEYS (PARTS * EACH)  // key_dim, rounded up

struct Sums {
    float u, w;
};

KERNEL gated_delta_rule(const float* qkv, const float* gates, const float* rate, const float* dt, const Row* step, float* state,
                        float* out, u32 rows, u32 n_heads, u32 n_key_heads, u32 key_dim, u32 value_dim, float eps) {
    __shared__ float q[2][KEYS], k[2][KEYS];
    __shared__ Sums parts[2][PARTS][COLUMNS];
    u32 head = blockIdx.x, keys = n_key_heads * key_dim, part = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    u32 blocks = (value_dim + COLUMNS - 1) / COLUMNS, share = blockIdx.y / blocks, shares = gridDim.y / blocks;
    u32 n = blockIdx.y % blocks * COLUMNS + column, bank = 0;
    bool mine = n < value_dim;
    Gates gate = {gates, rate, dt, n_heads, head};
    float s[EACH];
    let_next_start();
    if (share >= shares) return;
    auto each = [=](auto act) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (mine && part * EACH + i < key_dim) act(i, (size_t)(part * EACH + i) * value_dim);
    };
    auto compute = [&](u32 t) {
        float* to = out + ((size_t)t * n_heads + head) * value_dim + n;
        const float* mixed = qkv + (size_t)t * (2 * keys + n_heads * value_dim);
        const float* query = mixed + head % n_key_heads * key_dim;
        for (u32 i = threadIdx.x; i < KEYS; i += GROUP) {
            q[bank][i] = i < key_dim ? query[i] : 0.0f;
            k[bank][i] = i < key_dim ? query[keys + i] : 0.0f;
        }
        float v = mine ? mixed[2 * keys + head * value_dim + n] : 0.0f;
        float g = expf(gate.log_decay(t)), beta = gate.beta(t);
        __syncthreads();
        float qq = 0.0f, kk = 0.0f, kq = 0.0f;
        for (u32 i = threadIdx.x % 32; i < KEYS; i += 32) {
            float a = q[bank][i], b = k[bank][i];
            qq += a * a, kk += b * b, kq += a * b;
        }
        float q_scale = 1.0f / sqrtf(warp_sum(qq) + eps) / sqrtf((float)key_dim), k_scale = 1.0f / sqrtf(warp_sum(kk) + eps);
        kq = warp_sum(kq) * q_scale * k_scale;
        Sums sums = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            sums.u += s[i] * k[bank][part * EACH + i];
            sums.w += s[i] * q[bank][part * EACH + i];
        }
        parts[bank][part][column] = sums;
        __syncthreads();
        sums = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < PARTS; i++) sums.u += parts[bank][i][column].u, sums.w += parts[bank][i][column].w;
        float error = beta * (v - g * (sums.u * k_scale)), step_k = error * k_scale;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) s[i] = g * s[i] + k[bank][part * EACH + i] * step_k;
        if (mine && part == 0) *to = g * (sums.w * q_scale) + kq * error;
        bank ^= 1;
    };
    for (u32 t = share; t < rows; t += shares) {
        Row first = step[t];
        bool begins = run_begins(step, t), used = begins && first.position >= 0;
        float* at = state + ((size_t)max(first.sequence, 0) * n_heads + head) * key_dim * value_dim + n;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) s[i] = 0.0f;
        if (used && first.position > 0) each([&](u32 i, size_t from) { s[i] = at[from]; });
        if (t == share) wait_for_previous();
        if (begins && !used && mine && part == 0) out[((size_t)t * n_heads + head) * value_dim + n] = 0.0f;
        if (!used) continue;
        u32 row = t;
        compute(row);
        while (!run_ends(step, row, rows)) compute(++row);
        each([&](u32 i, size_t to) { at[to] = s[i]; });
    }
}
