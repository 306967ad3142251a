// A product of one row in the dispatch of the rotation before it. The first `rotations` workgroups rotate and quantize a
// part of the row each, and all workgroups wait for them, with their first weights on the way. The waiting workgroups need
// the first ones to run at the same time, which Vulkan does not guarantee: if a wait takes too long, or an earlier dispatch
// gave up, every result becomes NaN. The counters are zero before the first dispatch, and reset by the last workgroup that
// has waited. FIRST: the binding of q.
#define TRANSFORMS 1
layout(std430, binding = FIRST) coherent buffer Q { uint q[]; };
layout(std430, binding = FIRST) coherent buffer Q4 { uvec4 q4[]; };
layout(std430, binding = FIRST + 1) coherent buffer Scale { float scale[]; };
layout(std430, binding = FIRST + 1) coherent buffer Scale4 { vec4 scale4[]; };
layout(std430, binding = FIRST + 2) coherent buffer Qsum { int qsum[]; };
layout(std430, binding = FIRST + 2) coherent buffer Qsum4 { ivec4 qsum4[]; };
layout(std430, binding = FIRST + 3) readonly buffer W { uvec4 w[]; };
layout(std430, binding = FIRST + 4) readonly buffer Wscale { float wscale[]; };
layout(std430, binding = FIRST + 5) buffer Y { float y[]; };
layout(std430, binding = FIRST + 6) coherent buffer Counters { uint counters[]; };

const uint ARRIVED = 0, LEFT = 32, LOST = 64, TRIES = 1 << 21;
shared bool lost;

void work_barrier() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
}

// Makes the part of a workgroup that rotates visible to all.
void hand_over() {
    work_barrier();
    if (LID != 0) return;
    memoryBarrierBuffer();
    atomicAdd(counters[ARRIVED], 1);
}

// Waits for all parts. Returns false if they are lost.
bool take_over(uint rotations) {
    if (LID == 0) {
        lost = counters[LOST] != 0;
        uint tries = 0;
        while (!lost && counters[ARRIVED] < rotations)
            if (++tries == TRIES) {
                lost = true;
                counters[LOST] = 1;
            }
        memoryBarrierBuffer();
        if (atomicAdd(counters[LEFT], 1) == gl_NumWorkGroups.x - 1) {
            counters[ARRIVED] = 0;
            counters[LEFT] = 0;
        }
    }
    work_barrier();
    return !lost;
}
