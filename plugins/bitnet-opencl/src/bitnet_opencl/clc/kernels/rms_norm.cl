// y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]; NaN if the sum of squares is not finite. x
// f32[*, width]; index i32[rows]; gamma f32[width]; y f32[rows, width]. One group per row.
KERNEL rms_norm(ARGUMENTS) {
    PARAMETERS
    AT_IN(float, x);
    AT_IN(int, index);
    AT_IN(float, gamma);
    AT_OUT(float, y);
    __local float scratch[GROUP];
    const uint l = get_group_id(0), lid = get_local_id(0);
    __global const float *row = x + (ulong)index[l] * width;
    float sum = 0;
    for (uint i = lid; i < width; i += GROUP) sum = fma(row[i], row[i], sum);
    float mean = group_sum(sum, scratch) / (float)width;
    if (!isfinite(mean)) mean = NAN;
    const float inverse = 1.0f / sqrt(mean + eps);
    for (uint i = lid; i < width; i += GROUP) y[(ulong)l * width + i] = row[i] * inverse * gamma[i];
}
