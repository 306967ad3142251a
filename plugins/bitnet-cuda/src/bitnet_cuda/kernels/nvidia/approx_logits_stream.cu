// approx_logits on Hopper's warpgroup tensor cores (compute capability 9.0; width a multiple of 16), for several rows
// of x: logits[l,n] = scale[n] * sum_k codes[n,k] x[l,k]; bound[l,g] = max(logits[l,n] - error[n] |x[l]|) over the 64
// rows n of group g.
// Each row of x is scaled by a power of two that brings its largest value into [1, 2), rounded to integers of 2^-21 and
// split into three signed bytes with factors 2^16, 2^8 and 1: 22 bits as in matmul_dense_stream.cu. int8 codes are
// multiplied as stored.
// A block computes TILE_N rows of the head, BOXES * SPAN_N (256) at a time, by SPAN_T rows of x, in STAGES stages of
// 128 columns. MAKERS warpgroups fill stages in turns: one thread starts bulk copies of codes, all split x into bytes;
// two other warpgroups multiply. Sums of 512 rows leave no registers to load x ahead, so x then passes through shared
// memory. Rows of x with an Inf or NaN are computed last, in f32.
#include "prelude.cuh"
#include "bounds.cuh"
#include "tensor.cuh"
#include "barrier.cuh"
#include "ring.cuh"
#define COLUMNS (3 * SPAN_T)
#include "warpgroup_bytes.cuh"
#define ROWS_N (SPAN_N * BOXES)  // rows of the head in a stage
#define TILES (ROWS_N / 128)     // tiles of 64 rows for each multiplying warpgroup
#define PLANES (ROWS_N * 8)      // 16-byte words of a stage: codes, then the bytes of x
#define STAGE (PLANES + COLUMNS * 8)
#define GROUPS (TILE_N / 64)
#define MAKERS (GROUP / 128 - 2)
#define OWN (SPAN_T / 4)  // rows of x that a thread splits into bytes
#define SHARED_X (TILES * COLUMNS > 192)
#define AHEAD (SHARED_X ? 2 : 64 / SPAN_T)  // stages whose x is loaded ahead
#define FEWER (SHARED_X ? 40 : MAKERS == 2 ? 104 : 136)
#define MORE (SHARED_X ? 232 : MAKERS == 2 ? 152 : 184)

// Per row of x: the biased exponent of its power of two (0 if a value is not finite), and its length.
struct Rows {
    u32 exponent[SPAN_T];
    float length[SPAN_T];
};

__device__ inline void measure(Rows& of, const Floats* x, u32 rows, u32 width) {
    u32 lane = threadIdx.x % 32;
    for (u32 token = threadIdx.x / 32; token < SPAN_T; token += GROUP / 32) {
        const Floats* row = x + (size_t)min(token, rows - 1) * (width / 4);
        u32 largest = 0;
        float squares = 0.0f;
#pragma unroll 10
        for (u32 k = lane; k < width / 4; k += 32) {
            Floats v = row[k];
            float each[4] = {v.x, v.y, v.z, v.w};
            for (int i = 0; i < 4; i++) {
                largest = max(largest, __float_as_uint(each[i]) & 0x7fffffffu);
                squares += each[i] * each[i];
            }
        }
        u32 exponent = warp_max_bits(largest) >> 23;
        squares = warp_sum(squares);
        if (lane != 0) continue;
        of.exponent[token] = exponent == 255 ? 0 : max(254 - max(exponent, 1u), 1u);
        of.length[token] = length_from(squares);
    }
    __syncthreads();
}

// Returns the signed bytes of an integer of 2^-21 in [-2^22, 2^22] with factors 2^16, 2^8 and 1, as bytes 2, 1, 0.
__device__ inline u32 digits(float v) {
    u32 integer = __float_as_uint(v * 0x1p21f + 12582912.0f) - 0x4b400000u;
    return integer + 0x808080u ^ 0x808080u;
}

// Four columns of each of a thread's rows warp % 4, warp % 4 + 4, ... of a stage, loaded AHEAD stages ahead.
struct Coming {
#if SHARED_X
    Floats* v;  // [OWN][128] of all threads

    __device__ void load(const Floats* x, u32 chunk, u32 rows, u32 width) {
        u32 k = chunk * 32 + threadIdx.x % 32;
        bool wanted = k < width / 4;
#pragma unroll 4
        for (u32 i = 0; i < OWN; i++) {
            u32 row = min(threadIdx.x / 32 % 4 + 4 * i, rows - 1);
            copy_async_or_zero(v + i * 128 + threadIdx.x % 128, x + (wanted ? (size_t)row * (width / 4) + k : 0), wanted);
        }
        copy_group();
    }
    __device__ Floats at(u32 i) const { return v[i * 128 + threadIdx.x % 128]; }
#else
    Floats v[OWN];

    __device__ void load(const Floats* x, u32 chunk, u32 rows, u32 width) {
        u32 k = chunk * 32 + threadIdx.x % 32;
#pragma unroll
        for (u32 i = 0; i < OWN; i++) {
            u32 row = min(threadIdx.x / 32 % 4 + 4 * i, rows - 1);
            v[i] = k < width / 4 ? x[(size_t)row * (width / 4) + k] : Floats{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }
    __device__ Floats at(u32 i) const { return v[i]; }
#endif
    // Splits the values into bytes.
    __device__ void put(u32* planes, const Rows& of) const {
        u32 column = threadIdx.x % 32;
#pragma unroll(SHARED_X ? 2 : OWN)
        for (u32 i = 0; i < OWN; i++) {
            u32 row = threadIdx.x / 32 % 4 + 4 * i;
            Floats v = at(i);
            float factor = __uint_as_float(of.exponent[row] << 23);
            u32 a = digits(v.x * factor), b = digits(v.y * factor), c = digits(v.z * factor), d = digits(v.w * factor);
            u32 *to = planes + (row * 8 + (column / 4 ^ row % 8)) * 4 + column % 4, low = __byte_perm(a, b, 0x5140);
            u32 next = __byte_perm(c, d, 0x5140);
            to[0] = __byte_perm(__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062), 0x5410);
            to[SPAN_T * 32] = __byte_perm(low, next, 0x7632);
            to[SPAN_T * 64] = __byte_perm(low, next, 0x5410);
        }
    }
};

// Stores the sums of 64 rows n: approximate logits, and the best bound of each row of x among them.
__device__ inline void finish(const int* sums, u32 n, const Rows& of, float* logits, u32* lowest, const float* scale,
                              const float* error, u32 rows, u32 outs, u32 stride) {
    float factor[2], apart[2];
#pragma unroll
    for (int h = 0; h < 2; h++) factor[h] = scale[min(n + 8 * h, outs - 1)], apart[h] = error[min(n + 8 * h, outs - 1)];
#pragma unroll
    for (int i = 0; i < SPAN_T / 4; i++) {
        u32 token = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, best = 0;
        u32 exponent = of.exponent[token];
        float unit = exponent ? __uint_as_float((254 - exponent) << 23) * 0x1p-21f : quiet_nan();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int* own = sums + i / 2 * 4 + 2 * h + i % 2;
            float sum = (float)own[0] * 65536.0f + ((float)own[SPAN_T / 2] * 256.0f + (float)own[SPAN_T]);
            float approx = sum * unit * factor[h], low = approx - apart[h] * of.length[token];
            if (n + 8 * h >= outs) continue;
            if (token < rows) logits[(size_t)token * stride + n + 8 * h] = approx;
            best = max(best, not_finite(low) ? NOT_A_NUMBER : order_of(low));
        }
        for (int d = 4; d < 32; d *= 2) best = max(best, shuffle_xor(best, d));
        if (threadIdx.x % 32 < 4) atomicMax(lowest + token, best);
    }
}

// Approximate logits of the rows of x with a value that is not finite.
__device__ inline void approx_others(const Rows& of, const float* x, const signed char* codes, const float* scale,
                                    float* logits, u32 n_first, u32 rows, u32 outs, u32 width, u32 stride) {
    for (u32 token = 0; token < min(rows, (u32)SPAN_T); token++) {
        if (of.exponent[token]) continue;
        for (u32 n = n_first + threadIdx.x - 256; n < min(n_first + TILE_N, outs); n += 128 * MAKERS) {
            float sum = 0.0f;
            for (u32 k = 0; k < width; k++) sum += (float)codes[(size_t)n * width + k] * x[(size_t)token * width + k];
            logits[(size_t)token * stride + n] = sum * scale[n];
        }
    }
}

extern "C" __global__ void __launch_bounds__(GROUP, 1)
    approx_logits(const float* x, const signed char* codes, const float* scale, const float* error, float* logits,
                 float* bound, u32 rows, u32 outs, u32 width, u32 stride, const __grid_constant__ TensorMap table) {
    DYNAMIC_SHARED(Words, pool);
    __shared__ Barrier full[STAGES], empty[STAGES], done;
    __shared__ Rows of;
    __shared__ u32 lowest[GROUPS * SPAN_T];  // order_of the best bounds
    Words* stages = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = (width + 127) / 128;
    u32 block = blockIdx.y * gridDim.x + blockIdx.x;  // neighbouring blocks read the same codes, so that the L2 cache serves the second
    u32 n_first = block / gridDim.y * TILE_N, t_first = block % gridDim.y * SPAN_T;
    u32 count = (min((u32)TILE_N, outs - n_first) + ROWS_N - 1) / ROWS_N * chunks;
    auto copy = [&](u32 i, u32 stage) {
        barrier_expect(full + stage, ROWS_N * 128);
        for (u32 box = 0; box < BOXES; box++)
            copy_box(stages + stage * STAGE + box * SPAN_N * 8, table, i % chunks * 128, n_first + i / chunks * ROWS_N + box * SPAN_N,
                     full + stage);
    };
    let_next_start();
    u32 maker = warp / 4 - 2;  // filling warpgroups start at warp 8
    if (threadIdx.x == 256) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + i, 5);
            barrier_init(empty + i, 8);
        }
        barrier_init(&done, 8);
        show_barriers();
        for (u32 i = 0; i < min((u32)STAGES, count); i++) copy(i, i);
    }
    for (u32 i = threadIdx.x; i < GROUPS * SPAN_T; i += GROUP) lowest[i] = 0;
    __syncthreads();
    wait_for_previous();
    x += (size_t)t_first * width, logits += (size_t)t_first * stride;
    measure(of, (const Floats*)x, rows - t_first, width);
    if (warp >= 8) {
        fewer_registers<FEWER>();
        Ring at = {maker, 1};
        Coming coming[AHEAD];
#if SHARED_X
        for (u32 i = 0; i < AHEAD; i++) coming[i].v = (Floats*)(stages + STAGES * STAGE) + i * OWN * 128;
#endif
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) coming[i].load((const Floats*)x, (maker + i * MAKERS) % chunks, rows - t_first, width);
        for (u32 first = maker; first < count; first += AHEAD * MAKERS)
#pragma unroll
            for (u32 j = 0; j < AHEAD; j++) {
                u32 i = first + j * MAKERS;
                if (i >= count) break;
                barrier_wait(empty + at.stage, at.phase);
                if (threadIdx.x % 128 == 0 && i >= STAGES) copy(i, at.stage);
                if (SHARED_X) copy_wait<AHEAD - 1>();
                coming[j].put((u32*)(stages + at.stage * STAGE + PLANES), of);
                coming[j].load((const Floats*)x, (i + AHEAD * MAKERS) % chunks, rows - t_first, width);
                show_to_tensor_cores();
                sync_warp();
                if (lane == 0) barrier_arrive(full + at.stage);
                for (u32 n = 0; n < MAKERS; n++) at.step();
            }
        barrier_wait(&done, 0);
        u32 groups = (outs + 63) / 64;
        for (u32 i = threadIdx.x - 256; i < GROUPS * SPAN_T; i += 128 * MAKERS) {
            u32 token = t_first + i % SPAN_T, group = n_first / 64 + i / SPAN_T;
            if (token < rows && group < groups) bound[(size_t)token * groups + group] = number_of(lowest[i]);
        }
        approx_others(of, x, codes, scale, logits, n_first, rows - t_first, outs, width, stride);
        return;
    }
    more_registers<MORE>();
    u32 n = n_first + warp / 4 * (64 * TILES) + warp % 4 * 16 + lane / 4, chunk = 0;
    int sums[TILES][COLUMNS / 2];
    Ring at = {0, 0};
    for (u32 i = 0; i < count; i++, at.step()) {
        const Words* stage = stages + at.stage * STAGE;
        barrier_wait(full + at.stage, at.phase);
        warpgroup_arrive();
#pragma unroll
        for (int k = 0; k < 4 * TILES; k++)
            warpgroup_mma_bytes(sums[k % TILES], stage + (warp / 4 * TILES + k % TILES) * (64 * 8), stage + PLANES, k / TILES * 32,
                                chunk > 0 || k >= TILES);
        warpgroup_commit();
        warpgroup_wait<0>();
        if (lane == 0) barrier_arrive(empty + at.stage);
        if (++chunk < chunks) continue;
#pragma unroll
        for (int m = 0; m < TILES; m++)
            if (n / 64 * 64 + 64 * m < outs)
                finish(sums[m], n + 64 * m, of, logits, lowest + ((n - n_first) / 64 + m) * SPAN_T, scale, error,
                       rows - t_first, outs, stride);
        chunk = 0, n += ROWS_N;
    }
    sync_warp();
    if (lane == 0) barrier_arrive(&done);
}
