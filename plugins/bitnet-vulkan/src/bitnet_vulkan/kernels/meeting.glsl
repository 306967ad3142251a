// A barrier among all MEMBERS workgroups of a dispatch: writes to coherent buffers before it are visible to all after
// it. The workgroups must run at the same time, which Vulkan does not guarantee: if a wait takes too long, or an
// earlier dispatch gave up, `lost` turns every result into NaN. meetings[] is zero before the first dispatch.
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

// All have left the previous barrier (before the first one: the last of the dispatch before), so its count is reset to
// 0.
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
