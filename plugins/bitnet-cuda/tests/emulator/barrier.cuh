// The emulator's barriers in shared memory, and copies that have come when they are asked for.
#include <tensor_map.h>
#define __grid_constant__
struct Barrier {
    unsigned count, missing, phase;
};
inline void barrier_init(Barrier* barrier, unsigned count) { *barrier = {count, count, 0}; }
inline void barrier_arrive(Barrier* barrier) {
    if (--barrier->missing) return;
    barrier->missing = barrier->count;
    barrier->phase ^= 1;
}
inline void barrier_arrive_copied(Barrier* barrier) { barrier_arrive(barrier); }
inline void show_barriers() {}
// Ends the launch with an error where nobody comes.
inline void barrier_wait(Barrier* barrier, unsigned phase) {
    for (unsigned tries = 0; barrier->phase == phase; tries++)
        tries < 100000 ? simt::block->yield(simt::READY) : simt::fail();
}
// A phase ends with the copies: the thread that expects them arrives with the last of them.
static long expected = 0;
inline void barrier_expect(Barrier*, unsigned bytes) { expected += bytes; }
inline void copied(Barrier* barrier, unsigned bytes) {
    expected -= bytes;
    if (expected == 0) barrier_arrive(barrier);
}
// 16-byte words of a row are exchanged as the bits above 128 bytes say: the 32-byte and the 128-byte swizzle.
inline void copy_any(void* to, const TensorMap& map, const unsigned* at, Barrier* barrier) {
    unsigned bytes = 1;
    for (unsigned d = 0; d < map.rank; d++) bytes *= map.box[d];
    for (unsigned i = 0; i < bytes; i++) {
        const unsigned char* from = (const unsigned char*)map.address;
        bool inside = true;
        for (unsigned d = 0, rest = i; d < map.rank; rest /= map.box[d++]) {
            unsigned x = at[d] + rest % map.box[d];
            inside = inside && x < map.dims[d];
            from += x * (d ? map.strides[d - 1] : 1);
        }
        unsigned place = i ^ (i >> 7 & (map.box[0] / 16 - 1)) << 4;
        ((unsigned char*)to)[place] = inside ? *from : 0;
    }
    copied(barrier, bytes);
}
inline void copy_box(void* to, const TensorMap& map, unsigned x, unsigned y, Barrier* barrier) {
    unsigned at[] = {x, y};
    copy_any(to, map, at, barrier);
}
inline void copy_groups(void* to, const TensorMap& map, unsigned x, unsigned z, Barrier* barrier) {
    unsigned at[] = {x, 0, 0, z};
    copy_any(to, map, at, barrier);
}
inline void copy_bulk(void* to, const void* from, unsigned bytes, Barrier* barrier) {
    memcpy(to, from, bytes);
    copied(barrier, bytes);
}
