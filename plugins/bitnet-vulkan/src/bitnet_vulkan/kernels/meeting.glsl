// A barrier among all MEMBERS workgroups of a dispatch: writes to coherent buffers before it are visible to all after
// it. The workgroups must run at the same time, which Vulkan does not guarantee: if a wait takes too long, or an
// earlier dispatch gave up, `lost` turns every result into NaN. meetings[] is zero before the first dispatch.
#ifndef MEETINGS_OF
#define MEETINGS_OF 4
#define ARRIVED(MEETING) meetings[(MEETING) * LINE]
#endif
const uint MEETINGS = MEETINGS_OF, LINE = 32, LOST = 8 * LINE, TRIES = 1 << 21;
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
void await(uint meeting, uint count) {
    if (LID == 0) {
        uint tries = 0;
        while (!lost && ARRIVED(meeting) < count)
            if (++tries == TRIES) {
                lost = true;
                meetings[LOST] = 1;
            }
        if (gl_WorkGroupID.x == 0) meetings[(meeting + MEETINGS - 1) % MEETINGS * LINE] = 0;
    }
    work_barrier();
}
