// A position in the ring of STAGES stages.
struct Ring {
    u32 stage, phase;

    __device__ void step() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};
