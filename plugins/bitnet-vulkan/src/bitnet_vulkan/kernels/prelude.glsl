// Shared by every kernel: specialization constants (ids as in constants.py), group reductions, bit-level number formats.
// Nothing here needs an optional device feature: buffers are arrays of 32-bit words.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint GROUP = 64;  // invocations of a workgroup, a power of two
layout(constant_id = 1) const uint TILE_N = 1;
layout(constant_id = 2) const uint TILE_T = 1;
layout(constant_id = 3) const uint DTYPE = 0;
layout(constant_id = 4) const uint ADD = 0;
layout(constant_id = 5) const uint NORM = 0;
layout(constant_id = 6) const uint ACT = 0;
layout(constant_id = 7) const uint KV = 0;
layout(constant_id = 8) const uint INTERLEAVED = 0;
layout(constant_id = 9) const uint BLOCK = 128;

const uint KV_BLOCK = 64;
#define LID gl_LocalInvocationID.x

const uint NAN_BITS = 0x7fc00000u;

// By bits, because compilers may assume that NaN never happens.
bool not_finite(float v) { return (floatBitsToUint(v) & 0x7f800000u) == 0x7f800000u; }
bool is_nan(float v) { return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u; }

shared float group_scratch[GROUP];

float group_sum(float v) {
    barrier();
    group_scratch[LID] = v;
    barrier();
    for (uint s = GROUP / 2; s > 0; s >>= 1) {
        if (LID < s) group_scratch[LID] += group_scratch[LID + s];
        barrier();
    }
    return group_scratch[0];
}

float group_max(float v) {
    barrier();
    group_scratch[LID] = v;
    barrier();
    for (uint s = GROUP / 2; s > 0; s >>= 1) {
        if (LID < s) group_scratch[LID] = max(group_scratch[LID], group_scratch[LID + s]);
        barrier();
    }
    return group_scratch[0];
}

int signed_byte(uint word, uint i) { return bitfieldExtract(int(word), int(8 * i), 8); }
