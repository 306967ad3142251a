// A row's four query heads (zeros from H on), normed (QKNORM 1) and rotated, its key and its value, and those of the rows
// before it of the same sequence, as f16. Heads are numbered: 0 to 3 queries, 4 + 2 j the key of the row j before this
// one, 5 + 2 j its value. A warp has the head of its own number, then every WARPSth further one, and a lane TWOS pairs of
// neighbouring elements of each half. The first head's angles and gammas are loaded before the preceding kernels have
// finished.
struct alignas(8) Two {
    float x, y;
};

// The heads as f16: high parts of queries, their low parts, padded against bank conflicts; in `fresh` keys and values in
// turns, the newest first.
typedef Words Fresh[CHUNKS];
struct Heads {
    Words (*queries)[CHUNKS + 4];
    Fresh* fresh;
};

#define TWOS ((DIM + 127) / 128)

struct TurnedHeads {
    const CosSin* angles;  // of the row's position
    const float *q_gamma, *k_gamma;
    u32 rows;  // the row, and those before it
    Two gamma[TWOS][2];
    CosSin angle[TWOS][2];

    // The first of a lane's elements; the others are the next, and those DIM / 2 further on.
    __device__ static u32 first(int i) { return threadIdx.x % 32 * 2 + 64 * i; }
    __device__ bool mine(u32 head, int i) const { return head < 4 + 2 * rows && first(i) < DIM / 2; }
    __device__ bool turned(u32 head) const { return head < 4 || (head % 2 == 0 && head < 4 + 2 * rows); }

    __device__ void load(u32 head) {
        if (!turned(head)) return;
        const float* from = head < 4 ? q_gamma : k_gamma;
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            u32 d = first(i);
            if (!mine(head, i)) continue;
            const CosSin* of = angles - (head < 4 ? 0 : (head / 2 - 2) * (DIM / 2));
            angle[i][0] = of[INTERLEAVED ? d / 2 : d];
            angle[i][1] = of[INTERLEAVED ? d / 2 + DIM / 4 : d + 1];
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

    __device__ static void write(const Heads& to, u32 head, const Two& low, const Two& high, u32 d) {
        u32 rounded[2], rest[2], *words = (u32*)(head < 4 ? to.queries[head] : to.fresh[head - 4]);
        split_halves(low.x, low.y, rounded[0], rest[0]);
        split_halves(high.x, high.y, rounded[1], rest[1]);
        words[d / 2] = rounded[0], words[d / 2 + DIM / 4] = rounded[1];
        if (head < 4) {
            words = (u32*)to.queries[4 + head];
            words[d / 2] = rest[0], words[d / 2 + DIM / 4] = rest[1];
        }
    }

    template <class HeadOf>
    __device__ void store_one(const Heads& to, u32 head, HeadOf head_of, float eps) const {
        bool used = head < H || head >= 4;
        Two low[TWOS], high[TWOS];
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            low[i] = high[i] = {0.0f, 0.0f};
            if (!used || !mine(head, i)) continue;
            const float* x = head_of(head) + first(i);
            low[i] = *(const Two*)x, high[i] = *(const Two*)(x + DIM / 2);
        }
        if (QKNORM && turned(head)) norm(low, high, eps);
#pragma unroll
        for (int i = 0; i < TWOS; i++) {
            if (!mine(head, i)) continue;
            if (used && turned(head)) turn(low[i], high[i], i);
            write(to, head, low[i], high[i], first(i));
        }
    }

    // head_of(number): the elements of a head. Ends with a barrier of the block.
    template <class HeadOf>
    __device__ void store(const Heads& to, HeadOf head_of, float eps) {
        store_one(to, threadIdx.x / 32, head_of, eps);
        for (u32 head = threadIdx.x / 32 + WARPS; FRESH > 1 && head < 4 + 2 * rows; head += WARPS) {
            load(head);
            store_one(to, head, head_of, eps);
        }
        __syncthreads();
    }
};
