// norm_rotate_quantize of one row, then matmul_ternary_block of the result (handover.clh). Group: TILE_N matrix rows.
#include "handover.clh"
#include "rotate_quantize.clh"
KERNEL norm_rotate_quantize_product(ARGUMENTS) {
    PARAMETERS
    PRODUCT_VIEWS
    __local uint lost;
#include "rotation_memory.clh"
#include "product_row_load.clh"
    const uint rotations = width / block;
    if (get_group_id(0) < rotations) {
        AT_IN(float4, x);
        AT_IN(float4, gamma);
        AT_IN(float4, signs);
        __global float4 *restrict y = (__global float4 *)(kept_buffer + kept_offset);
#include "norm_rotate.clh"
        hand_over(workspace);
    }
    if (!take_over(workspace, rotations, &lost)) EACH_ROW factor[r] = NAN;
#include "product_row.clh"
}
