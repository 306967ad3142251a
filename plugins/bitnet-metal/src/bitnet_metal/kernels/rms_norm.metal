// y[l, :] = x[r, :] / sqrt(mean(x[r]^2) + eps) * gamma with r = index[l]; one threadgroup per row. x f32[*, width];
// index i32[rows]; gamma f32[width]; y f32[rows, width].
#include "numbers.h"
#include "reduce.h"
kernel void rms_norm(device const float *x [[buffer(0)]], device const int *index [[buffer(1)]],
                     device const float *gamma [[buffer(2)]], device float *y [[buffer(3)]],
                     constant Params &p [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                     uint tid [[thread_index_in_threadgroup]]) {
    threadgroup uint room[32];
    device const float *row = x + uint(index[group.x]) * p.width;
    float sum = 0.0f;
    for (uint k = tid; k < p.width; k += GROUP) sum += row[k] * row[k];
    float mean = group_sum(sum, room, tid) / float(p.width);
    float factor = 1.0f / sqrt(mean + p.eps);
    for (uint k = tid; k < p.width; k += GROUP) {
        y[group.x * p.width + k] = or_nan(row[k] * factor * gamma[k], is_bad(mean));
    }
}
