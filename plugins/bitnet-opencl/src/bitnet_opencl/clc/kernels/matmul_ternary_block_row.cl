// matmul_ternary_block of one row with activation scales (ABLOCK is not 0), formula as in matmul_ternary_block.cl. WIDTH
// is the number of columns.
KERNEL matmul_ternary_block_row(ARGUMENTS) {
    PARAMETERS
    AT_IN(uint4, w);
    AT_IN(float, wscale);
    AT_IN(char, q);
    AT_IN(float, scale);
    AT_IN(int, qsum);
    AT_OUT(float, y);
#include "product_row_load.clh"
#include "product_row.clh"
}
