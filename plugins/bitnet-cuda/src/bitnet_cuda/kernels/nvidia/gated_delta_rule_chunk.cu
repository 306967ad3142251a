// gated_delta_rule, CHUNK rows of a sequence at a time (Yang et al. 2024, arXiv 2412.06464, section 3.3), with the
// products of tensor_f32.cuh. G_i: the sum of the logarithms of decays up to row i of a chunk; S[key_dim, value_dim]:
// the state before it.
//   L_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i;  M_ij = exp(G_i - G_j) q_i . k_j for j <= i
//   X = (1 + L)^-1 diag(beta) (V - diag(exp G) K S);  out = diag(exp G) Q S + M X
//   S = exp(G_last) S + K^T diag(exp(G_last - G)) X
// Exponents are never above 0. A chunk ends where the position is a multiple of CHUNK, so that the result does not
// depend on how a prompt was divided into steps at such positions. Half of the warps have 16 rows of K each, the others
// 16 rows of Q. A block computes TILE_N columns of a head's state. KEY: key_dim.
#include "prelude.cuh"
#include "delta_gates.cuh"
#include "tensor_f32.cuh"

#define TILES (CHUNK / 16)  // also half the warps
#define N_TILES (TILE_N / 8)
#define KEY_PITCH (KEY + 8)  // floats between rows in shared memory, against bank conflicts
#define PAIR_PITCH (CHUNK + 8)
#define COLUMN_PITCH (TILE_N + 4)
#define WARPS (GROUP / 32)
#define ROWS (CHUNK / WARPS)  // rows that a warp loads
#define PARTS ((KEY + 31) / 32)
#define VALUES (CHUNK * TILE_N / GROUP)

struct Shared {
    float q[CHUNK * KEY_PITCH], k[CHUNK * KEY_PITCH], l[CHUNK * PAIR_PITCH], m[CHUNK * PAIR_PITCH];
    float s[KEY * COLUMN_PITCH], x[CHUNK * COLUMN_PITCH];
    float log[CHUNK], sum[CHUNK], weight[CHUNK], beta[CHUNK];  // sum: G; weight: exp(G_last - G)
};

// Rows t.. of the sequence at ascending positions, at most CHUNK.
__device__ inline u32 chunk_rows(const Row* step, u32 t, u32 rows) {
    u32 lane = threadIdx.x % 32, rest = 0;
    Row first = step[t];
    u32 most = min(rows - t, CHUNK - (u32)first.position % CHUNK);
    for (u32 i = lane; i < CHUNK; i += 32) {
        bool in = i < most;
        Row row = step[t + (in ? i : 0)];
        if (!in || row.sequence != first.sequence || row.position != first.position + (int)i) rest = max(rest, CHUNK - i);
    }
    return CHUNK - warp_max_bits(rest);
}

// A thread's share of a chunk's inputs, loaded while the chunk before is computed; zeros past the last row. Keys and
// queries: elements lane + 32 j of row warp + WARPS r.
struct Inputs {
    float q[ROWS][PARTS], k[ROWS][PARTS], v[VALUES], log, beta;

    // query, value: of the first row. keys: elements from a query to its key.
    __device__ void load(const float* query, size_t keys, const float* value, size_t stride, u32 n) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++)
#pragma unroll
            for (u32 j = 0; j < PARTS; j++) {
                u32 row = warp + WARPS * r, key = lane + 32 * j;
                bool in = row < n && key < KEY;
                q[r][j] = in ? query[row * stride + key] : 0.0f;
                k[r][j] = in ? query[row * stride + keys + key] : 0.0f;
            }
#pragma unroll
        for (u32 j = 0; j < VALUES; j++) {
            u32 i = threadIdx.x + GROUP * j;
            v[j] = i / TILE_N < n ? value[i / TILE_N * stride + i % TILE_N] : 0.0f;
        }
    }
    __device__ void load_gates(const Gates& gate, u32 first, u32 n) {
        bool in = threadIdx.x < n;
        log = in ? gate.log_decay(first + threadIdx.x) : 0.0f;
        beta = in ? gate.beta(first + threadIdx.x) : 0.0f;
    }
    __device__ void store(Shared& shared, float eps) const {
        store_units(shared.q, q, 1.0f / sqrtf((float)KEY), eps);
        store_units(shared.k, k, 1.0f, eps);
#pragma unroll
        for (u32 j = 0; j < VALUES; j++) {
            u32 i = threadIdx.x + GROUP * j;
            shared.x[i / TILE_N * COLUMN_PITCH + i % TILE_N] = v[j];
        }
        if (threadIdx.x >= CHUNK) return;
        shared.log[threadIdx.x] = log < -100.0f ? -100.0f : log;  // e^-100 is below all normal numbers, and sums stay exact enough
        shared.beta[threadIdx.x] = beta;
    }
    // Normalizes the rows to unit length, times scale.
    __device__ static void store_units(float* to, const float (&rows)[ROWS][PARTS], float scale, float eps) {
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            float squares = 0.0f;
#pragma unroll
            for (u32 j = 0; j < PARTS; j++) squares += rows[r][j] * rows[r][j];
            float norm = scale / sqrtf(warp_sum(squares) + eps);
#pragma unroll
            for (u32 j = 0; j < PARTS; j++)
                if (lane + 32 * j < KEY) to[(warp + WARPS * r) * KEY_PITCH + lane + 32 * j] = rows[r][j] * norm;
        }
    }
};

// Loads (or stores) the state.
template <class F>
__device__ inline void each_of_state(F act) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < KEY * TILE_N; i += GROUP) act(i / TILE_N, i % TILE_N);
}

// Replaces the 16 x 16 block of l at (first, first) by the inverse of 1 + itself; a lane solves for a column.
__device__ inline void invert(float* l, u32 first) {
    float* block = l + first * PAIR_PITCH + first;
    u32 column = threadIdx.x % 16;
    float v[16];
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        v[i] = i == column ? 1.0f : 0.0f;
#pragma unroll
        for (u32 j = 0; j < i; j++) v[i] -= block[i * PAIR_PITCH + j] * v[j];
    }
    sync_warp();
    if (threadIdx.x % 32 < 16)
#pragma unroll
        for (u32 i = 0; i < 16; i++) block[i * PAIR_PITCH + column] = v[i];
    sync_warp();
}

// x = (1 + L)^-1 x, eight columns per warp: 16 rows at a time, with the inverted blocks on the diagonal.
__device__ inline void solve(Shared& shared, u32 used) {
    for (u32 n = threadIdx.x / 32; n < N_TILES; n += GROUP / 32) {
        float* x = shared.x + 8 * n;
        for (u32 tile = 0; tile < used; tile++) {
            const float* row = shared.l + 16 * tile * PAIR_PITCH;
            float *to = x + 16 * tile * COLUMN_PITCH, before[1][4] = {}, solved[1][4] = {};
            multiply(before, Rows{row, PAIR_PITCH}, Columns{x, COLUMN_PITCH}, 2 * tile);
            each_element(before, [=](u32 i, u32 j, float v) { to[i * COLUMN_PITCH + j] -= v; });
            sync_warp();
            multiply(solved, Rows{row + 16 * tile, PAIR_PITCH}, Columns{to, COLUMN_PITCH}, 2);
            sync_warp();
            each_element(solved, [=](u32 i, u32 j, float v) { to[i * COLUMN_PITCH + j] = v; });
            sync_warp();
        }
    }
}

// Computes rows of L or M, and the state's contribution to them, into x or o.
__device__ inline void with_state(Shared& shared, u32 first, bool is_q, float (&o)[N_TILES][4]) {
    Rows mine = {(is_q ? shared.q : shared.k) + first * KEY_PITCH, KEY_PITCH};
    float pairs[2 * TILES][4] = {};
    multiply(pairs, mine, ColumnsOfRows{shared.k, KEY_PITCH}, KEY / 8, first / 8 + 2);
    float* to = is_q ? shared.m : shared.l;
    each_element(pairs, [&](u32 i, u32 j, float v) {
        u32 row = first + i;
        if (j >= first + 16) return;
        float weight = expf(fminf(shared.sum[row] - shared.sum[j], 0.0f)) * (is_q ? 1.0f : shared.beta[row]);
        to[row * PAIR_PITCH + j] = j < row || (is_q && j == row) ? v * weight : 0.0f;
    });
    if (!is_q) {
        sync_warp();
        invert(shared.l, first);
    }
    multiply(o, mine, Columns{shared.s, COLUMN_PITCH}, KEY / 8);
    each_element(o, [&](u32 i, u32 j, float& v) {
        float* x = shared.x + (first + i) * COLUMN_PITCH + j;
        v *= expf(shared.sum[first + i]);
        if (!is_q) *x = shared.beta[first + i] * (*x - v);
    });
}

// Processes one chunk. v, out: of its first row and the block's first column.
__device__ inline void chunk(Shared& shared, u32 n, float* out, size_t out_stride) {
    u32 warp = threadIdx.x / 32, used = (n + 15) / 16;
    bool is_q = warp >= TILES;
    u32 tile = is_q ? 2 * TILES - 1 - warp : warp, first = 16 * tile;  // pairs a long with a short row on each scheduler
    float o[N_TILES][4] = {};
    if (tile < used) with_state(shared, first, is_q, o);
    __syncthreads();
    solve(shared, used);
    __syncthreads();
    if (is_q && tile < used) {
        multiply(o, Rows{shared.m + first * PAIR_PITCH, PAIR_PITCH}, Columns{shared.x, COLUMN_PITCH}, 2 * (tile + 1));
        each_element(o, [=](u32 i, u32 j, float v) {
            if (first + i < n) out[(first + i) * out_stride + j] = v;
        });
    }
    float last = expf(shared.sum[CHUNK - 1]);
    for (u32 key = 16 * warp; key < KEY; key += GROUP / 2) {
        float s[N_TILES][4] = {}, *to = shared.s + key * COLUMN_PITCH;
        multiply(s, WeightedColumns{shared.k + key, shared.weight, KEY_PITCH}, Columns{shared.x, COLUMN_PITCH}, 2 * used);
        each_element(s, [=](u32 i, u32 j, float v) { to[i * COLUMN_PITCH + j] = last * to[i * COLUMN_PITCH + j] + v; });
    }
}

KERNEL gated_delta_rule(const float* qkv, const float* gates, const float* rate, const float* dt, const Row* step, float* state,
                        float* out, u32 rows, u32 n_heads, u32 n_key_heads, u32 key_dim, u32 value_dim, float eps) {
    DYNAMIC_SHARED(float, memory);
    Shared& shared = *(Shared*)memory;
    u32 head = blockIdx.x, n0 = blockIdx.y * TILE_N, keys = n_key_heads * KEY, n;
    size_t stride = 2 * keys + n_heads * value_dim, out_stride = (size_t)n_heads * value_dim;
    Gates gate = {gates, rate, dt, n_heads, head};
    float* at = state;
    int sequence = -1;
    auto keep = [&] {
        if (sequence >= 0) each_of_state([&](u32 i, u32 j) { at[(size_t)i * value_dim + j] = shared.s[i * COLUMN_PITCH + j]; });
    };
    Inputs inputs;
    // Starts to load the chunk at t, stores zeros for unused rows before it, and returns its first row and n rows.
    auto begin = [&](u32 t) {
        for (; t < rows && step[t].position < 0; t++)
            for (u32 j = threadIdx.x; j < TILE_N; j += GROUP) out[t * out_stride + head * value_dim + n0 + j] = 0.0f;
        n = t < rows ? chunk_rows(step, t, rows) : 0;
        const float *mixed = qkv + t * stride, *query = mixed + head % n_key_heads * KEY;
        inputs.load(query, keys, mixed + 2 * keys + head * value_dim + n0, stride, n);
        inputs.load_gates(gate, t, n);
        return t;
    };
    let_next_start();
    wait_for_previous();
    for (u32 t = begin(0); n;) {
        Row row = step[t];
        __syncthreads();
        if (row.sequence != sequence) {
            keep();
            sequence = row.sequence;
            at = state + ((size_t)sequence * n_heads + head) * KEY * value_dim + n0;
            each_of_state([&](u32 i, u32 j) {
                shared.s[i * COLUMN_PITCH + j] = row.position ? at[(size_t)i * value_dim + j] : 0.0f;
            });
        }
        inputs.store(shared, eps);
        float* to = out + t * out_stride + head * value_dim + n0;
        u32 used = n;
        t = begin(t + n);
        __syncthreads();
        if (threadIdx.x < CHUNK) {
            float sum = 0.0f, after = 0.0f;
            for (u32 i = 0; i < CHUNK; i++) (i <= threadIdx.x ? sum : after) += shared.log[i];
            shared.sum[threadIdx.x] = sum;
            shared.weight[threadIdx.x] = expf(after);
        }
        __syncthreads();
        chunk(shared, used, to, out_stride);
    }
    __syncthreads();
    keep();
}
