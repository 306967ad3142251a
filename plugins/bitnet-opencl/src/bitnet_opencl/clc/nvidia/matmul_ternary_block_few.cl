#define ENTRY matmul_ternary_block_few
#include "matmul_few.clh"
