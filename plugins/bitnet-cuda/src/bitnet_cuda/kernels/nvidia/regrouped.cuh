// Exchanges words between lanes t and t ^ 2, which have half of each of two blocks: bytes 16 (t % 2) + 8 (t / 2) and on
// of the first block go to x, y, those of the second to z, w. Then a fragment has the columns of one block alone.
__device__ inline Words regrouped(Words v) {
    bool second = threadIdx.x % 4 >= 2;
    u32 a = shuffle_xor(second ? v.x : v.z, 2), b = shuffle_xor(second ? v.y : v.w, 2);
    return second ? Words{a, b, v.z, v.w} : Words{v.x, v.y, a, b};
}
