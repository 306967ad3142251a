// All MEMBERS workgroups of a dispatch meet: what any of them wrote to coherent buffers before is there for all afterwards.
// They must run at the same time, and nothing in Vulkan promises that: where too long a wait shows that they do not, or an
// earlier dispatch had to give up, `lost` makes every result NaN. meetings[] is zero before the first dispatch.
const uint MEETINGS = 4, LINE = 32, LOST = 8 * LINE, TRIES = 1 << 21;
shared bool lost;

void work_barrier() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
}

void arrive(uint meeting) {
    work_barrier();
    if (LID != 0) return;
    memoryBarrierBuffer();
    atomicAdd(meetings[meeting * LINE], 1);
}

// Everybody has left the meeting before (the last one before the first: in an earlier dispatch), whose count becomes 0.
void await(uint meeting) {
    if (LID == 0) {
        uint tries = 0;
        while (!lost && meetings[meeting * LINE] < MEMBERS)
            if (++tries == TRIES) {
                lost = true;
                meetings[LOST] = 1;
            }
        if (gl_WorkGroupID.x == 0) meetings[(meeting + MEETINGS - 1) % MEETINGS * LINE] = 0;
    }
    work_barrier();
}
