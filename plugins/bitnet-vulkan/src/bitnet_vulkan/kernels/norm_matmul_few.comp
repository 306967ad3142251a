#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
// y (+)= the products of rows, normed and quantized, with w.
#include "norm_matmul_few.glsl"
