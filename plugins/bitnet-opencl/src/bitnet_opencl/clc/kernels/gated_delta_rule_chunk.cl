// gated_delta_rule, up to CHUNK rows of a sequence at a time (Yang et al. 2024, arXiv 2412.06464, section 3.3). G_i:
// the sum of the logarithms of decays up to row i of a chunk; S: the state before it.
//   L_ij = beta_i exp(G_i - G_j) k_i . k_j for j < i;  M_ij = exp(G_i - G_j) q_i . k_j for j <= i
//   X = (1 + L)^-1 diag(beta) (V - diag(exp G) K S);  out = diag(exp G) Q S + M X
//   S = exp(G_last) S + K^T diag(exp(G_last - G)) X
// Exponents are never above 0. A chunk ends where the position is a multiple of CHUNK, so that the result does not
// depend on how a prompt was divided into steps at such positions. Shapes as in gated_delta_rule.cl.
// Group: TILE_N columns of a head's state. A work-item holds EACH keys of one column in registers. Sums over keys are
// reduced in local memory, PARTS rows at a time: as many as there are work-items per column.
#define CHUNK 16
#define PARTS (GROUP / TILE_N)
#define QUADS (EACH / 4)
#define KEY_QUADS (PARTS * QUADS)
#define PITCH (KEY_QUADS + 1)  // against bank conflicts
#define LEAST_LOG -100.0f      // e^-100 is below all normal numbers; sums of logarithms stay exact enough
#define EACH_QUAD                      \
    UNROLL                             \
    for (uint i = 0; i < QUADS; ++i)
#define EACH_ROW                       \
    UNROLL                             \
    for (uint i = 0; i < CHUNK; ++i)

// Rows t.. of the sequence at ascending positions, at most CHUNK.
INLINE uint chunk_rows(__global const int *step, uint t, uint rows) {
    const int position = step[4 * t + 1], owner = step[4 * t + 3];
    const uint most = min(rows - t, CHUNK - (uint)position % CHUNK);
    uint n = most;
    EACH_ROW {
        const __global int *row = step + 4 * (t + min(i, most - 1));
        if (i < most && (row[3] != owner || row[1] != position + (int)i)) n = min(n, i);
    }
    return n;
}

// Loads or stores a work-item's part of the state; loads zeros at position 0.
INLINE void load_state(float4 *s, __global const float *at, uint held, uint stride) {
    EACH_QUAD {
        const uint key = 4 * i;
        s[i].x = key < held ? at[(ulong)key * stride] : 0;
        s[i].y = key + 1 < held ? at[(ulong)(key + 1) * stride] : 0;
        s[i].z = key + 2 < held ? at[(ulong)(key + 2) * stride] : 0;
        s[i].w = key + 3 < held ? at[(ulong)(key + 3) * stride] : 0;
    }
}
INLINE void store_state(const float4 *s, __global float *at, uint held, uint stride) {
    EACH_QUAD {
        const uint key = 4 * i;
        if (key < held) at[(ulong)key * stride] = s[i].x;
        if (key + 1 < held) at[(ulong)(key + 1) * stride] = s[i].y;
        if (key + 2 < held) at[(ulong)(key + 2) * stride] = s[i].z;
        if (key + 3 < held) at[(ulong)(key + 3) * stride] = s[i].w;
    }
}
INLINE float total(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// Returns a row of `rows` times a work-item's part of the state.
INLINE float with_state(__local const float4 *row, const float4 *s) {
    float4 sum = 0;
    EACH_QUAD sum = fma(row[i], s[i], sum);
    return total(sum);
}

// Returns the sum over keys of row `first + LID / TILE_N` times the work-item's column of the state.
INLINE float meet(__local const float4 *rows, const float4 *s, __local float *partial, uint first) {
    const uint lid = get_local_id(0), part = lid / TILE_N, column = lid % TILE_N;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL
    for (uint r = 0; r < PARTS; ++r)
        partial[(r * PARTS + part) * TILE_N + column] = with_state(rows + (first + r) * PITCH + part * QUADS, s);
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0;
    UNROLL
    for (uint i = 0; i < PARTS; ++i) sum += partial[(part * PARTS + i) * TILE_N + column];
    return sum;
}

// Loads the queries and keys of a chunk's rows, zeros past `count` rows and key_dim. mixed: qkv from row t on.
INLINE void load_rows(__local float *q, __local float *k, __global const float *mixed, uint count, uint key_head,
                      uint key_dim, uint keys, uint width) {
    for (uint i = get_local_id(0); i < CHUNK * 4 * KEY_QUADS; i += GROUP) {
        const uint row = i / (4 * KEY_QUADS), key = i % (4 * KEY_QUADS);
        const bool used = row < count && key < key_dim;
        __global const float *query = mixed + (ulong)row * width + key_head * key_dim + key;
        q[row * 4 * PITCH + key] = used ? query[0] : 0;
        k[row * 4 * PITCH + key] = used ? query[keys] : 0;
    }
}

// Returns the logarithm of a row's decay: rate * softplus(z).
INLINE float log_decay(float z, float rate) {
    const float decay = rate * (fmax(z, 0.0f) + log1p(exp(-fabs(z))));
    return decay < LEAST_LOG ? LEAST_LOG : decay;
}

// Loads the gates of a chunk's rows: betas, and the sums of the logarithms of decays. gates, rate, dt: the head's. n:
// number of heads, the distance between gates. Includes a barrier that also covers earlier loads.
INLINE void load_gates(__local float *sums, __local float *betas, __local float *logs, __global const float *gates,
                       float rate, float dt, uint count, uint n) {
    const uint lid = get_local_id(0);
    if (lid < CHUNK) {
        __global const float *gate = gates + (ulong)min(lid, count - 1) * 2 * n;
        logs[lid] = lid < count ? log_decay(gate[0] + dt, rate) : 0;
        betas[lid] = lid < count ? 1.0f / (1.0f + exp(-gate[n])) : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lid < CHUNK) {
        float sum = 0;
        for (uint i = 0; i <= lid; ++i) sum += logs[i];
        sums[lid] = sum;
    }
}

// Computes the products of pairs, l = k . k and m = q . k; those of a row with itself give the lengths.
INLINE void multiply_pairs(__local float (*l)[CHUNK], __local float (*m)[CHUNK], __local float *q_scales,
                           __local float *k_scales, __local const float4 *q, __local const float4 *k, uint key_dim,
                           float eps) {
    for (uint i = get_local_id(0); i < CHUNK * CHUNK; i += GROUP) {
        const uint row = i / CHUNK, other = i % CHUNK;
        float4 kk = 0, qk = 0, qq = 0;
        for (uint j = 0; j < KEY_QUADS; ++j) {
            const float4 a = k[row * PITCH + j], b = q[row * PITCH + j], c = k[other * PITCH + j];
            kk = fma(a, c, kk);
            qk = fma(b, c, qk);
            qq = fma(b, b, qq);
        }
        l[row][other] = total(kk);
        m[row][other] = total(qk);
        if (row == other) {
            k_scales[row] = 1.0f / sqrt(total(kk) + eps);
            q_scales[row] = 1.0f / sqrt(total(qq) + eps) / sqrt((float)key_dim);
        }
    }
}

// Computes L and M from the products of pairs.
INLINE void weigh_pairs(__local float (*l)[CHUNK], __local float (*m)[CHUNK], __local const float *q_scales,
                        __local const float *k_scales, __local const float *sums, __local const float *betas) {
    for (uint i = get_local_id(0); i < CHUNK * CHUNK; i += GROUP) {
        const uint row = i / CHUNK, other = i % CHUNK;
        const float weight = exp(fmin(sums[row] - sums[other], 0.0f)) * k_scales[other];
        l[row][other] = other < row ? l[row][other] * weight * k_scales[row] * betas[row] : 0;
        m[row][other] = other <= row ? m[row][other] * weight * q_scales[row] : 0;
    }
}

// Computes x = diag(beta) (V - diag(exp G) K S) in a column. values: the column of V, with rows `width` apart.
INLINE void subtract_known(__local float (*x)[TILE_N], __local const float4 *k, const float4 *s, __local float *partial,
                           __local const float *k_scales, __local const float *sums, __local const float *betas,
                           __global const float *values, uint count, uint width) {
    const uint part = get_local_id(0) / TILE_N, column = get_local_id(0) % TILE_N;
    for (uint r = 0; r < CHUNK; r += PARTS) {
        const uint row = r + part;
        const float given = meet(k, s, partial, r) * k_scales[row] * exp(sums[row]);
        const float v = row < count ? values[(ulong)row * width] : 0;
        x[row][column] = betas[row] * (v - given);
    }
}

// Solves (1 + L) X = x in a column of x.
INLINE void solve(__local float (*l)[CHUNK], __local float (*x)[TILE_N], uint column) {
    float solved[CHUNK];
    EACH_ROW {
        solved[i] = x[i][column];
        UNROLL
        for (uint j = 0; j < i; ++j) solved[i] = fma(-l[i][j], solved[j], solved[i]);
    }
    EACH_ROW x[i][column] = solved[i];
}

// Computes out = diag(exp G) Q S + M X in a column. out: the column of the chunk's first row, with rows `width` apart.
INLINE void store_results(__global float *out, __local const float4 *q, const float4 *s, __local float *partial,
                          __local const float *q_scales, __local const float *sums, __local float (*m)[CHUNK],
                          __local float (*x)[TILE_N], uint count, uint width) {
    const uint part = get_local_id(0) / TILE_N, column = get_local_id(0) % TILE_N;
    for (uint r = 0; r < CHUNK; r += PARTS) {
        const uint row = r + part;
        float result = meet(q, s, partial, r) * q_scales[row] * exp(sums[row]);
        EACH_ROW result = fma(m[row][i], x[i][column], result);
        if (row < count) out[(ulong)row * width] = result;
    }
}

// Updates a work-item's part of the state after a chunk.
INLINE void advance_state(float4 *s, __local const float4 *k, __local const float *k_scales, __local const float *sums,
                          __local float (*x)[TILE_N], uint part, uint column) {
    const float last = sums[CHUNK - 1];
    EACH_QUAD s[i] *= exp(last);
    EACH_ROW {
        const float change = x[i][column] * k_scales[i] * exp(fmin(last - sums[i], 0.0f));
        UNROLL
        for (uint j = 0; j < QUADS; ++j) s[j] = fma(k[i * PITCH + part * QUADS + j], (float4)change, s[j]);
    }
}

KERNEL gated_delta_rule_chunk(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, qkv);
    AT_IN(float, gates);
    AT_IN(float, rate);
    AT_IN(float, dt);
    AT_IN(int, step);
    AT_OUT(float, state);
    AT_OUT(float, out);
    __local float4 q[CHUNK * PITCH], k[CHUNK * PITCH];
    __local float partial[PARTS * GROUP], l[CHUNK][CHUNK], m[CHUNK][CHUNK], x[CHUNK][TILE_N];
    __local float logs[CHUNK], sums[CHUNK], betas[CHUNK], q_scales[CHUNK], k_scales[CHUNK];
    const uint lid = get_local_id(0), part = lid / TILE_N, column = lid % TILE_N, first = part * EACH;
    const uint head = get_group_id(0), n = get_group_id(1) * TILE_N + column, keys = n_key_heads * key_dim;
    const uint held = n < value_dim && first < key_dim ? min((uint)EACH, key_dim - first) : 0;
    const uint width = 2 * keys + n_heads * value_dim;
    __global float *at = 0;  // the state that is in registers
    float4 s[QUADS];
    EACH_QUAD s[i] = 0;
    for (uint t = 0, count; t < rows; t += count) {
        const int position = step[4 * t + 1], owner = step[4 * t + 3];
        if (position < 0) {
            if (part == 0 && n < value_dim) out[((ulong)t * n_heads + head) * value_dim + n] = 0;
            count = 1;
            continue;
        }
        count = chunk_rows(step, t, rows);
        const uint used = n < value_dim ? count : 0;
        __global float *own = state + (((ulong)owner * n_heads + head) * key_dim + first) * value_dim + n;
        if (own != at) {
            if (at) store_state(s, at, held, value_dim);
            load_state(s, own, position > 0 ? held : 0, value_dim);
            at = own;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        __global const float *mixed = qkv + (ulong)t * width;
        load_rows((__local float *)q, (__local float *)k, mixed, count, head % n_key_heads, key_dim, keys, width);
        load_gates(sums, betas, logs, gates + (ulong)t * 2 * n_heads + head, rate[head], dt[head], count, n_heads);
        multiply_pairs(l, m, q_scales, k_scales, q, k, key_dim, eps);
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh_pairs(l, m, q_scales, k_scales, sums, betas);
        subtract_known(x, k, s, partial, k_scales, sums, betas, mixed + 2 * keys + head * value_dim + n, used, width);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid < TILE_N) solve(l, x, lid);
        store_results(out + ((ulong)t * n_heads + head) * value_dim + n, q, s, partial, q_scales, sums, m, x, used,
                      n_heads * value_dim);
        advance_state(s, k, k_scales, sums, x, part, column);
    }
    if (at) store_state(s, at, held, value_dim);
}
