#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
// y (+)= W q, with q a row of x, normed and quantized (norm_matmul.glsl).
#include "norm_matmul.glsl"
