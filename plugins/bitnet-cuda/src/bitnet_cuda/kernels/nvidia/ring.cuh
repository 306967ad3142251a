// Places in the ring of STAGES stages, one after the other.
struct Ring {
    u32 stage, phase;

    __device__ void step() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};
