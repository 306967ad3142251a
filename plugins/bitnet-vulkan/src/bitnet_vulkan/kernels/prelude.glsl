// Shared by every kernel: specialization constants (compile.py reads their ids here), group reductions, number formats
// by bits. Buffers are arrays of 32-bit words. SUBGROUP: subgroups are full, have the size that the pipeline requires,
// and support arithmetic and shuffles; without it nothing here needs an optional device feature.
#extension GL_EXT_control_flow_attributes : require
#ifdef SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
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
layout(constant_id = 9) const uint BLOCK = 0;     // columns that share a weight scale; 0: a row
layout(constant_id = 10) const uint WIDTH = 128;  // padded columns of a matrix or row, if a kernel unrolls over them
layout(constant_id = 11) const uint LANES = 8;    // invocations that share a weight row, or a position of the cache
layout(constant_id = 12) const uint HEADS = 1;    // query heads of a key/value head
layout(constant_id = 13) const uint DIM = 128;    // elements of a head
layout(constant_id = 14) const uint SPLITS = 1;   // workgroups that share the positions of a sequence
layout(constant_id = 15) const uint BATCH = 1;    // loads that a lane has in flight
layout(constant_id = 16) const uint WAVE = 8;     // invocations of a subgroup, if the pipeline requires a size
layout(constant_id = 17) const uint WAVE_T = 32;  // tokens of a subgroup's part of a tile

layout(constant_id = 18) const uint MEMBERS = 1;  // workgroups that share barriers
layout(constant_id = 19) const uint KV_HEADS = 1;
layout(constant_id = 20) const uint FFN = 128;  // columns of the gate
layout(constant_id = 21) const uint ABLOCK = 0;  // columns that share an activation scale; 0: a row
layout(constant_id = 22) const uint QKNORM = 0;
layout(constant_id = 23) const uint MASK = 0;
layout(constant_id = 24) const uint ROOM = 8;   // maximum number of rows of the workspace
layout(constant_id = 25) const uint ROWS = 1;   // rows of the gate's matrix per lane
layout(constant_id = 26) const uint INVERSE = 0;
layout(constant_id = 27) const uint EACH = 1;   // keys of a head's state per invocation
layout(constant_id = 28) const uint KEEP = 0;

const uint KV_BLOCK = 64;
#ifdef SUBGROUP
#define LID (gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID)  // neighbours share a subgroup
#else
#define LID gl_LocalInvocationID.x
#endif

const uint NAN_BITS = 0x7fc00000u;

// By bits, because compilers may assume that there is no NaN.
bool not_finite(float v) { return (floatBitsToUint(v) & 0x7f800000u) == 0x7f800000u; }
bool is_nan(float v) { return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u; }

#ifdef SUBGROUP
const uint WAVES = GROUP / WAVE;
shared float group_scratch[WAVES];
shared uvec2 group_found[WAVES];
shared int group_totals[WAVES];

// Over the full subgroup. By shuffles: NVIDIA's driver compiles subgroupAdd to many more instructions.
#define OVER_WAVE(v, JOINED) [[unroll]] for (uint d = WAVE / 2; d > 0; d >>= 1) v = JOINED;
float sum_of_wave(float v) {
    OVER_WAVE(v, v + subgroupShuffleXor(v, d))
    return v;
}
int sum_of_wave(int v) {
    OVER_WAVE(v, v + subgroupShuffleXor(v, d))
    return v;
}
uint max_of_wave(uint v) {
    OVER_WAVE(v, max(v, subgroupShuffleXor(v, d)))
    return v;
}

float group_sum(float v) {
    v = sum_of_wave(v);
    barrier();
    if (subgroupElect()) group_scratch[gl_SubgroupID] = v;
    barrier();
    v = 0.0;
    [[unroll]] for (uint i = 0; i < WAVES; i++) v += group_scratch[i];
    return v;
}

// The next two need a barrier between two uses, which other reductions include.

// Returns the sum of the first and the maximum of the second.
void group_sum_max(inout float sum, inout uint largest) {
    sum = sum_of_wave(sum);
    largest = max_of_wave(largest);
    if (subgroupElect()) group_found[gl_SubgroupID] = uvec2(floatBitsToUint(sum), largest);
    barrier();
    sum = 0.0;
    [[unroll]] for (uint i = 0; i < WAVES; i++) {
        uvec2 found = group_found[i];
        sum += uintBitsToFloat(found.x);
        largest = max(largest, found.y);
    }
}

int group_sum(int v) {
    v = sum_of_wave(v);
    if (subgroupElect()) group_totals[gl_SubgroupID] = v;
    barrier();
    v = 0;
    [[unroll]] for (uint i = 0; i < WAVES; i++) v += group_totals[i];
    return v;
}

// Returns the maximum of COUNT neighbours' bits of numbers; with a barrier if subgroups are smaller.
uint max_of_near(uint v, uint count) {
    [[unroll]] for (uint d = min(count, WAVE) / 2; d > 0; d >>= 1) v = max(v, subgroupShuffleXor(v, d));
    if (count <= WAVE) return v;
    barrier();
    if (subgroupElect()) group_totals[gl_SubgroupID] = int(v);
    barrier();
    uint first = LID / count * (count / WAVE);
    for (uint i = 0; i < count / WAVE; i++) v = max(v, uint(group_totals[first + i]));
    return v;
}
// Over eight neighbours.
int sum_of_8(int v) {
    [[unroll]] for (uint d = 4; d > 0; d >>= 1) v += subgroupShuffleXor(v, d);
    return v;
}
#else
shared float group_scratch[GROUP];

// Returns the maximum of COUNT neighbours' bits of numbers; NaN counts as infinity.
uint max_of_near(uint v, uint count) {
    float largest = uintBitsToFloat(min(v, 0x7f800000u));
    barrier();
    group_scratch[LID] = largest;
    barrier();
    for (uint i = 0; i < count; i++) largest = max(largest, group_scratch[LID / count * count + i]);
    return floatBitsToUint(largest);
}

int sum_of_8(int v) {
    barrier();
    group_scratch[LID] = float(v);
    barrier();
    float sum = 0.0;
    for (uint i = 0; i < 8; i++) sum += group_scratch[LID / 8 * 8 + i];
    return int(sum);
}

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

// Returns the sum of the first and the maximum of the second, which are bits of numbers; NaN counts as infinity.
void group_sum_max(inout float sum, inout uint largest) {
    sum = group_sum(sum);
    largest = floatBitsToUint(group_max(uintBitsToFloat(min(largest, 0x7f800000u))));
}

int group_sum(int v) { return int(group_sum(float(v))); }  // exact, below 2^24
#endif

int signed_byte(uint word, uint i) { return bitfieldExtract(int(word), int(8 * i), 8); }
