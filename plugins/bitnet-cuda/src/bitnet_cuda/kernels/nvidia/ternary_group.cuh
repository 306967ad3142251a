// Ternary products of batches on Hopper's warpgroup tensor cores (compute capability 9.0): exact integers.
// A block computes M_TILES tiles of 64 weight rows x SPAN_T tokens over one of SPLITS parts of the columns; each of
// SHARES warpgroups has BLOCKS blocks of 128 of these. Everything is loaded once: a warpgroup has all its codes in
// flight, in registers, before the preceding kernels have finished, and afterwards the block loads all columns of the
// activations by bulk copies in the 128-byte swizzle. I2_S blocks are the A fragments (matmul_ternary_mma.cu): UNPACKED
// of them are unpacked before the preceding kernels have finished, others while the tensor cores work on the block
// before. A lane's two rows are neighbours.
#include "tensor.cuh"
#define CODE "u8"
#include "warpgroup.cuh"
#include "barrier.cuh"
#define PAIRS ((BLOCKS + 1) / 2)
#define SUMS (SPAN_T / 2)  // sums of a thread, before warpgroups add up

struct alignas(8) Pair {
    float v[2];
};

// Column blocks ready to be multiplied: UNPACKED of them before the preceding kernels have finished, two afterwards.
struct Fragments {
    u32 of[UNPACKED + (UNPACKED < BLOCKS ? 2 : 0)][4][4];
};

// Shared by a block besides the activations: their barrier, and the tokens' scales and sums of codes.
struct Shared {
    Barrier come[SHARES * BLOCKS];
    float scale[SPAN_T];
    int qsum[SPAN_T];
};

// Transposes words across lanes: of[i] becomes word t of lane i of each four neighbours, with t this lane's number.
__device__ inline void transpose(Words& of) {
    u32 t = threadIdx.x % 4;
    auto exchange = [=](u32& low, u32& high, int d) {  // exchanges the high word of lanes without bit d with the low one of lanes with it
        u32 other = shuffle_xor(t & d ? low : high, d);
        (t & d ? low : high) = other;
    };
    exchange(of.x, of.y, 1), exchange(of.z, of.w, 1);
    exchange(of.x, of.z, 2), exchange(of.y, of.w, 2);
}

// A thread's position.
struct Group {
    u32 thread, tile, share, t, n;  // n: its first weight row in the tile
    u32 first, end, blocks;         // its warpgroup's column blocks, of all
    u32 part_first, part_end;       // the block's
    Words* columns;

    __device__ Group(Words* pool, u32 width)
        : thread(threadIdx.x % 128), tile(threadIdx.x / 128 / SHARES), share(threadIdx.x / 128 % SHARES), t(thread % 4),
          n(thread / 32 * 16 + thread % 32 / 4 * 2), blocks(width / 128) {
        u32 part = (blocks + SPLITS - 1) / SPLITS;
        part_first = blockIdx.z * part, part_end = min(part_first + part, blocks);
        first = part_first + share * BLOCKS, end = min(first + BLOCKS, part_end);
        columns = pool + (0u - shared_address(pool) / 16) % 64;  // the swizzle counts from multiples of 1024 bytes
    }
    // Loads the codes of two weight rows, w + row_of(0) and row_of(1), two column blocks at a time: four lanes read 64
    // bytes.
    template <class RowOf>
    __device__ void load(Words (&codes)[PAIRS][2], const Words* w, RowOf row_of) const {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) {
            u32 at = 2 * (first + i / 2 * 2) + t;
            codes[i / 2][i % 2] = at < 2 * end ? load_streaming(w + row_of(i % 2) * (blocks * 2) + at) : Words{0, 0, 0, 0};
        }
    }
    __device__ void start_barriers(Shared& s) const {
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < SHARES * BLOCKS; i++) barrier_init(s.come + i, 1);
            show_barriers();
        }
        __syncthreads();
    }
    // Starts the copies of the activations.
    __device__ void copy(Shared& s, const TensorMap& tokens, const float* scale, const int* qsum, u32 t_first, u32 rows) const {
        if (tile == 0 && thread == 0)
            for (u32 b = first; b < end; b++) {
                Barrier* come = s.come + (b - part_first);
                barrier_expect(come, 128 * SPAN_T);
                copy_box(columns + (b - part_first) * SPAN_T * 8, tokens, b * 128, t_first, come);
            }
        if (threadIdx.x >= SPAN_T) return;
        u32 token = min(t_first + threadIdx.x, rows - 1);
        copy_async_word(s.scale + threadIdx.x, scale + token);
        copy_async_word(s.qsum + threadIdx.x, qsum + token);
        copy_group();
    }
    // Unpacks the four planes of a column block as A fragments.
    __device__ static void unpack(Words (&codes)[PAIRS][2], int b, u32 (&a)[4][4]) {
        Words *even = codes[b / 2], *odd = codes[b / 2] + 1;
        u32 packed[4] = {b % 2 ? even->z : even->x, b % 2 ? odd->z : odd->x, b % 2 ? even->w : even->y, b % 2 ? odd->w : odd->y};
#pragma unroll
        for (int i = 0; i < 16; i++) a[i / 4][i % 4] = settled((packed[i % 4] >> (6 - 2 * (i / 4))) & 0x03030303u);
    }
    // Prepares codes before activations arrive: puts them in the order of fragments, and unpacks the first UNPACKED
    // fragments.
    __device__ static void unpack_ahead(Words (&codes)[PAIRS][2], Fragments& a) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) transpose(codes[i / 2][i % 2]);
#pragma unroll
        for (int b = 0; b < UNPACKED; b++) unpack(codes, b, a.of[b]);
    }
    // Computes the sums of this warpgroup's columns; afterwards the activations are no longer needed.
    __device__ void multiply(Shared& s, Words (&codes)[PAIRS][2], Fragments& a, int (&acc)[SUMS]) const {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            u32 block = min(first + b, part_end - 1) - part_first;  // codes past the end are 0, so any activations will do
            barrier_wait(s.come + block, 0);
            int place = b < UNPACKED ? b : UNPACKED + b % 2;
            if (b >= UNPACKED) unpack(codes, b, a.of[place]);
            warpgroup_arrive();
#pragma unroll
            for (int p = 0; p < 4; p++) warpgroup_mma(acc, a.of[place][p], columns + block * SPAN_T * 8, p, b || p);
            warpgroup_commit();
            warpgroup_wait<1>();
        }
        warpgroup_wait<0>();
        copy_wait<0>();
        __syncthreads();
    }
    // Sums of all threads, in the place of the activations: those of a tile's share from [tile][share] on, one for each
    // of 128 threads.
    __device__ int* sums_of(u32 tile, u32 share) const { return (int*)columns + (tile * SHARES + share) * SUMS * 128 + thread; }
    __device__ void put(const int (&acc)[SUMS]) const {
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums_of(tile, share)[i * 128] = acc[i];
        __syncthreads();
    }
    // The memory after these sums.
    __device__ int* parts() const { return (int*)columns + max(SPAN_T * 32 * ((blocks + SPLITS - 1) / SPLITS), (u32)(SUMS * GROUP)); }
    // Returns the sum over all columns for row r (0 or 1) of this lane in a tile, and its token `at` of SPAN_T / 4.
    __device__ int sum(u32 tile, u32 at, u32 r) const {
        int dot = 0;
#pragma unroll
        for (int s = 0; s < SHARES; s++) dot += sums_of(tile, s)[(at / 2 * 4 + r * 2 + at % 2) * 128];
        return dot;
    }
    // Returns the index of that token in the block.
    __device__ u32 token(u32 at) const { return at / 2 * 8 + 2 * t + at % 2; }
};
