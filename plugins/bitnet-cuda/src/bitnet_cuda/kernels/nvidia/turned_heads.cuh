// A row's four query heads (those from H on are zeros), its key and its value, normed (QKNORM 1) and rotated, as f16: warps 0 to 5
// have a head each, key 4 and value 5, and a lane two neighbouring elements of each half. Angles and gammas are asked for before the
// kernels ahead have ended.
struct alignas(8) Two {
    float x, y;
};

// The row's heads as f16: queries, what f16 leaves out of them, newest key and value. Rows are padded for the banks' sake.
struct Heads {
    Words queries[8][CHUNKS + 4], fresh[2][CHUNKS];
};

struct TurnedHeads {
    Two gamma[2];
    CosSin angle[2];

    // The first of a lane's elements; the others are the next, and those DIM / 2 further on.
    __device__ static u32 first() { return threadIdx.x % 32 * 2; }
    __device__ static bool mine() { return threadIdx.x / 32 < 6 && first() < DIM / 2; }

    __device__ void load(const CosSin* angles, const float* q_gamma, const float* k_gamma) {
        u32 warp = threadIdx.x / 32, d = first();
        if (warp > 4 || !mine()) return;
        angle[0] = angles[INTERLEAVED ? d / 2 : d];
        angle[1] = angles[INTERLEAVED ? d / 2 + DIM / 4 : d + 1];
        const float* from = warp < 4 ? q_gamma : k_gamma;
        if (QKNORM) gamma[0] = *(const Two*)(from + d), gamma[1] = *(const Two*)(from + d + DIM / 2);
    }

    __device__ void norm(Two& low, Two& high, float eps) const {
        float inverse = head_inverse(warp_sum(low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y), DIM, eps);
        low = {low.x * inverse * gamma[0].x, low.y * inverse * gamma[0].y};
        high = {high.x * inverse * gamma[1].x, high.y * inverse * gamma[1].y};
    }

    __device__ void turn(Two& low, Two& high) const {
        CosSin c = angle[0], e = angle[1];
        Two a = low, b = high;
        if (INTERLEAVED) {
            low = {a.x * c.cos - a.y * c.sin, a.y * c.cos + a.x * c.sin};
            high = {b.x * e.cos - b.y * e.sin, b.y * e.cos + b.x * e.sin};
        } else {
            low = {a.x * c.cos - b.x * c.sin, a.y * e.cos - b.y * e.sin};
            high = {b.x * c.cos + a.x * c.sin, b.y * e.cos + a.y * e.sin};
        }
    }

    // head_of(which): query head, key (H) or value (H + 1). The block meets at the end.
    template <class HeadOf>
    __device__ void store(Heads& to, HeadOf head_of, float eps) const {
        u32 warp = threadIdx.x / 32, d = first();
        bool used = mine() && (warp < H || warp >= 4);
        Two low = {0.0f, 0.0f}, high = low;
        if (used) {
            const float* x = head_of(warp < 4 ? warp : warp - 4 + H);
            low = *(const Two*)(x + d), high = *(const Two*)(x + d + DIM / 2);
        }
        if (QKNORM && warp <= 4) norm(low, high, eps);
        if (used && warp <= 4) turn(low, high);
        if (mine()) {
            u32 rounded[2], rest[2], *words = (u32*)(warp < 4 ? to.queries[warp] : to.fresh[warp - 4]);
            split_halves(low.x, low.y, rounded[0], rest[0]);
            split_halves(high.x, high.y, rounded[1], rest[1]);
            words[d / 2] = rounded[0], words[d / 2 + DIM / 4] = rounded[1];
            if (warp < 4) {
                words = (u32*)to.queries[4 + warp];
                words[d / 2] = rest[0], words[d / 2 + DIM / 4] = rest[1];
            }
        }
        __syncthreads();
    }
};
