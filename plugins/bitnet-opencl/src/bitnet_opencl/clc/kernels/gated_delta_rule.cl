// For each row, in order, and head h with its query q and key k (divided by their lengths, q by sqrt(key_dim) too),
// value v, decay g = exp(rate * softplus(a + dt)) and beta = 1 / (1 + exp(-b)): S = g S; S += k (beta (v - S^T k))^T;
// out = S^T q. Rows with position < 0 produce zeros and leave all states unchanged.
// qkv = [q | k | v] f32[rows, 2 n_key_heads key_dim + n_heads value_dim]; head h uses q and k of key head h %
// n_key_heads; gates = [a | b] f32[rows, 2 n_heads]; rate, dt f32[n_heads]; step i32[rows, 4]; state S f32[sequences,
// n_heads, key_dim, value_dim], zeros at position 0; out f32[rows, n_heads value_dim].
// Group: TILE_N columns of a head's state. A work-item holds EACH keys of one column in registers while rows belong to
// one sequence. Sums over keys use S from before the row: with u = S^T k, w = S^T q and e = beta (v - g u), out = g w +
// (k . q) e, so one reduction serves both.
#define PARTS (GROUP / TILE_N)
#define LOADS CEIL_DIV(PARTS * EACH, GROUP)
#define EACH_KEY                      \
    UNROLL                            \
    for (uint i = 0; i < EACH; ++i)
#define HELD(i) (mine && first + (i) < key_dim)
#define STATE(i) at[(ulong)(first + (i)) * value_dim]
// The queries, keys, a value and gates of a row, loaded into registers while the row before is computed.
#define READ_AHEAD(row)                                                                        \
    {                                                                                          \
        __global const float *mixed = qkv + (ulong)(row) * (2 * keys + n_heads * value_dim);   \
        __global const float *query = mixed + head % n_key_heads * key_dim;                    \
        UNROLL                                                                                 \
        for (uint j = 0; j < LOADS; ++j) {                                                     \
            const uint i = min(lid + j * GROUP, key_dim - 1);                                  \
            next_q[j] = query[i];                                                              \
            next_k[j] = query[keys + i];                                                       \
        }                                                                                      \
        next_v = mixed[2 * keys + head * value_dim + min(n, value_dim - 1)];                   \
        next_a = gates[(ulong)(row) * 2 * n_heads + head];                                     \
        next_b = gates[((ulong)(row) * 2 + 1) * n_heads + head];                               \
    }

KERNEL gated_delta_rule(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, qkv);
    AT_IN(float, gates);
    AT_IN(float, rate);
    AT_IN(float, dt);
    AT_IN(int, step);
    AT_OUT(float, state);
    AT_OUT(float, out);
    __local float q[PARTS * EACH], k[2][PARTS * EACH];  // k is read after the row's last barrier, so the next row uses the other copy
    __local float2 sums[PARTS][TILE_N];
    __local float4 lengths[PARTS];
    const uint lid = get_local_id(0), part = lid / TILE_N, column = lid % TILE_N, first = part * EACH;
    const uint head = get_group_id(0), n = get_group_id(1) * TILE_N + column, keys = n_key_heads * key_dim;
    const bool mine = n < value_dim;
    __global float *at = state;
    int sequence = -1;
    float s[EACH], next_q[LOADS], next_k[LOADS], next_v, next_a, next_b;
    EACH_KEY s[i] = 0;
    READ_AHEAD(0)
    for (uint t = 0; t < rows; ++t) {
        const int position = step[4 * t + 1], owner = step[4 * t + 3];
        const bool used = position >= 0;
        if (used && owner != sequence) {
            EACH_KEY if (sequence >= 0 && HELD(i)) STATE(i) = s[i];
            at = state + ((ulong)owner * n_heads + head) * key_dim * value_dim + n;
            EACH_KEY s[i] = position > 0 && HELD(i) ? STATE(i) : 0;
            sequence = owner;
        }
        __local float *key = k[t % 2];
        UNROLL
        for (uint j = 0; j < LOADS; ++j) {
            const uint i = lid + j * GROUP;
            if (i < PARTS * EACH) {
                q[i] = used && i < key_dim ? next_q[j] : 0;
                key[i] = used && i < key_dim ? next_k[j] : 0;
            }
        }
        const float v = next_v, z = next_a + dt[head], beta = 1.0f / (1.0f + exp(-next_b));
        const float g = used ? exp(rate[head] * (fmax(z, 0.0f) + log1p(exp(-fabs(z))))) : 1;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t + 1 < rows) READ_AHEAD(t + 1)
        float2 sum = 0;
        float4 length = 0;  // q . q, k . k, k . q
        EACH_KEY {
            const float qi = q[first + i], ki = key[first + i];
            sum = fma((float2)(ki, qi), s[i], sum);
            length = fma((float4)(qi, ki, ki, 0), (float4)(qi, ki, qi, 0), length);
        }
        sums[part][column] = sum;
        if (column == 0) lengths[part] = length;
        barrier(CLK_LOCAL_MEM_FENCE);
        sum = sums[0][column];
        length = lengths[0];
        UNROLL
        for (uint i = 1; i < PARTS; ++i) {
            sum += sums[i][column];
            length += lengths[i];
        }
        const float k_scale = 1.0f / sqrt(length.y + eps), q_scale = 1.0f / sqrt(length.x + eps) / sqrt((float)key_dim);
        const float error = used ? beta * (v - g * (sum.x * k_scale)) : 0;
        EACH_KEY s[i] = fma(key[first + i], error * k_scale, g * s[i]);
        if (mine && part == 0) {
            const float result = g * (sum.y * q_scale) + length.z * k_scale * q_scale * error;
            out[((ulong)t * n_heads + head) * value_dim + n] = used ? result : 0;
        }
    }
    EACH_KEY if (sequence >= 0 && HELD(i)) STATE(i) = s[i];
}
