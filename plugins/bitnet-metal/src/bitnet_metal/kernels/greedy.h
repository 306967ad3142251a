// The best token of a threadgroup, and the advance of a row to its next position.
inline bool better(uint2 a, uint2 b) { return a.x > b.x || (a.x == b.x && a.y < b.y); }  // (key, token)

inline uint2 best_of_lanes(uint2 mine) {
    for (ushort mask = 16; mask > 0; mask /= 2) {
        uint2 other = simd_shuffle_xor(mine, mask);
        if (better(other, mine)) mine = other;
    }
    return mine;
}

inline uint2 best_of_group(uint2 mine, threadgroup uint2 *room, uint tid) {
    mine = best_of_lanes(mine);
    if (tid % 32 == 0) room[tid / 32] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return best_of_lanes(tid % 32 < GROUP / 32 ? room[tid % 32] : uint2(0u, 0xffffffffu));
}

inline uint2 best_between(Row row, uint begin, uint end, uint tid) {
    uint2 most = uint2(0u, 0xffffffffu);
    for (uint i = begin + tid; i < end; i += GROUP) {
        uint2 one = uint2(row.key(i), i);
        if (better(one, most)) most = one;
    }
    return most;
}

inline void advance(uint2 found, uint row, device const int *tables, device int4 *step, device int *history,
                    constant Params &p) {  // key 0: no token is allowed; key of NaN: the token is -1
    device int *past = history + row * (p.ring + 1);
    int token = found.x == 0 || found.x == 0xffffffffu ? -1 : int(found.y);
    past[0] += 1;
    if (past[0] > 0 && uint(past[0]) <= p.ring) past[past[0]] = token;
    int position = step[row].y + 1;
    uint block = uint(position) / 64;
    int slot = -1;
    if (token >= 0 && block < p.max_blocks) {
        int entry = tables[uint(step[row].w) * p.max_blocks + block];
        if (entry >= 0) slot = entry * 64 + position % 64;
    }
    step[row] = int4(token, slot < 0 ? -1 : position, slot, step[row].w);
}
