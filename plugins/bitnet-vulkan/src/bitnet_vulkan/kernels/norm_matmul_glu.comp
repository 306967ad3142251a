#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
// m = act(gate) * up, with [gate | up] = W q and q a row of x, normed and quantized (norm_matmul.glsl).
#define GLU
#include "norm_matmul.glsl"
