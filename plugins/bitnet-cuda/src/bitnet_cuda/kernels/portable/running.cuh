// Running softmaxes of a block's H heads over its share of a row's positions. LANES lanes share a cached position,
// eight elements each (kv_piece.cuh). Every group of lanes has its own softmaxes, which are combined at the end.
#include "attention_parts.cuh"

#define WARPS (GROUP / 32)
#define SLOTS (GROUP / LANES)
#define ROUND (UNROLL * SLOTS)  // positions that a block processes at a time

struct Running {
    float top[H], total[H], mixed[H][8];

    __device__ void clear() {
#pragma unroll
        for (int h = 0; h < H; h++) {
            top[h] = minus_infinity();
            total[h] = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) mixed[h][i] = 0.0f;
        }
    }

    // Processes positions first, first + SLOTS, ...; positions from `end` on are ignored.
    __device__ void add(const float (*q)[8], const Piece* keys, const Piece* values, u32 first, u32 end, float scale) {
        float scores[UNROLL][H], k[8], v[8];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(keys[u], k);
#pragma unroll
            for (int h = 0; h < H; h++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum += q[h][i] * k[i];
#pragma unroll
                for (int d = LANES / 2; d > 0; d >>= 1) sum += shuffle_xor(sum, d);
                scores[u][h] = first + u * SLOTS < end ? sum * scale : minus_infinity();
            }
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float before = top[h];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) top[h] = fmaxf(top[h], scores[u][h]);
            float rescale = before == top[h] ? 1.0f : expf(before - top[h]);
            total[h] *= rescale;
#pragma unroll
            for (int i = 0; i < 8; i++) mixed[h][i] *= rescale;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                scores[u][h] = first + u * SLOTS < end ? expf(scores[u][h] - top[h]) : 0.0f;
                total[h] += scores[u][h];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            unpack(values[u], v);
#pragma unroll
            for (int h = 0; h < H; h++)
#pragma unroll
                for (int i = 0; i < 8; i++) mixed[h][i] += scores[u][h] * v[i];
        }
    }

    // Combines the softmaxes of a warp's groups of lanes; all lanes get the result.
    __device__ void join_warp() {
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int d = LANES; d < 32; d *= 2) {
                float their_top = shuffle_xor(top[h], d), their_total = shuffle_xor(total[h], d);
                float both = fmaxf(top[h], their_top);
                float mine = share(top[h], total[h], both), other = share(their_top, their_total, both);
                top[h] = both;
                total[h] = total[h] * mine + their_total * other;
#pragma unroll
                for (int i = 0; i < 8; i++) mixed[h][i] = mixed[h][i] * mine + shuffle_xor(mixed[h][i], d) * other;
            }
    }
};

// Writes out of heads first_head .. first_head + H - 1 (counted over all rows) from all threads of the `splits` blocks
// that share their positions. All threads of a block must call this.
__device__ inline void finish(Running& r, u32* workspace, size_t first_head, u32 split, u32 splits, float* out) {
    __shared__ float mixed[WARPS][H][DIM], tops[WARPS][H], totals[WARPS][H];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, d0 = threadIdx.x % LANES * 8;
    r.join_warp();
#pragma unroll
    for (int h = 0; h < H; h++) {
        if (lane < LANES)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (d0 + i < DIM) mixed[warp][h][d0 + i] = r.mixed[h][i];
        if (lane == 0) {
            tops[warp][h] = r.top[h];
            totals[warp][h] = r.total[h];
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < H * DIM; i += GROUP) {
        u32 h = i / DIM, d = i % DIM;
        float top = minus_infinity(), total = 0.0f, sum = 0.0f;
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, tops[w][h]);
        for (int w = 0; w < WARPS; w++) {
            float part = share(tops[w][h], totals[w][h], top);
            total += totals[w][h] * part;
            sum += mixed[w][h][d] * part;
        }
        if (splits == 1) {
            out[(first_head + h) * DIM + d] = sum / total;
            continue;
        }
        float* part = attention_part(workspace, first_head + h, split);
        part[4 + d] = sum;
        if (d == 0) {
            part[0] = top;
            part[1] = total;
        }
    }
    if (splits == 1 || !last_to_arrive(workspace, first_head / H, splits)) return;
    join_parts(workspace, first_head, splits, out);
}
