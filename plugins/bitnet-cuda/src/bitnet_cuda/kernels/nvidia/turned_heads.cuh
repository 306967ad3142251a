// A row's four query heads (zeros from H on), its key and its value, normed (QKNORM 1) and rotated, as f16: warps 0 to
// 5 have a head each, key 4 and value 5, and a lane TWOS pairs of neighbouring elements of each half. Angles and gammas
// are loaded before the preceding kernels have finished.
struct alignas(8) Two {
    float x, y;
};

// The row's heads as f16: high parts of queries, their low parts, newest key and value. Rows are padded against bank
// conflicts.
struct Heads {
    Words queries[8][CHUNKS + 4], fresh[2][CHUNKS];
};

#define TWOS ((DIM + 127) / 128)

struct TurnedHeads {
    Two gamma[TWOS][2];
    CosSin angle[TWOS][2];

    // The first of a lane's elements; the others are the next, and those DIM / 2 further on.
    __device__ static u32 first(int i) { return threadIdx.x % 32 * 2 + 64 * i; }
    __device__ static bool mine(int i) { return threadIdx.x / 32 < 6 && first(i) < DIM / 2; }

    __device__ void load(const CosSin* angles, const float* q_gamma, const float* k_gamma) {
        u32 warp = threadIdx.x / 32;
        if (warp > 4) return;
        const float* from = warp < 4 ? q_gamma : k_gamma;
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            u32 d = first(i);
            if (!mine(i)) continue;
            angle[i][0] = angles[INTERLEAVED ? d / 2 : d];
            angle[i][1] = angles[INTERLEAVED ? d / 2 + DIM / 4 : d + 1];
            if (QKNORM) gamma[i][0] = *(const Two*)(from + d), gamma[i][1] = *(const Two*)(from + d + DIM / 2);
        }
    }

    __device__ void norm(Two (&low)[TWOS], Two (&high)[TWOS], float eps) const {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < TWOS; i++)
            squares += low[i].x * low[i].x + low[i].y * low[i].y + high[i].x * high[i].x + high[i].y * high[i].y;
        float inverse = head_inverse(warp_sum(squares), DIM, eps);
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            low[i] = {low[i].x * inverse * gamma[i][0].x, low[i].y * inverse * gamma[i][0].y};
            high[i] = {high[i].x * inverse * gamma[i][1].x, high[i].y * inverse * gamma[i][1].y};
        }
    }

    __device__ void turn(Two& low, Two& high, int i) const {
        CosSin c = angle[i][0], e = angle[i][1];
        Two a = low, b = high;
        if (INTERLEAVED) {
            low = {a.x * c.cos - a.y * c.sin, a.y * c.cos + a.x * c.sin};
            high = {b.x * e.cos - b.y * e.sin, b.y * e.cos + b.x * e.sin};
        } else {
            low = {a.x * c.cos - b.x * c.sin, a.y * e.cos - b.y * e.sin};
            high = {b.x * c.cos + a.x * c.sin, b.y * e.cos + a.y * e.sin};
        }
    }

    __device__ static void write(Heads& to, const Two& low, const Two& high, u32 d) {
        u32 warp = threadIdx.x / 32, rounded[2], rest[2], *words = (u32*)(warp < 4 ? to.queries[warp] : to.fresh[warp - 4]);
        split_halves(low.x, low.y, rounded[0], rest[0]);
        split_halves(high.x, high.y, rounded[1], rest[1]);
        words[d / 2] = rounded[0], words[d / 2 + DIM / 4] = rounded[1];
        if (warp < 4) {
            words = (u32*)to.queries[4 + warp];
            words[d / 2] = rest[0], words[d / 2 + DIM / 4] = rest[1];
        }
    }

    // head_of(which): query head, key (H) or value (H + 1). Ends with a barrier of the block.
    template <class HeadOf>
    __device__ void store(Heads& to, HeadOf head_of, float eps) const {
        u32 warp = threadIdx.x / 32;
        bool used = warp < H || (warp >= 4 && warp < 6);
        Two low[TWOS], high[TWOS];
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            low[i] = high[i] = {0.0f, 0.0f};
            if (!used || !mine(i)) continue;
            const float* x = head_of(warp < 4 ? warp : warp - 4 + H) + first(i);
            low[i] = *(const Two*)x, high[i] = *(const Two*)(x + DIM / 2);
        }
        if (QKNORM && warp <= 4) norm(low, high, eps);
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            if (!mine(i)) continue;
            if (used && warp <= 4) turn(low[i], high[i], i);
            write(to, low[i], high[i], first(i));
        }
        __syncthreads();
    }
};
