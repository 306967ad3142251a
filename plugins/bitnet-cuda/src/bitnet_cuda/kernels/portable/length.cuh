// |x| of a row of `width` floats (a multiple of 4), rounded up; all threads of the block call it together.
__device__ inline float length_of(const float* x, u32 width) {
    __shared__ float scratch[GROUP / 32];
    float squares = 0.0f;
    for (u32 k = threadIdx.x; k < width; k += GROUP) squares += x[k] * x[k];
    return sqrtf(group_sum(squares, scratch)) * 1.00001f;
}
