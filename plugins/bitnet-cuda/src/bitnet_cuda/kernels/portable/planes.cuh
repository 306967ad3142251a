// Products of 16 bytes of codes, 64 columns of a row: plane s of the words with `planes[2 * s]`, 16 activations. The
// planes are summed separately and their factors 1, 16, 4, 1 divided out at the end, which is exact. The top plane is
// shifted down because dot4 is signed.
__device__ inline int masked_dot(Words w, u32 mask, Words q, int acc) {
    return dot4(w.x & mask, q.x, dot4(w.y & mask, q.y, dot4(w.z & mask, q.z, dot4(w.w & mask, q.w, acc))));
}

__device__ inline void add_planes(int (&acc)[4], Words codes, const Words* planes) {
    Words top = {codes.x >> 6, codes.y >> 6, codes.z >> 6, codes.w >> 6};
    acc[0] = masked_dot(top, 0x03030303u, planes[0], acc[0]);
    acc[1] = masked_dot(codes, 0x30303030u, planes[2], acc[1]);
    acc[2] = masked_dot(codes, 0x0c0c0c0cu, planes[4], acc[2]);
    acc[3] = masked_dot(codes, 0x03030303u, planes[6], acc[3]);
}

__device__ inline int joined_planes(const int (&acc)[4]) { return acc[0] + (acc[1] >> 4) + (acc[2] >> 2) + acc[3]; }
