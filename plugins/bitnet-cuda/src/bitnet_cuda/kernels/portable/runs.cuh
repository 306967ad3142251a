// Runs: the rows of one sequence in a step. An unused row is a run of its own.
__device__ inline bool run_begins(const Row* step, u32 t) {
    return t == 0 || step[t].position < 0 || step[t - 1].position < 0 || step[t - 1].sequence != step[t].sequence;
}
__device__ inline bool run_ends(const Row* step, u32 t, u32 rows) { return t + 1 >= rows || run_begins(step, t + 1); }
