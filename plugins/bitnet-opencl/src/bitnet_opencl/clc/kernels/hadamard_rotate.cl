// y[t] = H(signs * x[t]) or, with INVERSE 1, signs * H(x[t]), with H over each `block` columns, the normalized
// Walsh-Hadamard transform (hadamard.clh). x, y f32[rows, width]; signs f32[width]. Group: `block` columns of a row, at
// most ROOM.
#include "hadamard.clh"
KERNEL hadamard_rotate(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(float, signs);
    AT_OUT(float, y);
    __local float v[ROOM];
    const uint lid = get_local_id(0), first = get_group_id(0) * block;
    const ulong row = (ulong)get_group_id(1) * width + first;
    const float factor = hadamard_factor(block);
    for (uint i = lid; i < block; i += GROUP) v[i] = INVERSE ? x[row + i] : x[row + i] * signs[first + i];
    hadamard(v, block);
    for (uint i = lid; i < block; i += GROUP) y[row + i] = INVERSE ? v[i] * factor * signs[first + i] : v[i] * factor;
}
