// Weights that the blocks of the next product read first (next_weights.py): `part` bytes at the start of each of `units`
// units of `unit` bytes. Only products that share a norm with another (joined_norm.cuh) follow each other directly.
#if JOINED || NORMED
#define AHEAD_OF , const u8 *ahead, u32 ahead_unit, u32 ahead_part, u32 ahead_units
#define AHEAD Ahead{ahead, ahead_unit, ahead_part, ahead_units}
#else
#define AHEAD_OF
#define AHEAD Ahead{}
#endif

struct Ahead {
#if JOINED || NORMED
    const u8* from;
    u32 unit, part, units;

    // Prefetches this block's units into the L2 cache.
    __device__ void load() const {
        if (threadIdx.x != 0) return;
        for (u32 i = blockIdx.x; i < units; i += gridDim.x) fetch(from + (size_t)i * unit, part);
    }
#else
    __device__ void load() const {}
#endif
};
