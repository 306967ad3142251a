#define ENTRY matmul_ternary_few
#include "matmul_few.clh"
