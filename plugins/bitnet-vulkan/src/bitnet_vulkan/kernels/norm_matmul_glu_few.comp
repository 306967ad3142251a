#version 450
#extension GL_GOOGLE_include_directive : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
// m = act(gate) * up, of the products of rows, normed and quantized, with w = [gate | up].
#define GLU
#include "norm_matmul_few.glsl"
